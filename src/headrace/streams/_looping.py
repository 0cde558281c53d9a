"""Streams that go through a topic of the job's own: see :meth:`Stream.through`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError
from headrace.serdes import as_deserializer, as_serializer, with_key
from headrace.topology import Through, ThroughSource, shuffle_topic

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._flow import Flow
    from headrace.topology import ErrorPolicy

__all__ = ["loop"]


def loop(
    flow: Flow,
    topic: str | None,
    queues: int,
    serde: Serde[Any] | None,
    name: str | None,
    on_error: ErrorPolicy,
) -> Flow:
    """Add the operator that writes the topic and the one that reads it.

    Raises
    ------
    TopologyError
        Keys or values cannot travel, or ``queues`` is below 1.
    """
    step = flow.begin("through", name, on_error=on_error)
    if queues < 1:
        raise TopologyError(
            f"through at {step.caller.origin} has queues={queues}",
            hint="leave it out for 8 queues",
        )
    flow.key.check_key(step.name)
    serde = serde or flow.value.needed_serde(step.name, "writes them to a topic")
    keyed = flow.key.hint is not type(None)
    place = len(flow.builder.operators) + 1
    writer = Through(
        **step.fields,
        topic=shuffle_topic(flow.builder.name, place) if topic is None else topic,
        serializer=as_serializer(serde),
        value_serde=serde,
        keyed=keyed,
        queues=queues,
    )
    step.add(writer)
    reader = ThroughSource(
        name=f"{writer.name}-read",
        parents=(writer.name,),
        origin=step.caller.origin,
        on_error=on_error,
        topic=writer.topic,
        deserializer=with_key(serde, of=object) if keyed else as_deserializer(serde),
        keyed=keyed,
        # Watermarks come as messages, records bring with them whether they are late.
        allowed_lateness=timedelta(0),
        idle_timeout=None,
        start="latest",
    )
    return step.add(reader)
