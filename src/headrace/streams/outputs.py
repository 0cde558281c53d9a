"""Where records leave the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, overload

from headrace.errors import TopologyError
from headrace.serdes import Serde, Serializer, as_serializer
from headrace.serdes.inference import result_hint
from headrace.streams._records import BaseStream
from headrace.streams.sources import Known, record_function
from headrace.topology import Peek, Sink
from headrace.topology.callers import Caller, caller

if TYPE_CHECKING:
    from headrace.streams._options import StepOptions
    from headrace.streams.sources import Flow
    from headrace.topology import ErrorPolicy

__all__ = ["End", "Outputs"]

K = TypeVar("K")
V = TypeVar("V")


class Outputs(BaseStream[K, V]):
    """The ends of a stream."""

    def print(self, *, label: str = "", name: str | None = None) -> Self:
        """Print each record as ``(key=..., value=...)`` and pass it on.

        Lines appear where the record is handled: on the output of Spark's workers, or of the
        process that runs the test driver.

        Parameters
        ----------
        label
            Stands before each line.
        name
            Name of the operator.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("lines", serdes.string).print(label="line ").sink("out", serdes.string)
        <end of 'sink-out'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("lines", serdes.string).send("to be")
        line (key=None, value='to be')
        """
        step = self._flow.begin("print", name)
        operator = Peek(**step.fields, function=Printer(label), takes_key=True)
        return self._same(step.add(operator))

    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Serde[V],
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        **options: Unpack[StepOptions],
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Serializer[K, V],
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        **options: Unpack[StepOptions],
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Callable[[V], bytes],
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        **options: Unpack[StepOptions],
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Callable[[K, V], bytes],
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        **options: Unpack[StepOptions],
    ) -> End: ...
    def sink(
        self,
        topic: str | Callable[..., str],
        serializer: Any,
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End:
        """Write the records to a topic; nothing follows.

        The key travels beside the body, in the message's ``KEYS`` (see :mod:`headrace.keys`), and
        decides its queue.  A record whose value is None becomes a message without a body: the
        tombstone that deletes its key from a table.

        Parameters
        ----------
        topic
            Name of the topic; or a function that chooses it for each record, out of ``topics``.
        serializer
            A serde; or a callable that gives the body for a value, or for key and value when it
            has two required parameters.
        topics
            What the function may choose: all of them must exist when the job starts, and a record
            for any other stops it.
        key
            Gives the message's key in place of the record's; None for no key.
        partition
            Gives the number of the message's queue, from 0, in place of the key.
        name
            Name of the operator, ``sink-TOPIC`` unless given.
        on_error
            What becomes of a record that cannot be written: ``"fail"`` stops the job, ``"skip"``
            counts it, ``"topic:NAME"`` sends the message that it comes from to that topic.

        Raises
        ------
        TopologyError
            The serializer is neither a serde nor callable; keys are of a known type that is not
            plain data; a function is given for the topic without ``topics``, or the other way
            round.

        Notes
        -----
        Functions for ``topic``, ``key`` and ``partition`` take the value, or key and value.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.sink("copies", lambda line: line.encode())
        <end of 'sink-copies'>
        >>> lines.sink(lambda line: f"log-{line[:4]}", serdes.string, topics=["log-WARN", "log-INFO"])
        <end of 'sink-log-WARN'>
        """
        made_by = caller()
        origin, topics = made_by.origin, tuple(topics)
        names = (topic,) if isinstance(topic, str) else topics
        what = f"sink to '{names[0] if names else topic}'"
        if isinstance(topic, str) == bool(topics):
            raise TopologyError(
                f"{what} at {origin}: topics= names what a function may choose, and only that",
                hint='for example sink(lambda order: order.kind, serdes.json, topics=["a", "b"])',
            )
        try:
            writer = as_serializer(serializer)
        except TypeError as error:
            raise TopologyError(
                f"{what} at {origin}: {error}", hint="for example sink(topic, serdes.json)"
            ) from None
        flow = self._flow
        operator = Sink(
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


class End:
    """What a sink leaves: nothing that an operator could be added to.

    Parameters
    ----------
    sink
        The sink.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __repr__(self) -> str:
        return f"<end of '{self._sink.name}'>"

    @property
    def name(self) -> str:
        """Name of the sink."""
        return self._sink.name

    if not TYPE_CHECKING:
        # Only for those who do without a type checker: it knows that there is no such method.

        def __getattr__(self, name: str) -> NoReturn:
            from headrace.streams.keyed import KeyedStream
            from headrace.streams.tables import Table

            if name.startswith("_") or not (hasattr(KeyedStream, name) or hasattr(Table, name)):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message)
            raise TopologyError(
                f"{name} at {caller().origin} stands after sink '{self._sink.name}' (made at"
                f" {self._sink.origin}), and nothing comes out of a sink",
                hint="keep the stream in a variable and branch before the sink",
            )


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints records."""

    label: str

    def __call__(self, key: object, value: object) -> None:
        """Print one record."""
        print(f"{self.label}(key={key!r}, value={value!r})")  # noqa: T201 - what it is for
