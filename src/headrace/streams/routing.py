"""Merging, branching and moving streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from headrace import topology
from headrace.errors import TopologyError
from headrace.serdes import Serde, as_deserializer, as_serializer, with_key
from headrace.streams.flow import Flow, Known, NextOperator, record_function
from headrace.streams.records import keyed

StreamT = TypeVar("StreamT")


class Branches(Mapping[str, StreamT], Generic[StreamT]):
    """The streams that ``branch`` makes, by name: ``branches.large`` or ``branches["large"]``.

    Parameters
    ----------
    streams
        The streams, by the names of their branches.
    """

    def __init__(self, streams: Mapping[str, StreamT]) -> None:
        self._streams = dict(streams)

    def __repr__(self) -> str:
        return f"<branches {', '.join(self._streams)}>"

    def __getitem__(self, name: str) -> StreamT:
        return self._streams[name]

    def __getattr__(self, name: str) -> StreamT:
        if name.startswith("_") or name not in self._streams:
            message = f"there is no branch {name!r}: there are {', '.join(self.__dict__.get('_streams', ()))}"
            raise AttributeError(message)
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


def merged(flows: list[Flow], step: NextOperator, serde: Serde[Any] | None) -> Flow:
    """Merge several streams into one.

    Raises
    ------
    TopologyError
        There is only one, or one belongs to another builder.
    """
    _check_mergeable(flows, step)
    value = _common([flow.value for flow in flows], step, serde)
    operator = topology.Merge(
        **{**step.fields, "parents": tuple(flow.operator for flow in flows)},
        value_serde=value.serde_or_plain(),
    )
    return step.add(operator, key=_common([flow.key for flow in flows], step), value=value)


def parted(
    flow: Flow,
    predicates: Mapping[str, Callable[..., object]],
    default: str,
    name: str | None,
    on_error: topology.ErrorPolicy,
) -> dict[str, Flow]:
    """Split records by predicates, and return the place of each branch.

    Raises
    ------
    TopologyError
        There is no predicate, one takes other arguments, or one has the name of the default.
    """
    step = flow.begin("branch", name, on_error=on_error)
    origin = step.caller.origin
    if not predicates or default in predicates:
        problem = f"gives its default {default!r} a predicate" if predicates else "has no predicate"
        raise TopologyError(
            f"branch at {origin} {problem}",
            hint="for example branch(large=lambda order: order.price > 99)",
        )
    whole = step.add(
        topology.Branch(
            **step.fields,
            predicates=tuple(
                (branch, record_function(f"branch {branch!r}", predicate, origin))
                for branch, predicate in predicates.items()
            ),
            default=default,
        )
    )
    return {branch: _output(whole, step, branch) for branch in (*predicates, default)}


def moved(
    flow: Flow,
    selector: Callable[..., Any] | None,
    partitions: int | None,
    name: str | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Move records to other tasks, by their keys or by those that a selector returns.

    Raises
    ------
    TopologyError
        Keys or values cannot be sent, or ``partitions`` is below 1.
    """
    if selector is not None:
        flow = keyed(flow, selector, name and f"{name}-key", on_error)
    step = flow.begin("repartition", name, on_error=on_error)
    if partitions is not None and partitions < 1:
        raise TopologyError(
            f"repartition at {step.caller.origin} has partitions={partitions}",
            hint="leave it out for all partitions of the job",
        )
    flow.key.check_key(step.name)
    operator = topology.Repartition(
        **step.fields,
        value_serde=flow.value.needed_serde(step.name, "moves them to other tasks"),
        evenly=flow.key.hint is type(None),
        partitions=partitions,
    )
    return step.add(operator)


def looped(
    flow: Flow,
    topic: str | None,
    queues: int,
    serde: Serde[Any] | None,
    name: str | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Add the operator that writes a topic and the one that reads it.

    Raises
    ------
    TopologyError
        Keys or values cannot be sent, or ``queues`` is below 1.
    """
    step = flow.begin("through", name, on_error=on_error)
    if queues < 1:
        raise TopologyError(
            f"through at {step.caller.origin} has queues={queues}",
            hint="leave it out for 8 queues",
        )
    flow.key.check_key(step.name)
    serde = serde or flow.value.needed_serde(step.name, "writes them to a topic")
    has_keys = flow.key.hint is not type(None)
    place = len(flow.builder.operators) + 1
    writer = topology.Through(
        **step.fields,
        topic=topology.shuffle_topic(flow.builder.name, place) if topic is None else topic,
        serializer=as_serializer(serde),
        value_serde=serde,
        keyed=has_keys,
        queues=queues,
    )
    step.add(writer)
    reader = topology.ThroughSource(
        name=f"{writer.name}-read",
        parents=(writer.name,),
        origin=step.caller.origin,
        on_error=on_error,
        topic=writer.topic,
        deserializer=with_key(serde, of=object) if has_keys else as_deserializer(serde),
        keyed=has_keys,
        # Watermarks come as messages, and each record carries whether it is late.
        allowed_lateness=timedelta(0),
        idle_timeout=None,
        start="latest",
    )
    return step.add(reader)


def _output(whole: Flow, step: NextOperator, output: str) -> Flow:
    operator = topology.Output(
        name=f"{step.name}-{output}",
        parents=(whole.operator,),
        output=output,
        origin=step.caller.origin,
    )
    whole.builder.add(operator)
    return replace(whole, operator=operator.name)


def _check_mergeable(flows: list[Flow], step: NextOperator) -> None:
    if len(flows) == 1:
        raise TopologyError(
            f"merge at {step.caller.origin} names no other stream",
            hint="for example web.merge(shop, phone)",
        )
    for flow in flows:
        if flow.builder is not step.flow.builder:
            raise TopologyError(
                f"merge at {step.caller.origin} takes '{flow.operator}' of builder"
                f" '{flow.builder.name}' into builder '{step.flow.builder.name}'",
                hint="read its topic with a source of this builder",
            )


def _common(found: list[Known], step: NextOperator, serde: Serde[Any] | None = None) -> Known:
    """Return what is known of keys or values that come from all of these streams."""
    first = found[0]
    if serde is None and all((k.hint, k.serde) == (first.hint, first.serde) for k in found):
        return first
    same_type = all(known.hint == first.hint for known in found)
    return step.known(first.hint if same_type else Any, serde)
