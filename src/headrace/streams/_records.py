"""What every stream does with each record on its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, Unpack, overload

from headrace.errors import TopologyError
from headrace.serdes.inference import item_hint, pair_hints, result_hint
from headrace.streams.sources import check_function, check_record_function
from headrace.topology import Filter, FlatMap, FlatMapValues, Map, MapAsync, MapValues, Peek

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import StepOptions, ValueOptions
    from headrace.streams.sources import Flow, NextOperator
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy


# What is said to those who look for a method where it is not.

_STEPS = {
    "Stream": ("KeyedStream", "what belongs to a key needs key_by(...) or group_by_key() first"),
    "KeyedStream": ("WindowedTable", "only what gathers by windows or joins by time has it"),
    "Table": ("Stream", "a table becomes a stream with to_stream()"),
    "WindowedTable": ("Stream", "a windowed table becomes a stream with to_stream()"),
    "WindowedStream": ("Stream", "aggregate first, for example with count(), then to_stream()"),
    "StreamJoin": ("Stream", "a join is made by apply(function)"),
    "TableLookup": ("Stream", "a join is made by apply(function)"),
}


def no_method(thing: object, name: str) -> AttributeError:
    """Make the error for a method that another step of the chain has.

    Caller: ``__getattr__`` of what stands in a chain, which type checkers do not see.
    """
    from headrace import streams

    message = f"{type(thing).__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        for kind in type(thing).__mro__:
            owner, hint = _STEPS.get(kind.__name__, ("", ""))
            if owner and hasattr(getattr(streams, owner), name):
                message += f": {hint}"
                break
    return AttributeError(message, name=name, obj=thing)


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class BaseStream(Generic[K, V]):
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

    @overload
    def map_values(
        self,
        function: Callable[[V], V2],
        **options: Unpack[ValueOptions[V2]],
    ) -> Stream[K, V2]: ...
    @overload
    def map_values(
        self,
        function: Callable[[K, V], V2],
        **options: Unpack[ValueOptions[V2]],
    ) -> Stream[K, V2]: ...
    def map_values(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Replace the value; the key stays.

        Parameters
        ----------
        function
            Takes the value, or key and value, gives a new value.
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

    @overload
    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        **options: Unpack[ValueOptions[V2]],
    ) -> Stream[K, V2]: ...
    @overload
    def flat_map_values(
        self,
        function: Callable[[K, V], Iterable[V2]],
        **options: Unpack[ValueOptions[V2]],
    ) -> Stream[K, V2]: ...
    def flat_map_values(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Give any number of values for one; the key stays.

        Parameters
        ----------
        function
            Takes the value, or key and value, gives an iterable of new values.
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

    def map_async(
        self,
        function: Callable[..., Awaitable[V2]],
        *,
        max_in_flight: int = 100,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Stream[K, V2]:
        """Replace the value by one that is awaited, for many records at a time.

        Results keep the order of the records.  All calls of a process run on one event loop, so
        a session that the function keeps open serves later batches too.  After a failure a batch
        is repeated: what the function does outside may happen more than once.

        Parameters
        ----------
        function
            A coroutine function of the value, or of key and value.
        max_in_flight
            So many calls wait at the same time, in each task.
        name
            Name of the operator.
        serde
            Writes the new values.
        on_error
            As for :meth:`map_values`.

        Raises
        ------
        TopologyError
            The function cannot be called so, or ``max_in_flight`` is below 1.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> async def look_up(name: str) -> str:
        ...     return name.upper()
        >>> StreamBuilder("job").source("names", serdes.string).map_async(look_up)
        <stream 'map_async-names'>
        """
        step = self._flow.begin("map_async", name, on_error=on_error)
        takes_key = check_record_function("map_async", function, step.caller.origin, awaits=True)
        if max_in_flight < 1:
            raise TopologyError(
                f"map_async at {step.caller.origin} has max_in_flight={max_in_flight}",
                hint="at least one call must wait at a time",
            )
        hints = inspect.iscoroutinefunction(function)
        hint = result_hint(function, step.caller.names) if hints else Any
        operator = MapAsync(
            **step.fields, function=function, takes_key=takes_key, max_in_flight=max_in_flight
        )
        return self._stream(step.add(operator, value=step.known(hint, serde)))

    @overload
    def filter(
        self,
        predicate: Callable[[V], object],
        **options: Unpack[StepOptions],
    ) -> Self: ...
    @overload
    def filter(
        self,
        predicate: Callable[[K, V], object],
        **options: Unpack[StepOptions],
    ) -> Self: ...
    def filter(
        self,
        predicate: Callable[..., Any],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Self:
        """Keep the records whose value, or key and value, the predicate finds true.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).filter(str.strip)
        <stream 'filter-lines'>
        """
        step, takes_key = self._record_step("filter", predicate, name, on_error)
        return self._same(step.add(Filter(**step.fields, function=predicate, takes_key=takes_key)))

    @overload
    def peek(
        self,
        function: Callable[[V], object],
        **options: Unpack[StepOptions],
    ) -> Self: ...
    @overload
    def peek(
        self,
        function: Callable[[K, V], object],
        **options: Unpack[StepOptions],
    ) -> Self: ...
    def peek(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Self:
        """Call a function with each value, or key and value, and pass the record on.

        The function runs in Spark's workers, again for a batch that is repeated after a failure.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).peek(print)
        <stream 'peek-lines'>
        """
        step, takes_key = self._record_step("peek", function, name, on_error)
        return self._same(step.add(Peek(**step.fields, function=function, takes_key=takes_key)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def _stream(self, flow: Flow) -> Stream[Any, Any]:
        from headrace.streams.stream import Stream

        return Stream(flow)

    def _same(self, flow: Flow) -> Self:
        made = copy(self)
        made._flow = flow  # noqa: SLF001 - a copy of this very object
        return made

    def _step(
        self,
        label: str,
        function: object,
        parameters: tuple[str, ...],
        name: str | None,
        on_error: ErrorPolicy = "fail",
    ) -> NextOperator:
        step = self._flow.begin(label, name, on_error=on_error)
        check_function(label, function, parameters, step.caller.origin)
        return step

    def _record_step(
        self, label: str, function: object, name: str | None, on_error: ErrorPolicy = "fail"
    ) -> tuple[NextOperator, bool]:
        step = self._flow.begin(label, name, on_error=on_error)
        return step, check_record_function(label, function, step.caller.origin)

    def _map_values(
        self,
        function: Callable[..., Any],
        name: str | None,
        serde: Serde[Any] | None,
        on_error: ErrorPolicy,
    ) -> Flow:
        step, takes_key = self._record_step("map_values", function, name, on_error)
        known = step.known(result_hint(function, step.caller.names), serde)
        operator = MapValues(**step.fields, function=function, takes_key=takes_key)
        return step.add(operator, value=known)

    def _flat_map_values(
        self,
        function: Callable[..., Any],
        name: str | None,
        serde: Serde[Any] | None,
        on_error: ErrorPolicy,
    ) -> Flow:
        step, takes_key = self._record_step("flat_map_values", function, name, on_error)
        known = step.known(item_hint(result_hint(function, step.caller.names)), serde)
        operator = FlatMapValues(**step.fields, function=function, takes_key=takes_key)
        return step.add(operator, value=known)
