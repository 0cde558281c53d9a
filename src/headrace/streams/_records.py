"""What every stream does with each record on its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, Unpack, overload

from headrace.errors import TopologyError
from headrace.serdes import Serde, Serializer, as_serializer
from headrace.serdes.inference import item_hint, pair_hints, result_hint
from headrace.streams.sources import Known, check_function, check_record_function, record_function
from headrace.topology import Filter, FlatMap, FlatMapValues, Map, MapAsync, MapValues, Peek, Sink
from headrace.topology.callers import Caller, caller

if TYPE_CHECKING:
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
        """Send on any number of records for each one.

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
        """Return any number of values for one; the key stays.

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


# Where records leave the graph.


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
