"""What every stream does with each record on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.serdes.inference import item_hint, pair_hints, result_hint
from headrace.streams._calls import check_function
from headrace.topology import Filter, FlatMap, FlatMapValues, Map, MapValues, Peek

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._flow import Flow, Step
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy

__all__ = ["Records"]

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class Records(Generic[K, V]):
    """A place in the graph, and the operators that need neither keys nor state."""

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
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.map(lambda key, order: (order["customer"], order["price"]))
        <stream 'map-orders'>
        """
        step = self._step("map", function, ("key", "value"), name, on_error)
        key_hint, value_hint = pair_hints(result_hint(function, step.caller.names))
        operator = Map(**step.fields, function=function)
        return self._stream(
            step.add(operator, key=step.known(key_hint), value=step.known(value_hint, serde))
        )

    def map_values(
        self,
        function: Callable[[V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).map_values(len)
        <stream 'map_values-lines'>
        """
        return self._stream(self._map_values(function, name, serde, on_error))

    def flat_map(
        self,
        function: Callable[[K, V], Iterable[tuple[K2, V2]]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.flat_map(lambda key, line: [(word, 1) for word in line.split()])
        <stream 'flat_map-lines'>
        """
        step = self._step("flat_map", function, ("key", "value"), name, on_error)
        items = item_hint(result_hint(function, step.caller.names))
        key_hint, value_hint = pair_hints(items)
        operator = FlatMap(**step.fields, function=function)
        return self._stream(
            step.add(operator, key=step.known(key_hint), value=step.known(value_hint, serde))
        )

    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).flat_map_values(str.split)
        <stream 'flat_map_values-lines'>
        """
        return self._stream(self._flat_map_values(function, name, serde, on_error))

    def filter(
        self,
        predicate: Callable[[V], object],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Stream[K, V]:
        """Keep the records whose value the predicate finds true.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).filter(str.strip)
        <stream 'filter-lines'>
        """
        return self._stream(self._filter(predicate, name, on_error))

    def peek(
        self,
        function: Callable[[V], object],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Stream[K, V]:
        """Call a function with each value and pass the record on.

        The function runs in Spark's workers, again for a batch that is repeated after a failure.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).peek(print)
        <stream 'peek-lines'>
        """
        return self._stream(self._peek(function, name, on_error))

    def _stream(self, flow: Flow) -> Stream[Any, Any]:
        from headrace.streams.stream import Stream

        return Stream(flow)

    def _step(
        self,
        label: str,
        function: object,
        parameters: tuple[str, ...],
        name: str | None,
        on_error: ErrorPolicy = "fail",
    ) -> Step:
        step = self._flow.begin(label, name, on_error=on_error)
        check_function(label, function, parameters, step.caller.origin)
        return step

    def _map_values(
        self,
        function: Callable[[V], V2],
        name: str | None,
        serde: Serde[V2] | None,
        on_error: ErrorPolicy,
    ) -> Flow:
        step = self._step("map_values", function, ("value",), name, on_error)
        known = step.known(result_hint(function, step.caller.names), serde)
        return step.add(MapValues(**step.fields, function=function), value=known)

    def _flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        name: str | None,
        serde: Serde[V2] | None,
        on_error: ErrorPolicy,
    ) -> Flow:
        step = self._step("flat_map_values", function, ("value",), name, on_error)
        known = step.known(item_hint(result_hint(function, step.caller.names)), serde)
        return step.add(FlatMapValues(**step.fields, function=function), value=known)

    def _filter(
        self, predicate: Callable[[V], object], name: str | None, on_error: ErrorPolicy
    ) -> Flow:
        step = self._step("filter", predicate, ("value",), name, on_error)
        return step.add(Filter(**step.fields, function=predicate))

    def _peek(
        self, function: Callable[[V], object], name: str | None, on_error: ErrorPolicy
    ) -> Flow:
        step = self._step("peek", function, ("value",), name, on_error)
        return step.add(Peek(**step.fields, function=function))
