"""A topology as text for people and as a Graphviz graph.

Both depend on the topology alone: no line numbers, no addresses, the same in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.topology.errors import dead_letter_topic
from headrace.topology.names import commit_topic, state_topic
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.bolts import Bolt
from headrace.topology.operators.core import Operator, Sink, Source
from headrace.topology.operators.through import is_loop

if TYPE_CHECKING:
    from headrace.topology.stages import StagePlan

__all__ = ["describe", "to_dot"]


def describe(job: str, plan: StagePlan) -> str:
    """Show stages with their operators, then the topics of the job."""
    width = max(len(o.name) for stage in plan.stages for o in stage.operators)
    lines = [f"topology {job}"]
    for stage in plan.stages:
        lines.append(f"  stage {stage.number}")
        lines += [
            f"    {operator.name:<{width}}  {_detail(operator, plan)}".rstrip()
            for operator in stage.operators
        ]
    topics = _topics(job, plan)
    width = max(len(topic) for topic, _ in topics)
    lines.append("  topics")
    lines += [f"    {topic:<{width}}  {use}" for topic, use in topics]
    return "\n".join(lines) + "\n"


def _detail(operator: Operator, plan: StagePlan) -> str:
    shuffled = {s.parent for s in plan.shuffles if s.operator == operator.name}
    parts = [
        f"<= {parent} ({_way(operator)})" if parent in shuffled else f"<- {parent}"
        for parent in operator.parents
    ]
    if is_loop(operator):
        parts = [f"{part} (a batch later)" for part in parts]
    policy = [] if operator.on_error == "fail" else [f"on_error {operator.on_error}"]
    return ", ".join([*parts, *operator.facts(), *policy])


def _way(operator: Operator) -> str:
    if isinstance(operator, Bolt):
        return "by task"
    return "by key" if operator.gathers or operator.stateful else "moved"


def _topics(job: str, plan: StagePlan) -> list[tuple[str, str]]:
    operators = [operator for stage in plan.stages for operator in stage.operators]
    uses: dict[str, list[str]] = {}
    for operator in operators:
        if isinstance(operator, Source):
            for topic in operator.shown_topics:
                uses.setdefault(topic, []).append(f"read by {operator.name}")
        dead_letters = dead_letter_topic(operator.on_error)
        if dead_letters is not None:
            uses.setdefault(dead_letters, []).append(f"dead letters of {operator.name}")
    for operator in operators:
        if isinstance(operator, Sink):
            for topic in operator.topics:
                uses.setdefault(topic, []).append(f"written by {operator.name}")
        if isinstance(operator, BatchSink):
            uses[operator.done_topic] = [f"batches done by {operator.name}"]
    for operator in operators:
        if operator.stateful:
            uses[state_topic(job, operator.name)] = [f"state of {operator.name}"]
    uses[commit_topic(job)] = ["commits of the job"]
    return [(topic, ", ".join(use)) for topic, use in uses.items()]


def to_dot(job: str, plan: StagePlan) -> str:
    """Show the graph: a box per operator, a frame per stage, bold edges for shuffles."""
    lines = [f"digraph {_quoted(job)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for stage in plan.stages:
        lines.append(f"  subgraph cluster_{stage.number} {{")
        lines.append(f'    label="stage {stage.number}";')
        lines += [f"    {_quoted(operator.name)};" for operator in stage.operators]
        lines.append("  }")
    lines += _dot_topics(job, plan)
    shuffled = {(shuffle.parent, shuffle.operator) for shuffle in plan.shuffles}
    for stage in plan.stages:
        for operator in stage.operators:
            for parent in () if is_loop(operator) else operator.parents:
                moved = (parent, operator.name) in shuffled
                style = f' [style=bold, label="{_way(operator)}"]' if moved else ""
                lines.append(f"  {_quoted(parent)} -> {_quoted(operator.name)}{style};")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _dot_topics(job: str, plan: StagePlan) -> list[str]:
    nodes: dict[str, str] = {}
    edges: list[str] = []
    for stage in plan.stages:
        for operator in stage.operators:
            name = _quoted(operator.name)
            topics: tuple[str, ...] = ()
            if isinstance(operator, Source):
                topics = operator.shown_topics
                edges += [f"  {_quoted('topic ' + topic)} -> {name};" for topic in topics]
            elif isinstance(operator, Sink):
                topics = operator.topics
                edges += [f"  {name} -> {_quoted('topic ' + topic)};" for topic in topics]
            elif operator.stateful:
                topics = (state_topic(job, operator.name),)
                node = _quoted("topic " + topics[0])
                edges.append(f"  {name} -> {node} [style=dotted, dir=both];")
            for topic in topics:
                label = _quoted(topic)
                nodes[topic] = f"  {_quoted('topic ' + topic)} [shape=cylinder, label={label}];"
    return [*nodes.values(), *edges]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
