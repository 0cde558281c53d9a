"""What must hold for a topology before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import TopologyError
from headrace.topology.errors import DEAD_LETTER_PREFIX, dead_letter_topic
from headrace.topology.names import (
    check_job_name,
    check_operator_name,
    check_topic,
    commit_topic,
    state_topic,
)
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.bolts import Spout
from headrace.topology.operators.core import Operator, Sink, Source
from headrace.topology.operators.outside import Feed
from headrace.topology.operators.through import is_loop
from headrace.topology.updates import check_updates

__all__ = ["validate"]


def validate(name: str, operators: Sequence[Operator]) -> None:
    """Refuse a graph that cannot work.

    Raises
    ------
    TopologyError
        The first thing that is wrong, with the lines that made it.
    """
    check_job_name(name)
    if not operators:
        raise TopologyError(
            f"topology '{name}' is empty", hint="start with builder.source(topic, deserializer)"
        )
    for operator in operators:
        # A sink may be named after its topic, so this one goes first.
        for topic in _used_topics(operator):
            check_topic(topic, _named(operator))
        check_operator_name(name, operator.name, _where(operator), stateful=operator.stateful)
        _check_policy(operator)
    _check_unique_names(operators)
    _check_parents(operators)
    _check_sources_used(operators)
    check_updates(operators)
    _check_topics(name, operators)


def _where(operator: Operator) -> str:
    return f"made at {operator.origin}" if operator.origin else "of unknown origin"


def _named(operator: Operator) -> str:
    return f"{operator.label} '{operator.name}' ({_where(operator)})"


def _check_unique_names(operators: Sequence[Operator]) -> None:
    seen: dict[str, Operator] = {}
    for operator in operators:
        first = seen.setdefault(operator.name, operator)
        if first is not operator:
            raise TopologyError(
                f"two operators have the name '{operator.name}': {_named(first)} and"
                f" {_named(operator)}",
                hint="give one of them another name with name=",
            )


def _check_parents(operators: Sequence[Operator]) -> None:
    seen: dict[str, Operator] = {}
    for operator in operators:
        begins = isinstance(operator, Source | Spout | Feed) and not is_loop(operator)
        if begins == bool(operator.parents):
            needed = "no operator" if begins else "an operator"
            raise TopologyError(f"{_named(operator)} needs {needed} that feeds it")
        for parent in operator.parents:
            if parent not in seen:
                raise TopologyError(
                    f"{_named(operator)} is fed by '{parent}', which does not stand before it"
                )
            if isinstance(seen[parent], Sink) and not is_loop(operator):
                raise _after_sink(operator, seen[parent])
        seen[operator.name] = operator


def _after_sink(operator: Operator, sink: Operator) -> TopologyError:
    return TopologyError(
        f"{_named(operator)} stands after {_named(sink)}, and nothing comes out of a sink",
        hint="keep the stream in a variable and branch before the sink",
    )


def _check_sources_used(operators: Sequence[Operator]) -> None:
    fed = {parent for operator in operators for parent in operator.parents}
    for operator in operators:
        if isinstance(operator, Source | Spout) and operator.name not in fed:
            work = "emits" if isinstance(operator, Spout) else f"reads {_shown(operator)}"
            raise TopologyError(
                f"{_named(operator)} {work} for nothing: no operator follows it",
                hint="add operators, e.g. a sink, or leave the source out",
            )


def _check_topics(name: str, operators: Sequence[Operator]) -> None:
    sources = [operator for operator in operators if isinstance(operator, Source)]
    own = {commit_topic(name)} | {state_topic(name, o.name) for o in operators if o.stateful}
    own |= {operator.done_topic for operator in operators if isinstance(operator, BatchSink)}
    for operator in operators:
        for topic in _used_topics(operator):
            if topic in own:
                raise TopologyError(
                    f"{_named(operator)} uses topic '{topic}', which belongs to the job"
                    f" '{name}' itself",
                    hint="use another topic, or give the job or the operator another name",
                )
    _check_outputs(operators, sources)
    _check_starts(sources)


def _shown(source: Source) -> str:
    topics = source.shown_topics
    named = ", ".join(f"'{topic}'" for topic in topics)
    return f"topic {named}" if len(topics) == 1 else f"topics {named}"


def _used_topics(operator: Operator) -> tuple[str, ...]:
    return operator.topics if isinstance(operator, Source | Sink) else ()


def _check_policy(operator: Operator) -> None:
    policy = operator.on_error
    dead_letters = dead_letter_topic(policy)
    if dead_letters is not None:
        check_topic(dead_letters, f"on_error of {_named(operator)}")
    elif policy not in ("fail", "skip"):
        raise TopologyError(
            f"{_named(operator)} has on_error={policy!r}",
            hint=f"on_error is 'fail', 'skip' or '{DEAD_LETTER_PREFIX}NAME'",
        )


def _check_starts(sources: Sequence[Source]) -> None:
    """A job reads each message once, for all its sources, so it has one place to begin."""
    first: dict[str, Source] = {}
    for source in sources:
        for topic in source.topics:
            other = first.setdefault(topic, source)
            if (other.start, other.start_once) != (source.start, source.start_once):
                raise TopologyError(
                    f"{_named(other)} and {_named(source)} read topic '{topic}' from different"
                    f" starts: {other.start!r} and {source.start!r}",
                    hint="give both the same start=, or use two jobs",
                )


def _check_outputs(operators: Sequence[Operator], sources: Sequence[Source]) -> None:
    for operator in operators:
        for topic in _written_by(operator):
            others = (source for source in sources if operator.name not in source.parents)
            reader = next((source for source in others if source.reads(topic)), None)
            if reader is None:
                continue
            raise TopologyError(
                f"{_named(operator)} writes topic '{topic}', which {_named(reader)} reads:"
                " the job would feed itself without end",
                hint="write to another topic",
            )


def _written_by(operator: Operator) -> list[str]:
    dead_letters = dead_letter_topic(operator.on_error)
    written = [*operator.topics] if isinstance(operator, Sink) else []
    return written if dead_letters is None else [*written, dead_letters]
