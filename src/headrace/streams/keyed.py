"""Keyed streams and tables: what is kept per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from headrace import serdes
from headrace.errors import TopologyError
from headrace.streams.aggregates.descriptions import (
    Gathered,
    Gathering,
    gather_count,
    gather_custom,
    gather_reduce,
    gather_sum,
    of_updates,
)
from headrace.streams.tables import Table
from headrace.topology import Accumulator, Aggregate, Emit, ErrorPolicy
from headrace.topology.stages import gives_updates

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import AggregateOptions, ValueOptions
    from headrace.streams.sources import Known, NextOperator
    from headrace.streams.windowed import WindowedStream
    from headrace.topology.windows import Windows


K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")
R = TypeVar("R")
Number = TypeVar("Number", bound=int | float | Decimal)


class KeyedStream(Gathered[K, V]):
    """A stream whose records can be gathered by key.

    Every aggregate gives a :class:`Table`.  ``emit="update"`` gives the latest result of each key
    that changed, once per batch; ``emit="each"`` gives one result per record.
    """

    def __repr__(self) -> str:
        return f"<keyed stream '{self._flow.operator}'>"

    @overload
    def map_values(
        self,
        function: Callable[[V], V2],
        **options: Unpack[ValueOptions[V2]],
    ) -> KeyedStream[K, V2]: ...
    @overload
    def map_values(
        self,
        function: Callable[[K, V], V2],
        **options: Unpack[ValueOptions[V2]],
    ) -> KeyedStream[K, V2]: ...
    def map_values(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Replace the value; see :meth:`Stream.map_values`."""
        return KeyedStream(self._map_values(function, name, serde, on_error))

    @overload
    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]],
        **options: Unpack[ValueOptions[V2]],
    ) -> KeyedStream[K, V2]: ...
    @overload
    def flat_map_values(
        self,
        function: Callable[[K, V], Iterable[V2]],
        **options: Unpack[ValueOptions[V2]],
    ) -> KeyedStream[K, V2]: ...
    def flat_map_values(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Return any number of values for one; see :meth:`Stream.flat_map_values`."""
        return KeyedStream(self._flat_map_values(function, name, serde, on_error))

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
        return self._gather(step, gather_count(step), emit)

    @overload
    def sum(
        self: KeyedStream[K, Number],
        selector: None = None,
        **options: Unpack[AggregateOptions],
    ) -> Table[K, Number]: ...
    @overload
    def sum(
        self,
        selector: Callable[[V], Number],
        **options: Unpack[AggregateOptions],
    ) -> Table[K, Number]: ...
    def sum(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).sum(lambda order: order["price"])
        <table 'sum-orders'>
        """
        step = self._aggregate_step("sum", name, emit, on_error)
        return self._gather(step, gather_sum(step, selector), emit)

    def reduce(
        self,
        function: Callable[[V, V], V],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

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
        step = self._aggregate_step("reduce", name, emit, on_error)
        return self._gather(step, gather_reduce(step, function, serde), emit)

    def aggregate(
        self,
        accumulator: Accumulator[V, R] | Callable[[], Accumulator[V, R]],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
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
        on_error
            What becomes of a record on which the function raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

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
        step = self._aggregate_step("aggregate", name, emit, on_error)
        return self._gather(step, gather_custom(step, accumulator, serde), emit)

    def window(self, windows: Windows, *, grace: timedelta = timedelta(0)) -> WindowedStream[K, V]:
        """Divide the records of each key into windows.

        Parameters
        ----------
        windows
            What :func:`headrace.tumbling`, :func:`headrace.hopping`, :func:`headrace.sliding`,
            :func:`headrace.session` or :func:`headrace.count_window` gives.
        grace
            How long a window stays open behind its end, and how much later than the source's
            ``allowed_lateness`` says a record may come.

        Raises
        ------
        TopologyError
            The grace is negative.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> words.window(tumbling(timedelta(minutes=1))).count()
        <windowed table 'count-words'>
        """
        from headrace.streams.windowed import WindowedStream

        return WindowedStream(self._flow, windows, grace)

    def _aggregate_step(
        self, label: str, name: str | None, emit: str, on_error: ErrorPolicy = "fail"
    ) -> NextOperator:
        step = self._flow.begin(label, name, on_error=on_error)
        if emit not in ("update", "each"):
            raise TopologyError(
                f"{label} at {step.caller.origin} has emit={emit!r}",
                hint="emit is 'update' (latest result per key and batch) or 'each' (one per record)",
            )
        self._flow.key.check_key(step.name)
        return step

    def _gather(self, step: NextOperator, gathering: Gathering, emit: Emit) -> Table[K, Any]:
        """Add an aggregate; all aggregates end here."""
        if gives_updates(step.flow.builder.operators, step.flow.operator):
            gathering = of_updates(gathering, step, emit)
        gathering.check_travel(step, combined=emit == "update" and gathering.merges)
        operator = Aggregate(
            **step.fields, aggregation=gathering.aggregation, key_serde=serdes.key, emit=emit
        )
        return self._table(step, operator, gathering.result)

    def _table(self, step: NextOperator, operator: Aggregate, value: Known) -> Table[K, Any]:
        """Add an aggregate that is described in full; windows gather in another way."""
        return Table(step.add(operator, value=value))
