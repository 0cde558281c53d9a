"""Keyed streams and tables: what is kept per key."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from headrace import serdes
from headrace.errors import HeadraceError, TopologyError
from headrace.serdes.inference import hint_name, result_hint
from headrace.streams._calls import check_function
from headrace.streams.stream import Stream
from headrace.topology import (
    Accumulator,
    AccumulatorSerde,
    Aggregate,
    Copies,
    Emit,
    ToStream,
    mergeable,
)

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._flow import Flow, Known, Step

__all__ = ["KeyedStream", "Table"]

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")
R = TypeVar("R")
Number = TypeVar("Number", bound=int | float | Decimal)


class KeyedStream(Stream[K, V]):
    """A stream whose records can be gathered by key.

    Every aggregate gives a :class:`Table`.  ``emit="update"`` gives the latest result of each key
    that changed, once per batch; ``emit="each"`` gives one result per record.
    """

    def __repr__(self) -> str:
        return f"<keyed stream '{self._flow.operator}'>"

    def map_values(
        self,
        function: Callable[[V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> KeyedStream[K, V2]:
        """Replace the value; see :meth:`Stream.map_values`."""
        return KeyedStream(self._map_values(function, name, serde))

    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
    ) -> KeyedStream[K, V2]:
        """Give any number of values for one; see :meth:`Stream.flat_map_values`."""
        return KeyedStream(self._flat_map_values(function, name, serde))

    def filter(
        self, predicate: Callable[[V], object], *, name: str | None = None
    ) -> KeyedStream[K, V]:
        """Keep the records whose value the predicate finds true; see :meth:`Stream.filter`."""
        return KeyedStream(self._filter(predicate, name))

    def peek(
        self, function: Callable[[V], object], *, name: str | None = None
    ) -> KeyedStream[K, V]:
        """Call a function with each value and pass the record on; see :meth:`Stream.peek`."""
        return KeyedStream(self._peek(function, name))

    def count(self, *, name: str | None = None, emit: Emit = "update") -> Table[K, int]:
        """Count the records of each key; the count never overflows.

        Parameters
        ----------
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower).count()
        <table 'count-words'>
        """
        step = self._aggregate_step("count", name, emit)
        operator = Aggregate(
            **step.fields,
            kind="count",
            key_serde=serdes.key,
            state_serde=serdes.int,
            value_serde=serdes.nothing,
            emit=emit,
        )
        return self._table(step, operator, step.known(int))

    @overload
    def sum(
        self: KeyedStream[K, Number],
        selector: None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
    ) -> Table[K, Number]: ...
    @overload
    def sum(
        self, selector: Callable[[V], Number], *, name: str | None = None, emit: Emit = "update"
    ) -> Table[K, Number]: ...
    def sum(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
    ) -> Table[K, Any]:
        """Add up the values of each key, or the numbers that a selector finds in them.

        Integers never overflow, and an integer added to a float loses nothing but what a float
        cannot hold.

        Parameters
        ----------
        selector
            Takes the value, gives the number; without it the value is the number.
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).sum(lambda order: order["price"])
        <table 'sum-orders'>
        """
        step = self._aggregate_step("sum", name, emit)
        numbers = self._flow.value
        if selector is not None:
            check_function("sum", selector, ("value",), step.caller.origin)
            numbers = step.known(result_hint(selector, step.caller.names))
        state = serdes.int if numbers.hint is builtins.int else serdes.plain
        operator = Aggregate(
            **step.fields,
            kind="sum",
            key_serde=serdes.key,
            state_serde=state,
            value_serde=self._travelling(step, always=emit == "each"),
            function=selector,
            emit=emit,
        )
        return self._table(step, operator, step.known(numbers.hint))

    def reduce(
        self,
        function: Callable[[V, V], V],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        emit: Emit = "update",
    ) -> Table[K, V]:
        """Fold the values of each key into one; the first value stands for itself.

        Parameters
        ----------
        function
            Takes the result so far and the next value, gives the new result.  Values come in the
            order of arrival at the broker.
        name
            Name of the operator and of its state store.
        serde
            Writes the values, on their way and in the state store.
        emit
            ``"update"`` or ``"each"``.

        Raises
        ------
        TopologyError
            The values are of a known type for which there is no serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(len).reduce(max)
        <table 'reduce-words'>
        """
        step = self._aggregate_step("reduce", name, emit)
        check_function("reduce", function, ("result", "value"), step.caller.origin)
        chosen = serde or self._travelling(step, always=True)
        operator = Aggregate(
            **step.fields,
            kind="reduce",
            key_serde=serdes.key,
            state_serde=chosen,
            value_serde=chosen,
            function=function,
            emit=emit,
        )
        return self._table(step, operator, step.known(self._flow.value.hint, chosen))

    def aggregate(
        self,
        accumulator: Accumulator[V, R] | Callable[[], Accumulator[V, R]],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        emit: Emit = "update",
    ) -> Table[K, R]:
        """Fold the values of each key into an accumulator of your own.

        Parameters
        ----------
        accumulator
            An :class:`Accumulator` class; anything else that makes one; or one that has taken
            no value yet, of which each key gets a copy.
        name
            Name of the operator and of its state store.
        serde
            Writes what :meth:`Accumulator.state` gives; plain data unless given.
        emit
            ``"update"`` or ``"each"``.

        Raises
        ------
        TopologyError
            What is given makes no accumulator, or the values are of a known type for which there
            is no serde.

        Examples
        --------
        >>> from headrace import Accumulator, StreamBuilder, serdes
        >>> class Longest(Accumulator[str, str]):
        ...     def __init__(self) -> None:
        ...         self.word = ""
        ...
        ...     def add(self, value: str) -> None:
        ...         self.word = max(self.word, value, key=len)
        ...
        ...     def result(self) -> str:
        ...         return self.word
        >>> words = StreamBuilder("job").source("words", serdes.string)
        >>> words.key_by(lambda word: word[0]).aggregate(Longest)
        <table 'aggregate-words'>
        """
        step = self._aggregate_step("aggregate", name, emit)
        make = Copies(accumulator) if isinstance(accumulator, Accumulator) else accumulator
        sample = _sample(accumulator, step)
        state = AccumulatorSerde(make, serde or serdes.plain)
        _check_state(sample, state, step)
        known = step.known(result_hint(sample.result, step.caller.names))
        operator = Aggregate(
            **step.fields,
            kind="custom",
            key_serde=serdes.key,
            state_serde=state,
            value_serde=self._travelling(step, always=emit == "each" or not mergeable(sample)),
            accumulator=make,
            emit=emit,
        )
        return self._table(step, operator, known)

    def _aggregate_step(self, label: str, name: str | None, emit: str) -> Step:
        step = self._flow.begin(label, name)
        if emit not in ("update", "each"):
            raise TopologyError(
                f"{label} at {step.caller.origin} has emit={emit!r}",
                hint="emit is 'update' (latest result per key and batch) or 'each' (one per record)",
            )
        self._flow.key.check_key(step.name)
        return step

    def _table(self, step: Step, operator: Aggregate, value: Known) -> Table[K, Any]:
        """Add an aggregate that is described in full; windows gather in another way."""
        return Table(step.add(operator, value=value))

    def _travelling(self, step: Step, *, always: bool) -> Serde[Any]:
        """Choose the serde of values on their way to the aggregate, needed only if they go."""
        value: Known = self._flow.value
        if not always:
            return value.serde_or_plain()
        return value.needed_serde(step.name, "needs them in the partition of their key")


def _sample(accumulator: object, step: Step) -> Accumulator[Any, Any]:
    if isinstance(accumulator, Accumulator):
        return accumulator
    check_function("aggregate", accumulator, (), step.caller.origin)
    assert callable(accumulator)
    try:
        sample = accumulator()
    except Exception as error:
        raise TopologyError(
            f"aggregate at {step.caller.origin} could not make an accumulator:"
            f" {type(error).__name__}: {error}",
            hint="give a class or function that can be called without arguments",
        ) from error
    if not isinstance(sample, Accumulator):
        raise TopologyError(
            f"aggregate at {step.caller.origin} needs an Accumulator or what makes one; it got"
            f" {hint_name(type(sample))}",
            hint="derive your class from headrace.Accumulator",
        )
    return sample


def _check_state(sample: Accumulator[Any, Any], serde: AccumulatorSerde, step: Step) -> None:
    try:
        serde.serialize(sample)
    except Exception as error:
        reason = error.message if isinstance(error, HeadraceError) else error
        raise TopologyError(
            f"aggregate at {step.caller.origin}: the state of {hint_name(type(sample))} cannot be"
            f" written by serde {serde!r}: {reason}",
            hint="keep plain data in its attributes, give it a state() and restore(state) that do,"
            " or name a serde with serde=",
        ) from error


class Table(Generic[K, V]):
    """The latest result of each key."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that keeps this table, and of its state store."""
        return self._flow.operator

    def to_stream(self, *, name: str | None = None) -> Stream[K, V]:
        """Give the updates of the table as a stream.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> words.count().to_stream()
        <stream 'to_stream-words'>
        """
        step = self._flow.begin("to_stream", name)
        return Stream(step.add(ToStream(**step.fields)))
