"""Where records leave the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from headrace.errors import TopologyError
from headrace.serdes import Serde, Serializer, as_serializer
from headrace.streams._calls import caller
from headrace.topology import Sink

if TYPE_CHECKING:
    from headrace.streams._flow import Flow
    from headrace.topology import ErrorPolicy

__all__ = ["End", "Outputs"]

K = TypeVar("K")
V = TypeVar("V")


class Outputs(Generic[K, V]):
    """The ends of a stream."""

    _flow: Flow

    @overload
    def sink(
        self,
        topic: str,
        serializer: Serde[V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str,
        serializer: Serializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str,
        serializer: Callable[[V], bytes],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str,
        serializer: Callable[[K, V], bytes],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End: ...
    def sink(
        self,
        topic: str,
        serializer: Any,
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End:
        """Write the records to a topic; nothing follows.

        The key travels beside the body, in the message's ``KEYS`` (see :mod:`headrace.keys`), and
        decides its queue.

        Parameters
        ----------
        topic
            Name of the topic.
        serializer
            A serde; or a callable that gives the body for a value, or for key and value when it
            has two required parameters.
        name
            Name of the operator, ``sink-TOPIC`` unless given.
        on_error
            What becomes of a record that cannot be written: ``"fail"`` stops the job, ``"skip"``
            counts it, ``"topic:NAME"`` sends the message that it comes from to that topic.

        Raises
        ------
        TopologyError
            The serializer is neither a serde nor callable, or keys are of a known type that is
            not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.sink("copies", lambda line: line.encode())
        <end of 'sink-copies'>
        """
        made_by = caller()
        try:
            writer = as_serializer(serializer)
        except TypeError as error:
            raise TopologyError(
                f"sink to '{topic}' at {made_by.origin}: {error}",
                hint="for example sink(topic, serdes.json)",
            ) from None
        flow = self._flow
        operator = Sink(
            name=flow.builder.name_for("sink", topic, name),
            parents=(flow.operator,),
            origin=made_by.origin,
            on_error=on_error,
            topic=topic,
            serializer=writer,
        )
        flow.key.check_key(operator.name)
        flow.builder.add(operator)
        return End(operator)


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
            from headrace.streams.keyed import KeyedStream, Table

            if name.startswith("_") or not (hasattr(KeyedStream, name) or hasattr(Table, name)):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message)
            raise TopologyError(
                f"{name} at {caller().origin} stands after sink '{self._sink.name}' (made at"
                f" {self._sink.origin}), and nothing comes out of a sink",
                hint="keep the stream in a variable and branch before the sink",
            )
