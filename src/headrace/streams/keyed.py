"""Keyed streams: aggregates and windows by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from headrace.streams import aggregates
from headrace.streams.records import replaced
from headrace.streams.stream import Stream
from headrace.streams.tables import Table
from headrace.topology import Accumulator, Emit, ErrorPolicy, FlatMapValues, MapValues

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.flow import AggregateOptions, ValueOptions
    from headrace.streams.windowed import WindowedStream
    from headrace.topology.windows import Windows


K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")
R = TypeVar("R")
Number = TypeVar("Number", bound=int | float | Decimal)
Real = TypeVar("Real", bound=float)


class Comparable(Protocol):
    """A value that ``min``, ``max`` and ``top`` can compare."""

    def __lt__(self, other: Any, /) -> bool: ...


class KeyedStream(Stream[K, V]):
    """A stream whose records can be aggregated by key.

    Every aggregate returns a :class:`Table`, and takes

    * ``name``: the name of the operator and of its state store;
    * ``emit``: ``"update"`` emits the latest result of each key that changed, once per batch;
      ``"each"`` emits one result per record;
    * ``on_error``: see :class:`Stream`.

    An aggregate that keeps or moves values of a known type without a serde raises a
    ``TopologyError``.
    """

    def __repr__(self) -> str:
        return f"<keyed stream '{self._flow.operator}'>"

    @overload
    def map_values(
        self, function: Callable[[V], V2], **options: Unpack[ValueOptions[V2]]
    ) -> KeyedStream[K, V2]: ...
    @overload
    def map_values(
        self, function: Callable[[K, V], V2], **options: Unpack[ValueOptions[V2]]
    ) -> KeyedStream[K, V2]: ...
    def map_values(
        self,
        function: Callable[[V], V2] | Callable[[K, V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> KeyedStream[K, V2]:
        """Replace the value; see :meth:`Stream.map_values`."""
        return KeyedStream(replaced(self._flow, MapValues, function, name, serde, on_error))

    @overload
    def flat_map_values(
        self, function: Callable[[V], Iterable[V2]], **options: Unpack[ValueOptions[V2]]
    ) -> KeyedStream[K, V2]: ...
    @overload
    def flat_map_values(
        self, function: Callable[[K, V], Iterable[V2]], **options: Unpack[ValueOptions[V2]]
    ) -> KeyedStream[K, V2]: ...
    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]] | Callable[[K, V], Iterable[V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> KeyedStream[K, V2]:
        """Replace each value by any number of others; see :meth:`Stream.flat_map_values`."""
        return KeyedStream(replaced(self._flow, FlatMapValues, function, name, serde, on_error))

    def count(self, *, name: str | None = None, emit: Emit = "update") -> Table[K, int]:
        """Count the records of each key; the count never overflows.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower).count()
        <table 'count-words'>
        """
        return self._gather(aggregates.count(), name, emit)

    def count_distinct(
        self,
        selector: Callable[[V], object] | None = None,
        *,
        approximate: bool = False,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, int]:
        """Count the different values of each key, or the different results of a selector.

        Values are compared as keys are: ``1``, ``1.0`` and ``True`` are three values.

        Parameters
        ----------
        selector
            Takes the value and returns plain data that identifies it; without a selector the value
            identifies itself.
        approximate
            Estimate with HyperLogLog: at most 4 KiB of state for each key, with a standard error
            of 1.6 %.  The exact count keeps each different value, and writes all values of a key
            again when a new one is added.

        Raises
        ------
        TopologyError
            The values are of a known type that is not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> visits = StreamBuilder("job").source("visits", serdes.json)
        >>> visits.key_by(lambda v: v["page"]).count_distinct(lambda v: v["user"])
        <table 'count_distinct-visits'>
        """
        measure = aggregates.count_distinct(selector, approximate=approximate)
        return self._gather(measure, name, emit, on_error)

    @overload
    def sum(
        self: KeyedStream[K, Number], selector: None = None, **options: Unpack[AggregateOptions]
    ) -> Table[K, Number]: ...
    @overload
    def sum(
        self, selector: Callable[[V], Number], **options: Unpack[AggregateOptions]
    ) -> Table[K, Number]: ...
    def sum(
        self,
        selector: Callable[[V], Number] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Number]:
        """Add up the values of each key, or the numbers that a selector returns for them.

        Integers never overflow, and adding an integer to a float is as exact as a float can be.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).sum(lambda order: order["price"])
        <table 'sum-orders'>
        """
        return self._gather(aggregates.sum_(selector), name, emit, on_error)

    @overload
    def avg(
        self: KeyedStream[K, Decimal], selector: None = None, **options: Unpack[AggregateOptions]
    ) -> Table[K, Decimal]: ...
    @overload
    def avg(
        self: KeyedStream[K, Real], selector: None = None, **options: Unpack[AggregateOptions]
    ) -> Table[K, float]: ...
    @overload
    def avg(
        self, selector: Callable[[V], Decimal], **options: Unpack[AggregateOptions]
    ) -> Table[K, Decimal]: ...
    @overload
    def avg(
        self, selector: Callable[[V], float], **options: Unpack[AggregateOptions]
    ) -> Table[K, float]: ...
    def avg(
        self,
        selector: Callable[[V], Decimal] | Callable[[V], float] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Decimal] | Table[K, float]:
        """Average the values of each key, or the numbers that a selector returns for them.

        The state is a count and a sum, so the average of integers is the float nearest to the true
        average, and that of decimals is exact to 28 digits.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).avg(lambda order: order["price"])
        <table 'avg-orders'>
        """
        return self._gather(aggregates.avg(selector), name, emit, on_error)

    def min(
        self,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Keep the value with the least result of a selector; of equal ones, the first.

        Parameters
        ----------
        selector
            Takes the value and returns what is compared; without it the values are compared.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).min(lambda order: order["price"])
        <table 'min-orders'>
        """
        return self._gather(aggregates.min_(selector), name, emit, on_error)

    def max(
        self,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Keep the value with the greatest result of a selector; of equal ones, the first.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).max(lambda order: order["price"])
        <table 'max-orders'>
        """
        return self._gather(aggregates.max_(selector), name, emit, on_error)

    def top(
        self,
        n: int,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, list[V]]:
        """Keep the ``n`` values with the greatest results of a selector, best first.

        Of equal ones, the first are kept; without a selector the values are compared.

        Raises
        ------
        TopologyError
            ``n`` is not positive.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).top(3, lambda order: order["price"])
        <table 'top-orders'>
        """
        return self._gather(aggregates.top(n, selector), name, emit, on_error)

    def collect(
        self,
        *,
        distinct: bool = False,
        limit: int | None = None,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, list[V]]:
        """Keep the values of each key as a list, in the order of arrival at the broker.

        Each new value writes the whole list of its key again, so give a limit if lists grow.

        Parameters
        ----------
        distinct
            Keep each value once; values are equal if their serde writes the same bytes.
        limit
            Keep at most this many values, the first ones.

        Raises
        ------
        TopologyError
            The limit is not positive.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> words = StreamBuilder("job").source("words", serdes.string)
        >>> words.key_by(len).collect(distinct=True, limit=100)
        <table 'collect-words'>
        """
        return self._gather(
            aggregates.collect(distinct=distinct, limit=limit), name, emit, on_error
        )

    def reduce(
        self,
        function: Callable[[V, V], V],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Fold the values of each key into one; the first value is the first result.

        Parameters
        ----------
        function
            Takes the result so far and the next value, and returns the new result.  Values come in
            the order of arrival at the broker.
        serde
            Serializes the values on their way and in the state store.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(len).reduce(max)
        <table 'reduce-words'>
        """
        return self._gather(aggregates.reduce(function, serde=serde), name, emit, on_error)

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
            An :class:`Accumulator` class, a function that returns an accumulator, or an accumulator
            that has taken no value yet, of which each key gets a copy.
        serde
            Serializes what :meth:`Accumulator.state` returns, which must otherwise be plain data.

        Raises
        ------
        TopologyError
            The argument is not an accumulator and does not make one.

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
        return self._gather(aggregates.aggregate(accumulator, serde=serde), name, emit, on_error)

    def agg(
        self,
        *measures: aggregates.Measure[V],
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
        **named: aggregates.Measure[V],
    ) -> Table[K, aggregates.Row]:
        """Compute several aggregates at once: one state, one shuffle, and a dict of the results.

        Parameters
        ----------
        measures
            Made by :func:`headrace.count`, :func:`headrace.sum_` and so on; a result has the name
            of the method unless the measure is ``.named(...)``.
        name, emit, on_error
            As for every aggregate; a record on which one measure fails counts for none.
        named
            Measures, by the names of their results.

        Raises
        ------
        TopologyError
            Two have the same name, or one cannot aggregate the records of this stream.

        Examples
        --------
        >>> from headrace import StreamBuilder, count, max_, serdes, sum_
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).agg(
        ...     count(),
        ...     total=sum_(lambda order: order["price"]),
        ...     dearest=max_(lambda order: order["price"]),
        ... )
        <table 'agg-orders'>
        """
        flow = aggregates.running(
            self._flow,
            "agg",
            lambda step: aggregates.gathered_row(step, measures, named),
            name,
            emit,
            on_error,
        )
        return Table(flow)

    def window(
        self, windows: Windows, *, grace: timedelta | str = timedelta(0)
    ) -> WindowedStream[K, V]:
        """Divide the records of each key into windows.

        Parameters
        ----------
        windows
            The result of :func:`headrace.tumbling`, :func:`headrace.hopping`,
            :func:`headrace.sliding`, :func:`headrace.session` or :func:`headrace.count_window`.
        grace
            How long a window stays open after its end, and how much later than the source's
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

    def _gather(
        self,
        measure: aggregates.Measure[V],
        name: str | None,
        emit: Emit,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Any]:
        flow = aggregates.running(
            self._flow,
            measure.label,
            lambda step: aggregates.gathered(step, measure),
            name,
            emit,
            on_error,
        )
        return Table(flow)
