"""Sinks, and ``print``: where records leave the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from headrace import serdes, topology
from headrace.columns.schema import arrow_type
from headrace.errors import TopologyError
from headrace.serdes import Serde, as_serializer
from headrace.serdes.inference import result_hint
from headrace.streams.flow import Flow, Known, NextOperator, check_function, record_function
from headrace.topology.callers import Caller, caller


class End:
    """The end of a stream: no operator can be added after a sink.

    Parameters
    ----------
    sink
        The sink.
    """

    def __init__(self, sink: topology.Operator) -> None:
        self._sink = sink

    def __repr__(self) -> str:
        return f"<end of '{self._sink.name}'>"

    @property
    def name(self) -> str:
        """Name of the sink."""
        return self._sink.name

    if not TYPE_CHECKING:
        # This is for users without a type checker, which knows that there is no such method.

        def __getattr__(self, name: str) -> NoReturn:
            from headrace.streams.keyed import KeyedStream
            from headrace.streams.tables import Table

            if name.startswith("_") or not (hasattr(KeyedStream, name) or hasattr(Table, name)):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message)
            raise TopologyError(
                f"{name} at {caller().origin} comes after sink '{self._sink.name}' (made at"
                f" {self._sink.origin}), but a sink has no output",
                hint="keep the stream in a variable and branch before the sink",
            )


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints records."""

    label: str

    def __call__(self, key: object, value: object) -> None:
        """Print one record."""
        print(f"{self.label}(key={key!r}, value={value!r})")  # noqa: T201 - printing is its purpose


def printed(flow: Flow, label: str, name: str | None) -> Flow:
    """Print each record and pass it on."""
    step = flow.begin("print", name)
    return step.add(topology.Peek(**step.fields, function=Printer(label), takes_key=True))


def written(
    flow: Flow,
    topic: str | Callable[..., str],
    serializer: Any,
    topics: Iterable[str],
    key: Callable[..., object] | None,
    partition: Callable[..., int] | None,
    name: str | None,
    on_error: topology.ErrorPolicy,
) -> End:
    """Write records to a topic, or to the one of several that a function chooses.

    Raises
    ------
    TopologyError
        The serializer is not one, or there is none for the type of the values; keys are not plain
        data; or ``topics`` is missing, or given without a function that chooses.
    """
    made_by = caller()
    origin, topics = made_by.origin, tuple(topics)
    names = (topic,) if isinstance(topic, str) else topics
    what = f"sink to '{names[0] if names else topic}'"
    if isinstance(topic, str) == bool(topics):
        raise TopologyError(
            f"{what} at {origin}: a function that chooses the topic needs topics=, which nothing"
            " else takes",
            hint='for example sink(lambda order: order.kind, serdes.json, topics=["a", "b"])',
        )
    if serializer is None:
        serializer = flow.value.topic_serde(what, origin)
    try:
        writer = as_serializer(serializer)
    except TypeError as error:
        raise TopologyError(
            f"{what} at {origin}: {error}", hint="for example sink(topic, serdes.json)"
        ) from None
    operator = topology.Sink(
        name=flow.builder.name_for("sink", names[0], name),
        parents=(flow.operator,),
        origin=origin,
        on_error=on_error,
        topic=topic if isinstance(topic, str) else "",
        serializer=writer,
        choose=None if isinstance(topic, str) else record_function(what, topic, origin),
        choices=() if isinstance(topic, str) else names,
        message_key=None if key is None else record_function(f"key of {what}", key, origin),
        queue_number=None
        if partition is None
        else record_function(f"partition of {what}", partition, origin),
    )
    _message_keys(flow, key, made_by).check_key(operator.name)
    flow.builder.add(operator)
    return End(operator)


def _message_keys(flow: Flow, key: Callable[..., object] | None, made_by: Caller) -> Known:
    if key is None:
        return flow.key
    return Known(result_hint(key, made_by.names), None, flow.operator, made_by.origin)


# Committed batches for code outside the transaction.


def batches_to_function(
    flow: Flow,
    function: Callable[..., object],
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> End:
    """Call a function with each committed batch."""
    step = flow.begin("for_each_batch", name, on_error=on_error)
    what = f"for_each_batch '{step.name}'"
    check_function(what, function, ("records", "token"), step.caller.origin)
    known = serde or flow.value.needed_serde(step.name, "writes them to its topic")
    operator = topology.ForEachBatch(**_batch_fields(step, known), function=function)
    step.add(operator)
    return End(operator)


def batches_to_spark(
    flow: Flow,
    writer: Callable[..., object],
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> End:
    """Hand each committed batch to one of Spark's writers."""
    step = flow.begin("sink_dataframe", name, on_error=on_error)
    what = f"sink_dataframe '{step.name}'"
    check_function(what, writer, ("frame", "token"), step.caller.origin)
    known = serde or flow.value.needed_serde(step.name, "writes them to its topic")
    if serde is None and isinstance(known, serdes.PlainSerde) and flow.value.columns is None:
        known = serdes.json
    operator = topology.SinkDataFrame(
        **_batch_fields(step, known), writer=topology.DriverFunction(writer)
    )
    step.add(operator)
    return End(operator)


def _batch_fields(step: NextOperator, serde: Serde[Any]) -> dict[str, Any]:
    flow = step.flow
    flow.key.check_key(step.name)
    job = flow.builder.name
    return {
        **step.fields,
        "topic": topology.batch_topic(job, step.name),
        "done_topic": topology.done_topic(job, step.name),
        "serializer": as_serializer(serde),
        "value_serde": serde,
        "schema": flow.value.columns or serde.schema,
        "key_type": arrow_type(flow.key.hint) or pa.string(),
    }
