"""Stream: records that flow, and what can be done with each on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from headrace.errors import TopologyError
from headrace.serdes import Serde, Serializer, as_serializer, key
from headrace.serdes.inference import item_hint, pair_hints, result_hint
from headrace.streams._calls import caller, check_function
from headrace.topology import (
    Filter,
    FlatMap,
    FlatMapValues,
    KeyBy,
    Map,
    MapValues,
    Peek,
    Sink,
)

if TYPE_CHECKING:
    from headrace.streams._flow import Flow
    from headrace.streams.keyed import KeyedStream

__all__ = ["End", "Stream"]

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class Stream(Generic[K, V]):
    """Records with keys of type ``K`` and values of type ``V``.

    Made by :meth:`StreamBuilder.source` and by the operators.  A stream can be used more than
    once: each operator added to it is a branch that gets all records.  None is a value like any
    other; ``filter`` and ``flat_map`` drop records.

    Where values must travel between Spark's stages or lie in a state store, they do so by the
    serde that ``serde=`` names on the operator that makes them, else by the one that follows from
    the function's annotations, else as plain data.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<stream '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that gives these records."""
        return self._flow.operator

    def map(
        self,
        function: Callable[[K, V], tuple[K2, V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> Stream[K2, V2]:
        """Replace key and value.

        Parameters
        ----------
        function
            Takes key and value, gives a new pair.
        name
            Name of the operator.
        serde
            Writes the new values.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.map(lambda key, order: (order["customer"], order["price"]))
        <stream 'map-orders'>
        """
        step = self._step("map", function, ("key", "value"), name)
        key_hint, value_hint = pair_hints(result_hint(function, step.caller.names))
        operator = Map(**step.fields, function=function)
        return Stream(
            step.add(operator, key=step.known(key_hint), value=step.known(value_hint, serde))
        )

    def map_values(
        self,
        function: Callable[[V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> Stream[K, V2]:
        """Replace the value; the key stays.

        Parameters
        ----------
        function
            Takes the value, gives a new one.
        name
            Name of the operator.
        serde
            Writes the new values.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).map_values(len)
        <stream 'map_values-lines'>
        """
        return Stream(self._map_values(function, name, serde))

    def flat_map(
        self,
        function: Callable[[K, V], Iterable[tuple[K2, V2]]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> Stream[K2, V2]:
        """Give any number of records for one.

        Parameters
        ----------
        function
            Takes key and value, gives an iterable of new pairs.
        name
            Name of the operator.
        serde
            Writes the new values.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.flat_map(lambda key, line: [(word, 1) for word in line.split()])
        <stream 'flat_map-lines'>
        """
        step = self._step("flat_map", function, ("key", "value"), name)
        items = item_hint(result_hint(function, step.caller.names))
        key_hint, value_hint = pair_hints(items)
        operator = FlatMap(**step.fields, function=function)
        return Stream(
            step.add(operator, key=step.known(key_hint), value=step.known(value_hint, serde))
        )

    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> Stream[K, V2]:
        """Give any number of values for one; the key stays.

        Parameters
        ----------
        function
            Takes the value, gives an iterable of new ones.
        name
            Name of the operator.
        serde
            Writes the new values.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).flat_map_values(str.split)
        <stream 'flat_map_values-lines'>
        """
        return Stream(self._flat_map_values(function, name, serde))

    def filter(self, predicate: Callable[[V], object], *, name: str | None = None) -> Stream[K, V]:
        """Keep the records whose value the predicate finds true.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).filter(str.strip)
        <stream 'filter-lines'>
        """
        return Stream(self._filter(predicate, name))

    def peek(self, function: Callable[[V], object], *, name: str | None = None) -> Stream[K, V]:
        """Call a function with each value and pass the record on.

        The function runs in Spark's workers, again for a batch that is repeated after a failure.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).peek(print)
        <stream 'peek-lines'>
        """
        return Stream(self._peek(function, name))

    def key_by(self, selector: Callable[[V], K2], *, name: str | None = None) -> KeyedStream[K2, V]:
        """Give each record the key that the selector finds in its value.

        Keys are plain data (see :mod:`headrace.keys`); ``1``, ``1.0`` and ``True`` are three keys.

        Parameters
        ----------
        selector
            Takes the value, gives the key.
        name
            Name of the operator.

        Raises
        ------
        TopologyError
            The selector's annotation promises keys that are not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        <keyed stream 'key_by-words'>
        """
        from headrace.streams.keyed import KeyedStream

        step = self._step("key_by", selector, ("value",), name)
        known = step.known(result_hint(selector, step.caller.names))
        known.check_key(step.name)
        return KeyedStream(
            step.add(KeyBy(**step.fields, selector=selector, key_serde=key), key=known)
        )

    def group_by_key(self) -> KeyedStream[K, V]:
        """Go on by the keys that the records have.

        Adds no operator.  A shuffle follows only where the key is not the one of the last shuffle.

        Raises
        ------
        TopologyError
            The keys are of a known type that is not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> counts = StreamBuilder("job").source("counts", serdes.with_key(serdes.json))
        >>> counts.group_by_key()
        <keyed stream 'source-counts'>
        """
        from headrace.streams.keyed import KeyedStream

        self._flow.key.check_key("group_by_key")
        return KeyedStream(self._flow)

    @overload
    def sink(self, topic: str, serializer: Serde[V], *, name: str | None = None) -> End: ...
    @overload
    def sink(self, topic: str, serializer: Serializer[K, V], *, name: str | None = None) -> End: ...
    @overload
    def sink(
        self, topic: str, serializer: Callable[[V], bytes], *, name: str | None = None
    ) -> End: ...
    @overload
    def sink(
        self, topic: str, serializer: Callable[[K, V], bytes], *, name: str | None = None
    ) -> End: ...
    def sink(self, topic: str, serializer: Any, *, name: str | None = None) -> End:
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
            topic=topic,
            serializer=writer,
        )
        flow.key.check_key(operator.name)
        flow.builder.add(operator)
        return End(operator)

    def _step(
        self, label: str, function: object, parameters: tuple[str, ...], name: str | None
    ) -> Any:
        step = self._flow.begin(label, name)
        check_function(label, function, parameters, step.caller.origin)
        return step

    def _map_values(
        self, function: Callable[[V], V2], name: str | None, serde: Serde[V2] | None
    ) -> Flow:
        step = self._step("map_values", function, ("value",), name)
        known = step.known(result_hint(function, step.caller.names), serde)
        flow: Flow = step.add(MapValues(**step.fields, function=function), value=known)
        return flow

    def _flat_map_values(
        self, function: Callable[[V], Iterable[V2]], name: str | None, serde: Serde[V2] | None
    ) -> Flow:
        step = self._step("flat_map_values", function, ("value",), name)
        known = step.known(item_hint(result_hint(function, step.caller.names)), serde)
        flow: Flow = step.add(FlatMapValues(**step.fields, function=function), value=known)
        return flow

    def _filter(self, predicate: Callable[[V], object], name: str | None) -> Flow:
        step = self._step("filter", predicate, ("value",), name)
        flow: Flow = step.add(Filter(**step.fields, function=predicate))
        return flow

    def _peek(self, function: Callable[[V], object], name: str | None) -> Flow:
        step = self._step("peek", function, ("value",), name)
        flow: Flow = step.add(Peek(**step.fields, function=function))
        return flow


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
