"""Windowed streams: aggregates per key and window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, Unpack, overload

import pyarrow as pa

from headrace import topology
from headrace.columns import Schema
from headrace.columns.aggregates import CellsOf
from headrace.errors import TopologyError
from headrace.streams import aggregates
from headrace.streams.columns import cells_serde, results_of
from headrace.streams.flow import Flow, NextOperator, SinkOptions, WindowOptions, no_method
from headrace.streams.outputs import End, written
from headrace.streams.stream import Stream
from headrace.topology.aggregations import Aggregation
from headrace.topology.operators.columns import WINDOW_COLUMNS, WindowRows
from headrace.topology.stages import gives_updates
from headrace.topology.windows import Windows, milliseconds

if TYPE_CHECKING:
    from headrace.serdes import Serde, Serializer
    from headrace.streams.keyed import Comparable, Number, Real
    from headrace.topology.operators.windows import WindowEmit


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class WindowedStream(Generic[K, V]):
    """The records of each key in windows; :meth:`KeyedStream.window` makes it.

    It has every aggregate of a keyed stream, and each returns a :class:`WindowedTable`.
    ``emit="close"`` emits one result when a window closes; ``emit="update"`` emits the latest
    result of each window that changed, once per batch.
    """

    def __init__(self, flow: Flow, windows: Windows, grace: timedelta | str) -> None:
        self._flow = flow
        self._windows = windows
        self._grace = milliseconds(grace, "grace")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def __repr__(self) -> str:
        return f"<windowed stream '{self._flow.operator}'>"

    def count(
        self, *, name: str | None = None, emit: WindowEmit = "close"
    ) -> WindowedTable[K, V, int]:
        """Count the records of each window; see :meth:`KeyedStream.count`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, session
        >>> clicks = StreamBuilder("job").source("clicks", serdes.string).key_by(str.lower)
        >>> clicks.window(session(timedelta(minutes=30))).count()
        <windowed table 'count-clicks'>
        """
        return self._gather(aggregates.count(), name, emit)

    def count_distinct(
        self,
        selector: Callable[[V], object] | None = None,
        *,
        approximate: bool = False,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, int]:
        """Count the different values of each window; see :meth:`KeyedStream.count_distinct`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> visits = StreamBuilder("job").source("visits", serdes.json)
        >>> by_page = visits.key_by(lambda v: v["page"]).window(tumbling(timedelta(hours=1)))
        >>> by_page.count_distinct(lambda v: v["user"], approximate=True)
        <windowed table 'count_distinct-visits'>
        """
        measure = aggregates.count_distinct(selector, approximate=approximate)
        return self._gather(measure, name, emit, on_error)

    @overload
    def sum(
        self: WindowedStream[K, Number], selector: None = None, **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, Number, Number]: ...
    @overload
    def sum(
        self, selector: Callable[[V], Number], **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, V, Number]: ...
    def sum(
        self,
        selector: Callable[[V], Number] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, Any, Number]:
        """Add up the values of each window; see :meth:`KeyedStream.sum`.

        Examples
        --------
        >>> from headrace import StreamBuilder, hopping, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda order: order["item"])
        >>> windows = hopping(timedelta(minutes=5), timedelta(minutes=1))
        >>> by_item.window(windows).sum(lambda order: order["price"])
        <windowed table 'sum-orders'>
        """
        return self._gather(aggregates.sum_(selector), name, emit, on_error)

    @overload
    def avg(
        self: WindowedStream[K, Decimal], selector: None = None, **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, Decimal, Decimal]: ...
    @overload
    def avg(
        self: WindowedStream[K, Real], selector: None = None, **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, Real, float]: ...
    @overload
    def avg(
        self, selector: Callable[[V], Decimal], **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, V, Decimal]: ...
    @overload
    def avg(
        self, selector: Callable[[V], float], **options: Unpack[WindowOptions]
    ) -> WindowedTable[K, V, float]: ...
    def avg(
        self,
        selector: Callable[[V], Decimal] | Callable[[V], float] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, Any, Decimal] | WindowedTable[K, Any, float]:
        """Average the values of each window; see :meth:`KeyedStream.avg`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> readings = StreamBuilder("job").source("readings", serdes.json)
        >>> by_room = readings.key_by(lambda r: r["room"]).window(tumbling(timedelta(minutes=5)))
        >>> by_room.avg(lambda reading: reading["degrees"])
        <windowed table 'avg-readings'>
        """
        return self._gather(aggregates.avg(selector), name, emit, on_error)

    def min(
        self,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, V]:
        """Keep the least value of each window; see :meth:`KeyedStream.min`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.min(lambda order: order["price"])
        <windowed table 'min-orders'>
        """
        return self._gather(aggregates.min_(selector), name, emit, on_error)

    def max(
        self,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, V]:
        """Keep the greatest value of each window; see :meth:`KeyedStream.max`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.max(lambda order: order["price"])
        <windowed table 'max-orders'>
        """
        return self._gather(aggregates.max_(selector), name, emit, on_error)

    def top(
        self,
        n: int,
        selector: Callable[[V], Comparable] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, list[V]]:
        """Keep the ``n`` greatest values of each window; see :meth:`KeyedStream.top`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.top(3, lambda order: order["price"])
        <windowed table 'top-orders'>
        """
        return self._gather(aggregates.top(n, selector), name, emit, on_error)

    def collect(
        self,
        *,
        distinct: bool = False,
        limit: int | None = None,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, list[V]]:
        """Keep the values of each window as a list; see :meth:`KeyedStream.collect`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, session
        >>> clicks = StreamBuilder("job").source("clicks", serdes.string).key_by(str.lower)
        >>> clicks.window(session(timedelta(minutes=30))).collect(limit=100)
        <windowed table 'collect-clicks'>
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
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, V]:
        """Fold the values of each window into one; see :meth:`KeyedStream.reduce`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(len)
        >>> words.window(tumbling(timedelta(hours=1))).reduce(max)
        <windowed table 'reduce-words'>
        """
        return self._gather(aggregates.reduce(function, serde=serde), name, emit, on_error)

    def aggregate(
        self,
        accumulator: topology.Accumulator[V, R] | Callable[[], topology.Accumulator[V, R]],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, R]:
        """Fold the values of each window into an accumulator; see :meth:`KeyedStream.aggregate`.

        Sessions that meet are merged, and so are the parts of sliding windows: for both, the
        accumulator needs ``merge``.

        Examples
        --------
        >>> from headrace import Accumulator, StreamBuilder, serdes, tumbling
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
        >>> windows = words.key_by(lambda word: word[0]).window(tumbling(timedelta(days=1)))
        >>> windows.aggregate(Longest)
        <windowed table 'aggregate-words'>
        """
        return self._gather(aggregates.aggregate(accumulator, serde=serde), name, emit, on_error)

    def agg(
        self,
        *measures: aggregates.Measure[V],
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: topology.ErrorPolicy = "fail",
        **named: aggregates.Measure[V],
    ) -> WindowedTable[K, V, aggregates.Row]:
        """Compute several aggregates of each window at once; see :meth:`KeyedStream.agg`.

        Examples
        --------
        >>> from headrace import StreamBuilder, avg, count, serdes, tumbling
        >>> readings = StreamBuilder("job").source("readings", serdes.json)
        >>> by_room = readings.key_by(lambda r: r["room"]).window(tumbling(timedelta(minutes=5)))
        >>> by_room.agg(n=count(), mean=avg(lambda reading: reading["degrees"]))
        <windowed table 'agg-readings'>
        """
        step = self._flow.begin("agg", name, on_error=on_error)
        return self._gathered(step, aggregates.gathered_row(step, measures, named), emit)

    def _gather(
        self,
        measure: aggregates.Measure[V],
        name: str | None,
        emit: WindowEmit,
        on_error: topology.ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, Any]:
        step = self._flow.begin(measure.label, name, on_error=on_error)
        return self._gathered(step, aggregates.gathered(step, measure), emit)

    def _gathered(
        self, step: NextOperator, gathering: aggregates.Gathering, emit: WindowEmit
    ) -> WindowedTable[K, V, Any]:
        self._flow.key.check_key(step.name)
        results, operator = aggregates.by_windows(step, gathering, self._windows, self._grace, emit)
        return WindowedTable(self._flow, results, operator)


