"""Keyed streams: what is gathered by key."""

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
    """What ``min``, ``max`` and ``top`` compare."""

    def __lt__(self, other: Any, /) -> bool: ...


class KeyedStream(Stream[K, V]):
    """A stream whose records can be gathered by key.

    Every aggregate gives a :class:`Table`, and takes

    * ``name``, that of the operator and of its state store;
    * ``emit``: ``"update"`` gives the latest result of each key that changed, once per batch,
      ``"each"`` gives one result per record;
    * ``on_error``, as operators of a :class:`Stream` do.

    One that keeps or moves values of a known type without a serde raises a ``TopologyError``.
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
        """Return any number of values for one; see :meth:`Stream.flat_map_values`."""
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
        """Count the different values of each key, or different results of a selector.

        Values are told apart as keys are: ``1``, ``1.0`` and ``True`` are three.

        Parameters
        ----------
        selector
            Takes the value, gives plain data that identifies it; without it the value does.
        approximate
            Estimate with HyperLogLog: at most 4 KiB of state for each key, with a standard error
            of 1.6 %.  The exact count keeps each different value, and writes all of a key when
            one joins.

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
        """Add up the values of each key, or the numbers that a selector finds in them.

        Integers never overflow, and an integer added to a float loses nothing but what a float
        cannot hold.

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
        """Average the values of each key, or the numbers that a selector finds in them.

        Number and sum are kept, so the average of integers is the float nearest to the true one,
        and that of decimals is exact to 28 digits.

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
        """Keep the value with the least result of a selector; of equal ones the first.

        Parameters
        ----------
        selector
            Takes the value, gives what is compared; without it the values are compared.

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
        """Keep the value with the greatest result of a selector; of equal ones the first.

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

        Of equal ones the first stays; without a selector the values are compared.

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

        The whole list of a key is written when a value joins: give a limit where lists grow.

        Parameters
        ----------
        distinct
            Keep each value once; values are the same when their serde writes the same bytes.
        limit
            Keep no more than the first so many.

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
        """Fold the values of each key into one; the first value stands for itself.

        Parameters
        ----------
        function
            Takes the result so far and the next value, gives the new result.  Values come in the
            order of arrival at the broker.
        serde
            Writes the values, on their way and in the state store.

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
            An :class:`Accumulator` class; anything else that makes one; or one that has taken
            no value yet, of which each key gets a copy.
        serde
            Writes what :meth:`Accumulator.state` gives; plain data unless given.

        Raises
        ------
        TopologyError
            What is given makes no accumulator.

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
        """Gather several things at once: one state, one shuffle, and a dict of the results.

        Parameters
        ----------
        measures
            Made with :func:`headrace.count`, :func:`headrace.sum_` and their like; each goes by
            the name of its method unless it is ``.named(...)``.
        name, emit, on_error
            As for every aggregate; a record on which one fails counts for none.
        named
            Measures by the name that their result has.

        Raises
        ------
        TopologyError
            Two have one name, or one cannot gather what flows here.

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
