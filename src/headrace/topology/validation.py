"""The checks that a topology must pass before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from headrace.errors import HeadraceError, TopologyError, raised_by, refuse
from headrace.topology.errors import DEAD_LETTER_PREFIX, ErrorPolicy, dead_letter_topic
from headrace.topology.names import (
    check_job_name,
    check_operator_name,
    check_topic,
    commit_topic,
    state_topic,
)
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.bolts import Bolt, Spout
from headrace.topology.operators.core import (
    Delivery,
    Feed,
    Operator,
    Peek,
    Sink,
    Source,
    Through,
    is_loop,
)
from headrace.topology.operators.flow import MapAsync
from headrace.topology.operators.process import Process
from headrace.topology.stages import StagePlan, cut_stages, misplaced_updates

# A topology as text for people and as a Graphviz graph.
#
# Both depend on the topology alone: no line numbers, no addresses, the same in every process.


def describe(job: str, plan: StagePlan) -> str:
    """Return the stages with their operators, then the topics of the job, as text."""
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
    """Return the graph for Graphviz: a box per operator, a frame per stage, bold shuffles."""
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


def validate(name: str, operators: Sequence[Operator]) -> None:
    """Refuse a graph that cannot work.

    Raises
    ------
    TopologyError
        The graph cannot work; the error lists all problems that can be found at once.
    """
    if not operators:
        check_job_name(name)
        raise TopologyError(
            f"topology '{name}' is empty", hint="start with builder.source(topic, deserializer)"
        )
    problems = [*_misnamed(name, operators), *_odd_policies(operators)]
    disorder = [*_doubled_names(operators), *_loose_ends(operators)]
    problems += disorder or misplaced_updates(operators)
    if not disorder:
        problems += _idle(name, operators)
    problems += [*_own_topics_used(name, operators), *_endless(operators), *_two_starts(operators)]
    refuse(f"topology '{name}' cannot work", problems)


def _where(operator: Operator) -> str:
    return f"made at {operator.origin}" if operator.origin else "of unknown origin"


def named(operator: Operator) -> str:
    """Return the name of an operator, with the user's line that made it."""
    return f"{operator.label} '{operator.name}' ({_where(operator)})"


def _misnamed(name: str, operators: Sequence[Operator]) -> Iterator[HeadraceError]:
    yield from raised_by(partial(check_job_name, name))
    topics = [(topic, named(o)) for o in operators for topic in _used_topics(o)]
    letters = [(dead_letter_topic(o.on_error), f"on_error of {named(o)}") for o in operators]
    topics += [(topic, where) for topic, where in letters if topic is not None]
    wrong = [error for topic in topics for error in raised_by(partial(check_topic, *topic))]
    yield from wrong
    # Operators may be named after a topic, so report the topic's name alone if it is wrong.
    for operator in () if wrong else operators:
        checked = partial(check_operator_name, stateful=operator.stateful)
        yield from raised_by(partial(checked, name, operator.name, _where(operator)))