class WindowedTable(topology.OperatorHandle[K, V, R]):
    """The results of each key and window.

    Results keep the key of their records.  Every message that a sink makes of a result has the
    bounds of its window in the properties ``window_start_time`` and ``window_end_time`` (ms since
    1970); ``to_stream(with_window=True)`` puts them into the value.
    """

    def __init__(self, before: Flow, flow: Flow, operator: topology.WindowAggregate) -> None:
        self._before = before
        self._flow = flow
        self._operator = operator

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def __repr__(self) -> str:
        return f"<windowed table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that keeps the windows, and of its state store."""
        return self._flow.operator

    @overload
    def to_stream(
        self, *, with_window: Literal[True], name: str | None = None
    ) -> Stream[K, topology.Windowed[R]]: ...
    @overload
    def to_stream(
        self, *, with_window: Literal[False] = False, name: str | None = None
    ) -> Stream[K, R]: ...
    def to_stream(
        self, *, with_window: bool = False, name: str | None = None
    ) -> Stream[K, R] | Stream[K, topology.Windowed[R]]:
        """Return the results as a stream.

        Parameters
        ----------
        with_window
            Return each result as a :class:`~headrace.Windowed` with its value, start and end.
        name
            Name of the operator.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes, tumbling
        >>> builder = StreamBuilder("job")
        >>> words = builder.source("words", serdes.string).key_by(str.lower)
        >>> counts = words.window(tumbling(timedelta(minutes=1))).count()
        >>> counts.to_stream(with_window=True).map_values(
        ...     lambda result: f"{result.value} from {result.start:%H:%M} to {result.end:%H:%M}"
        ... ).sink("counts", serdes.string)
        <end of 'sink-counts'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     sent = driver.input("words", serdes.string)
        ...     sent.send("to", time=driver.now)
        ...     sent.send("be", time=driver.now + timedelta(minutes=2))
        ...     [(r.key, r.value) for r in driver.output("counts", serdes.string).read_all()]
        [('to', '1 from 00:00 to 00:01')]
        """
        step = self._flow.begin("to_stream", name)
        if not with_window:
            return Stream(step.add(topology.ToStream(**step.fields)))
        values = topology.WindowedSerde(self._flow.value.serde_or_plain())
        known = step.known(topology.Windowed, values)
        return Stream(step.add(topology.WithWindow(**step.fields), value=known))

    @overload
    def sink(
        self,
        topic: str | Callable[[R], str] | Callable[[K, R], str],
        serializer: Serde[R] | type[R] | Serializer[K, R] | Callable[[R], bytes] | None = None,
        **options: Unpack[SinkOptions],
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str | Callable[[R], str] | Callable[[K, R], str],
        serializer: Callable[[K, R], bytes],
        **options: Unpack[SinkOptions],
    ) -> End: ...
    def sink(
        self,
        topic: str | Callable[..., str],
        serializer: Serde[R] | type[R] | Serializer[K, R] | Callable[..., bytes] | None = None,
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> End:
        """Write the results to a topic; no operator can follow.

        The parameters are those of :meth:`Stream.sink`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> words.window(tumbling(timedelta(minutes=1))).count().sink("counts", serdes.json)
        <end of 'sink-counts'>
        """
        return written(self._flow, topic, serializer, topics, key, partition, name, on_error)

    def late(self, *, name: str | None = None) -> Stream[K, V]:
        """Return the records that came too late for their windows, unchanged.

        Raises
        ------
        TopologyError
            The values are of a known type without a serde, or the windows count records.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> counts = words.window(tumbling(timedelta(minutes=1))).count()
        >>> counts.late().sink("late-words", serdes.string)
        <end of 'sink-late-words'>
        """
        step = replace(self._flow, key=self._before.key, value=self._before.value).begin(
            "late", name
        )
        if not isinstance(
            self._operator, topology.TimeWindow | topology.SlidingWindow | topology.SessionWindow
        ):
            raise TopologyError(
                f"late at {step.caller.origin}: nothing is late for windows that count records",
                hint="leave late() out",
            )
        serde = self._before.value.needed_serde(step.name, "passes the late ones on")
        self._operator = replace(self._operator, value_serde=serde)
        self._flow.builder.replace(self._operator)
        return Stream(step.add(topology.ToStream(**{**step.fields, "output": "late"})))


# Groups of records, by columns and windows.

_BOUND = pa.timestamp("ms", "UTC")


class WindowedGroups:
    """Groups of records in windows; :meth:`ColumnGroups.window` makes it."""

    def __init__(self, flow: Flow, keys: Schema, windows: Windows, grace: timedelta | str) -> None:
        self._flow = flow
        self._keys = keys
        self._windows = windows
        self._grace = milliseconds(grace, "grace")

    def __repr__(self) -> str:
        return f"<windows of groups '{self._flow.operator}'>"

    def agg(
        self,
        *measures: aggregates.Measure[Any],
        emit: WindowEmit = "close",
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
        **named: aggregates.Measure[Any],
    ) -> WindowedColumns:
        """Compute measures of each group and window.

        Values are dicts of the key's columns, the measures, ``window_start`` and ``window_end``.
        Tumbling and hopping windows are combined in Arrow before the shuffle; the others are
        computed record by record.

        Parameters
        ----------
        measures
            Made by ``count``, ``sum_``, ``min_``, ``max_`` and ``avg`` of columns.
        emit
            ``"close"`` emits one result when a window closes; ``"update"`` emits the latest result
            of each window that changed, once per batch.
        name
            Name of the operator and of its state store.
        on_error
            What to do with a record for which a measure cannot be computed; see :class:`Stream`.
        named
            Measures, by the names of the columns that they make.

        Raises
        ------
        TopologyError
            Two columns have the same name, a measure does not fit its column, or the records are
            updates.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, count, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).group_by("value")
        >>> words.window(tumbling(timedelta(minutes=1))).agg(count())
        <windows of columns 'agg-words'>
        """
        step = self._flow.begin("agg", name, on_error=on_error)
        if gives_updates(self._flow.builder.operators, self._flow.operator):
            raise TopologyError(
                f"agg at {step.caller.origin} puts updates into windows, but the old value that an"
                " update takes back has no window",
                hint="use windows before the operator that emits the updates",
            )
        chosen, types = results_of(step, self._flow, measures, named)
        bounds = tuple((column, _BOUND) for column in WINDOW_COLUMNS)
        results = Schema(self._keys.columns + types + bounds)
        try:
            results.check_names()
        except ValueError as error:
            raise TopologyError(
                f"agg at {step.caller.origin}: {error}", hint="name one of them with name=..."
            ) from None
        schema = self._flow.value.columns
        assert schema is not None
        aggregation = Aggregation(
            kind="columns",
            state_serde=cells_serde(types),
            value_serde=self._flow.value.serde_or_plain(),
            function=CellsOf(schema, chosen, self._keys.columns),
        )
        gathering = aggregates.Gathering(aggregation, step.known(dict))
        flow, operator = aggregates.by_windows(step, gathering, self._windows, self._grace, emit)
        table: WindowedTable[Any, Any, Any] = WindowedTable(self._flow, flow, operator)
        return WindowedColumns(table, flow, self._keys, results)


class WindowedColumns(topology.OperatorHandle[Any, Any, aggregates.Row]):
    """The measures of each group and window."""

    def __init__(
        self, table: WindowedTable[Any, Any, Any], flow: Flow, keys: Schema, results: Schema
    ) -> None:
        self._table = table
        self._flow = flow
        self._keys = keys
        self._results = results

    def __repr__(self) -> str:
        return f"<windows of columns '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that keeps the windows, and of its state store."""
        return self._flow.operator

    def to_stream(self, *, name: str | None = None) -> Stream[Any, aggregates.Row]:
        """Return the results as a stream with columns."""
        step = self._flow.begin("to_stream", name)
        operator = WindowRows(**step.fields, keys=tuple(self._keys.names), results=self._results)
        known = replace(step.known(dict), columns=self._results)
        return Stream(step.add(operator, value=known))

    def sink(
        self,
        topic: str | Callable[..., str],
        serializer: Serde[aggregates.Row]
        | Serializer[Any, aggregates.Row]
        | Callable[..., bytes]
        | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> End:
        """Write the results to a topic; see :meth:`Stream.sink`."""
        stream = self.to_stream(name=name and f"{name}-stream")
        return stream.sink(topic, serializer, name=name, **options)

    def late(self, *, name: str | None = None) -> Stream[Any, Any]:
        """Return the records that came too late for their windows, unchanged."""
        return self._table.late(name=name)