def _odd_policies(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    for operator in operators:
        policy = operator.on_error
        if dead_letter_topic(policy) is None and policy not in ("fail", "skip"):
            yield TopologyError(
                f"{named(operator)} has on_error={policy!r}",
                hint=f"on_error is 'fail', 'skip' or '{DEAD_LETTER_PREFIX}NAME'",
            )


def _doubled_names(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    seen: dict[str, Operator] = {}
    for operator in operators:
        first = seen.setdefault(operator.name, operator)
        if first is not operator:
            yield TopologyError(
                f"two operators have the name '{operator.name}': {named(first)} and"
                f" {named(operator)}",
                hint="give one of them another name with name=",
            )


def _loose_ends(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    seen: dict[str, Operator] = {}
    for operator in operators:
        begins = isinstance(operator, Source | Spout | Feed) and not is_loop(operator)
        if begins == bool(operator.parents):
            needed = "no operator" if begins else "an operator"
            yield TopologyError(f"{named(operator)} needs {needed} that feeds it")
        for parent in operator.parents:
            if parent not in seen:
                yield TopologyError(
                    f"{named(operator)} is fed by '{parent}', which does not come before it"
                )
            elif isinstance(seen[parent], Sink) and not is_loop(operator):
                yield TopologyError(
                    f"{named(operator)} comes after {named(seen[parent])}, but a sink has no"
                    " output",
                    hint="keep the stream in a variable and branch before the sink",
                )
        seen[operator.name] = operator


def _idle(name: str, operators: Sequence[Operator]) -> Iterator[TopologyError]:
    """Yield errors for sources that nothing follows, and for a topology without any effect."""
    fed = {parent for operator in operators for parent in operator.parents}
    loose = [o for o in operators if isinstance(o, Source | Spout) and o.name not in fed]
    for operator in loose:
        work = "emits" if isinstance(operator, Spout) else f"reads {_shown(operator)}"
        yield TopologyError(
            f"{named(operator)} {work} for nothing: no operator follows it",
            hint="add operators, e.g. a sink, or leave the source out",
        )
    if not loose and not any(isinstance(o, _EFFECTS) or o.stateful for o in operators):
        last = next(o for o in reversed(operators) if o.name not in fed)
        yield TopologyError(
            f"topology '{name}' has no sink: it ends with {named(last)}, and nothing is written,"
            " kept or called",
            hint="end it with a sink, e.g. .sink(topic, serializer)",
        )


#: Operators that act on the world outside, besides those that keep state.
_EFFECTS = (Sink, Bolt, Delivery, Process, Peek, MapAsync)


def _own_topics_used(name: str, operators: Sequence[Operator]) -> Iterator[TopologyError]:
    own = {commit_topic(name)} | {state_topic(name, o.name) for o in operators if o.stateful}
    own |= {operator.done_topic for operator in operators if isinstance(operator, BatchSink)}
    for operator in operators:
        for topic in _used_topics(operator):
            if topic in own:
                yield TopologyError(
                    f"{named(operator)} uses topic '{topic}', which belongs to the job"
                    f" '{name}' itself",
                    hint="use another topic, or give the job or the operator another name",
                )


def _shown(source: Source) -> str:
    topics = source.shown_topics
    listed = ", ".join(f"'{topic}'" for topic in topics)
    return f"topic {listed}" if len(topics) == 1 else f"topics {listed}"


def _used_topics(operator: Operator) -> tuple[str, ...]:
    return operator.topics if isinstance(operator, Source | Sink) else ()


def _two_starts(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    """Yield errors for topics with two starts: a job reads each message once for all sources."""
    first: dict[str, Source] = {}
    for source in operators:
        if not isinstance(source, Source):
            continue
        for topic in source.topics:
            other = first.setdefault(topic, source)
            if (other.start, other.start_once) != (source.start, source.start_once):
                yield TopologyError(
                    f"{named(other)} and {named(source)} read topic '{topic}' from different"
                    f" starts: {other.start!r} and {source.start!r}",
                    hint="give both the same start=, or use two jobs",
                )


def _endless(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    sources = [operator for operator in operators if isinstance(operator, Source)]
    for operator in operators:
        for topic in _written_by(operator):
            others = (source for source in sources if operator.name not in source.parents)
            reader = next((source for source in others if source.reads(topic)), None)
            if reader is not None:
                yield TopologyError(
                    f"{named(operator)} writes topic '{topic}', which {named(reader)} reads:"
                    " the job would feed itself without end",
                    hint="write to another topic",
                )


def _written_by(operator: Operator) -> list[str]:
    dead_letters = dead_letter_topic(operator.on_error)
    written = [*operator.topics] if isinstance(operator, Sink) else []
    return written if dead_letters is None else [*written, dead_letters]


# Topology: the immutable graph of operators that a front door builds and an executor runs.


@dataclass(frozen=True)
class Topology:
    """A job's operators as immutable data, checked when it is made.

    Parameters
    ----------
    name
        Name of the job, which is also its consumer group and the prefix of its own topics.
    operators
        The nodes, each after its parents.

    Raises
    ------
    TopologyError
        The graph cannot work; the message names all problems, with operators and the user's
        lines.
    """

    name: str
    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        validate(self.name, self.operators)

    def with_policy(self, policy: ErrorPolicy) -> Topology:
        """Return the topology with a policy for records that would stop the job.

        Operators that have a policy of their own (``on_error``) keep it.

        Raises
        ------
        TopologyError
            There is no such policy, or the job reads the topic of its dead letters.
        """
        if policy == "fail":
            return self
        return Topology(
            self.name,
            tuple(
                replace(operator, on_error=policy) if operator.on_error == "fail" else operator
                for operator in self.operators
            ),
        )

    @cached_property
    def plan(self) -> StagePlan:
        """The topology, cut into stages."""
        return cut_stages(self.operators)

    @cached_property
    def _by_name(self) -> dict[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def operator(self, name: str) -> Operator:
        """Return the operator of a name.

        Raises
        ------
        KeyError
            No operator has this name.
        """
        return self._by_name[name]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The operators that read topics."""
        return tuple(o for o in self.operators if isinstance(o, Source))

    @property
    def spouts(self) -> tuple[Spout, ...]:
        """The operators that run users' spouts."""
        return tuple(o for o in self.operators if isinstance(o, Spout))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The operators that write topics."""
        return tuple(o for o in self.operators if isinstance(o, Sink))

    @property
    def batch_sinks(self) -> tuple[BatchSink, ...]:
        """The sinks from whose topics committed batches are read back."""
        return tuple(o for o in self.operators if isinstance(o, BatchSink))

    @property
    def throughs(self) -> tuple[Through, ...]:
        """The sinks whose topics the job itself reads, a batch later."""
        return tuple(o for o in self.operators if isinstance(o, Through))

    @property
    def dead_letter_topics(self) -> list[str]:
        """The topics that take the messages of records that failed."""
        topics = (dead_letter_topic(operator.on_error) for operator in self.operators)
        return list(dict.fromkeys(topic for topic in topics if topic is not None))

    @property
    def stateful(self) -> tuple[Operator, ...]:
        """The operators that keep state."""
        return tuple(o for o in self.operators if o.stateful)

    @property
    def timed(self) -> bool:
        """Whether some operator acts on the progress of event time."""
        return any(operator.timed for operator in self.operators)

    @property
    def commit_topic(self) -> str:
        """The topic that holds the job's commit records."""
        return commit_topic(self.name)

    @property
    def state_topics(self) -> dict[str, str]:
        """The topic of each stateful operator's store, by the operator's name."""
        return {o.name: state_topic(self.name, o.name) for o in self.stateful}

    def describe(self) -> str:
        """Return stages, operators and topics as text that depends on the topology alone."""
        return describe(self.name, self.plan)

    def to_dot(self) -> str:
        """Return the graph in Graphviz's language."""
        return to_dot(self.name, self.plan)
