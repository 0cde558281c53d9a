"""The ``Stream`` class: the operators of a stream of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, Unpack, overload

from headrace import topology
from headrace.columns import Expression
from headrace.streams import records
from headrace.streams.columns import ColumnGroups, grouped, kept_by_columns, selected
from headrace.streams.flow import (
    Flow,
    JoinOptions,
    SinkOptions,
    StepOptions,
    TimeOptions,
    ValueOptions,
    no_method,
)
from headrace.streams.joins.chain import StreamJoin, check_keyed, check_stream
from headrace.streams.joins.tables import TableLookup, join, kept
from headrace.streams.outputs import (
    End,
    batches_to_function,
    batches_to_spark,
    printed,
    written,
)
from headrace.streams.routing import Branches, looped, merged, moved, parted
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.serdes import Serde, Serializer
    from headrace.streams.joins.results import JoinedStream
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.tables import GlobalTable, Table


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
Out = TypeVar("Out")

_LATENESS = timedelta(seconds=2)
_IDLE = timedelta(seconds=10)


class Stream(Generic[K, V]):
    """Records with keys of type ``K`` and values of type ``V``.

    :meth:`StreamBuilder.source` and the operators make streams.  A stream can be used more than
    once: each operator that is added to it gets all its records.  None is a value like any other;
    only ``where`` and ``flat_map`` drop records.

    An operator calls a function with the value; a function with two required parameters gets key
    and value.  Operators share these keyword arguments:

    name
        Name of the operator, and of its state store and topics if it has any.
    serde
        Serializes the values that the operator makes, when they travel between Spark's stages, are
        kept in a state store, or go to a topic.  The default follows from the function's
        annotations; without annotations the values must be plain data.
    on_error
        What to do with a record on which the function raises, or which cannot be written:
        ``"fail"`` stops the job, ``"skip"`` leaves the record out and counts it, and
        ``"topic:NAME"`` also sends the message that it comes from to that topic.

    Each operator raises a :class:`~headrace.TopologyError` for a function that cannot be called
    this way, and if it must write keys or values of a known type that has no serde.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<stream '{self._flow.operator}'>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    @property
    def name(self) -> str:
        """Name of the operator that makes these records."""
        return self._flow.operator

    # Records and values

    @overload
    def map(
        self, function: Callable[[V], tuple[K2, V2]], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K2, V2]: ...
    @overload
    def map(
        self, function: Callable[[K, V], tuple[K2, V2]], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K2, V2]: ...
    def map(
        self,
        function: Callable[[V], tuple[K2, V2]] | Callable[[K, V], tuple[K2, V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Stream[K2, V2]:
        """Replace key and value by the pair that a function returns.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.map(lambda order: (order["customer"], order["price"]))
        <stream 'map-orders'>
        """
        return Stream(records.replaced(self._flow, topology.Map, function, name, serde, on_error))

    @overload
    def map_values(
        self, function: Callable[[V], V2], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K, V2]: ...
    @overload
    def map_values(
        self, function: Callable[[K, V], V2], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K, V2]: ...
    def map_values(
        self,
        function: Callable[[V], V2] | Callable[[K, V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Stream[K, V2]:
        """Replace the value; the key stays.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).map_values(len)
        <stream 'map_values-lines'>
        """
        return Stream(
            records.replaced(self._flow, topology.MapValues, function, name, serde, on_error)
        )

    @overload
    def flat_map(
        self, function: Callable[[V], Iterable[tuple[K2, V2]]], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K2, V2]: ...
    @overload
    def flat_map(
        self,
        function: Callable[[K, V], Iterable[tuple[K2, V2]]],
        **options: Unpack[ValueOptions[V2]],
    ) -> Stream[K2, V2]: ...
    def flat_map(
        self,
        function: Callable[[V], Iterable[tuple[K2, V2]]]
        | Callable[[K, V], Iterable[tuple[K2, V2]]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Stream[K2, V2]:
        """Replace each record by any number of others, which the function returns as pairs.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.flat_map(lambda line: [(word, 1) for word in line.split()])
        <stream 'flat_map-lines'>
        """
        return Stream(
            records.replaced(self._flow, topology.FlatMap, function, name, serde, on_error)
        )

    @overload
    def flat_map_values(
        self, function: Callable[[V], Iterable[V2]], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K, V2]: ...
    @overload
    def flat_map_values(
        self, function: Callable[[K, V], Iterable[V2]], **options: Unpack[ValueOptions[V2]]
    ) -> Stream[K, V2]: ...
    def flat_map_values(
        self,
        function: Callable[[V], Iterable[V2]] | Callable[[K, V], Iterable[V2]],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Stream[K, V2]:
        """Replace each value by any number of others; the key stays.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).flat_map_values(str.split)
        <stream 'flat_map_values-lines'>
        """
        return Stream(
            records.replaced(self._flow, topology.FlatMapValues, function, name, serde, on_error)
        )

    def map_async(
        self,
        function: Callable[[V], Awaitable[V2]] | Callable[[K, V], Awaitable[V2]],
        *,
        max_in_flight: int = 100,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Stream[K, V2]:
        """Replace the value by the result of a coroutine; many calls wait at the same time.

        Results keep the order of the records.  All calls of a process run on one event loop, so
        a session that the function keeps open serves later batches too.  A batch is repeated after
        a failure, so the function's outside effects may happen more than once.

        Parameters
        ----------
        function
            A coroutine function of the value, or of key and value.
        max_in_flight
            How many calls may wait at the same time in each task; at least 1.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> async def look_up(name: str) -> str:
        ...     return name.upper()
        >>> StreamBuilder("job").source("names", serdes.string).map_async(look_up)
        <stream 'map_async-names'>
        """
        return Stream(
            records.mapped_async(self._flow, function, max_in_flight, name, serde, on_error)
        )

    @overload
    def where(
        self, condition: Expression | Callable[[V], object], **options: Unpack[StepOptions]
    ) -> Self: ...
    @overload
    def where(
        self, condition: Callable[[K, V], object], **options: Unpack[StepOptions]
    ) -> Self: ...
    def where(
        self,
        condition: Expression | Callable[[V], object] | Callable[[K, V], object],
        *,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Self:
        """Keep the records for which a condition is true.

        Parameters
        ----------
        condition
            A function of the value, or of key and value.  If the values have columns, it can also
            be an expression over them, which is computed for all records of a chunk at once; a
            null result drops the record, as false does.

        Raises
        ------
        TopologyError
            The stream has no columns, a column is missing, or the expression is not a condition.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> from headrace.columns import col
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.where(str.strip)
        <stream 'where-lines'>
        >>> lines.where(col("value").length() > 0)
        <stream 'where-lines-2'>
        """
        if isinstance(condition, Expression):
            return self._same(kept_by_columns(self._flow, condition, name, on_error))
        return self._same(records.kept_by_function(self._flow, condition, name, on_error))

    def select(
        self,
        *columns: Expression | str,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
        **named: Expression | Any,
    ) -> Stream[K, dict[str, Any]]:
        """Compute columns from the columns of the values, for all records of a chunk at once.

        A function after ``select`` sees each value as a dict of the selected columns; between
        operators over columns the values stay Arrow columns.

        Parameters
        ----------
        columns
            Expressions, or names of columns.
        name
            Name of the operator.  For a column that is called ``name``, pass an expression with
            ``.named("name")``.
        named
            Expressions, by the names of the columns that they make.

        Raises
        ------
        TopologyError
            The stream has no columns, a column does not exist, or types do not fit.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> from headrace.columns import col, explode
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.select(word=explode(col("value").lower().split()))
        <stream 'select-lines'>
        """
        return Stream(selected(self._flow, columns, named, name, on_error))

    @overload
    def peek(self, function: Callable[[V], object], **options: Unpack[StepOptions]) -> Self: ...
    @overload
    def peek(self, function: Callable[[K, V], object], **options: Unpack[StepOptions]) -> Self: ...
    def peek(
        self,
        function: Callable[[V], object] | Callable[[K, V], object],
        *,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Self:
        """Call a function for each record, and pass the record on.

        The function runs in Spark's workers, and runs again for a batch that is repeated after a
        failure.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).peek(print)
        <stream 'peek-lines'>
        """
        return self._same(records.peeked(self._flow, function, name, on_error))

    def print(self, *, label: str = "", name: str | None = None) -> Self:
        """Print each record as ``(key=..., value=...)`` after a label, and pass it on.

        The lines go to the standard output of the process that handles the record: one of Spark's
        workers, or the process that runs the test driver.

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
        return self._same(printed(self._flow, label, name))

    # Keys

    @overload
    def key_by(
        self, selector: Callable[[V], K2], **options: Unpack[StepOptions]
    ) -> KeyedStream[K2, V]: ...
    @overload
    def key_by(
        self, selector: Callable[[K, V], K2], **options: Unpack[StepOptions]
    ) -> KeyedStream[K2, V]: ...
    def key_by(
        self,
        selector: Callable[[V], K2] | Callable[[K, V], K2],
        *,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> KeyedStream[K2, V]:
        """Set the key of each record to the result of a selector.

        Keys are plain data (see :mod:`headrace.keys`); ``1``, ``1.0`` and ``True`` are three keys.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        <keyed stream 'key_by-words'>
        """
        return _by_key(records.keyed(self._flow, selector, name, on_error))

    def group_by_key(self) -> KeyedStream[K, V]:
        """Return the stream as a keyed stream, by the keys that the records already have.

        This adds no operator.  A shuffle follows only if the keys changed after the last shuffle.

        Raises
        ------
        TopologyError
            The records have no keys.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> counts = StreamBuilder("job").source("counts", serdes.with_key(serdes.json))
        >>> counts.group_by_key()
        <keyed stream 'source-counts'>
        """
        self._flow.key.check_key("group_by_key")
        check_keyed(self._flow, "group_by_key", caller().origin)
        return _by_key(self._flow)

    def group_by(
        self,
        *columns: Expression | str,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
        **named: Expression,
    ) -> ColumnGroups:
        """Group the records by the values of columns; :meth:`ColumnGroups.agg` then aggregates.

        The key is the value of the column, or a tuple if there are several columns; here, null is a
        value like any other.

        Raises
        ------
        TopologyError
            The stream has no columns, a column does not exist, or types do not fit.

        Examples
        --------
        >>> from headrace import StreamBuilder, count, serdes
        >>> StreamBuilder("job").source("lines", serdes.string).group_by("value").agg(count())
        <table 'agg-lines'>
        """
        return grouped(self._flow, columns, named, name, on_error)

    def to_table(self, *, name: str | None = None) -> Table[K, V]:
        """Return a table of the last value of each key; None deletes the key.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> people = StreamBuilder("job").source("people", serdes.json)
        >>> people.key_by(lambda person: person["name"]).to_table()
        <table 'table-people'>
        """
        from headrace.streams.tables import Table

        return Table(kept(self._flow, name))

    # Time

    def select_timestamp(
        self,
        function: Callable[[V], datetime | int | None],
        *,
        name: str | None = None,
        allowed_lateness: timedelta | str = _LATENESS,
        idle_timeout: timedelta | str | None = _IDLE,
        max_future: timedelta | str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Self:
        """Set the time of each record to the one that a function returns for its value.

        Watermarks begin anew with the new times: a record that was late by its old time may be on
        time by its new one, and vice versa.

        Parameters
        ----------
        function
            Takes the value and returns an aware datetime or ms since 1970; None keeps the time.
        allowed_lateness
            How far a record may lag behind the newest of its source queue (after a shuffle: of
            its partition) before it is late.
        idle_timeout
            How long a queue or partition may be silent before event time advances without it; with
            None the others wait for it for ever.
        max_future
            Records that are further ahead of the wall clock than this are counted as ``future``
            and do not advance the watermark; the default is ``JobSettings.max_future``.

        Raises
        ------
        TopologyError
            A duration is negative.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.select_timestamp(lambda order: order["paid_at"])
        <stream 'select_timestamp-orders'>
        """
        durations = {
            "allowed_lateness": allowed_lateness,
            "idle_timeout": idle_timeout,
            "max_future": max_future,
        }
        return self._same(records.timed(self._flow, function, durations, name, on_error))

    # Joins

    @overload
    def join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V, V2]: ...
    @overload
    def join(self, right: Table[Any, V2] | GlobalTable[Any, V2]) -> TableLookup[K, V, V2]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2], Out],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        left_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        left_key: Callable[[K, V], object],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2], Out],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        left_key: Callable[[V], K2],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K2, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K, V, V2], Out],
        **options: Unpack[TimeOptions],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K2, V, V2], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2] | None = None,
        **options: Unpack[TimeOptions],
    ) -> KeyedStream[K2, Out]: ...
    def join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[V, V2], Out] | Callable[[Any, V, V2], Out] | None = None,
        **options: Unpack[JoinOptions],
    ) -> StreamJoin[K, V, V2, V, V2] | TableLookup[K, V, V2] | KeyedStream[Any, Out]:
        """Pair the records of two streams by key, or look up each record's row in a table.

        With only ``right``, the call begins a chain (``.left_key(...).right_key(...)`` and so on)
        that :meth:`StreamJoin.apply` ends; with a joiner it makes the whole join.

        Parameters
        ----------
        right
            The other stream, which may be this one; a table, in which each record finds the row of
            its key at that moment; or a global table, in which ``left_key`` may return any key.
        joiner
            Takes the left and the right value, or the key and both.
        options
            ``left_key`` and ``right_key`` return the keys of the two sides; without them the
            records' own keys are compared.  ``within``, a duration or a pair of them, says how much
            earlier and how much later the right record may be than the left one; ``window`` says
            which windows the two must share (see :func:`headrace.tumbling`).  Without either, each
            record is joined with the last value of the other side.  ``grace`` says how much longer
            to wait for late records.  ``name`` names the operator that keeps the state, ``serde``
            serializes the results, and ``on_error`` says what to do with records on which a
            function raises.

        Raises
        ------
        TopologyError
            See :meth:`StreamJoin.apply` and :meth:`TableLookup.apply`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> prices = builder.source("prices", serdes.with_key(serdes.float))
        >>> orders.join(prices, lambda order, price: order["amount"] * price)
        <keyed stream 'joined-orders-prices'>
        >>> countries = builder.global_table("countries", serdes.string)
        >>> orders.join(countries).left_key(lambda order: order["country"])
        <inner join of 'source-orders' and 'source-countries'>
        """
        return join(self._flow, "inner", right, joiner, options)

    @overload
    def left_join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V, V2 | None]: ...
    @overload
    def left_join(
        self, right: Table[Any, V2] | GlobalTable[Any, V2]
    ) -> TableLookup[K, V, V2 | None]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def left_join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        left_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        left_key: Callable[[K, V], object],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        left_key: Callable[[V], K2],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K2, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K, V, V2 | None], Out],
        **options: Unpack[TimeOptions],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K2, V, V2 | None], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2] | None = None,
        **options: Unpack[TimeOptions],
    ) -> KeyedStream[K2, Out]: ...
    def left_join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[V, V2 | None], Out] | Callable[[Any, V, V2 | None], Out] | None = None,
        **options: Unpack[JoinOptions],
    ) -> StreamJoin[K, V, V2, V, V2 | None] | TableLookup[K, V, V2 | None] | KeyedStream[Any, Out]:
        """Pair records as :meth:`join` does, and also return each left record without a match.

        With ``within`` or ``window`` an unmatched record is returned once, when nothing can match
        it any more; without them, and with a table, it is returned immediately.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> prices = builder.table("prices", serdes.float)
        >>> orders.left_join(prices, lambda order, price: (order, price or 0.0))
        <keyed stream 'join-orders-prices'>
        """
        return join(self._flow, "left", right, joiner, options)

    @overload
    def outer_join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V | None, V2 | None]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[K, V | None, V2 | None], Out],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[K2, V | None, V2 | None], Out],
        *,
        left_key: Callable[[V], K2],
        right_key: Callable[[V2], K2],
        **options: Unpack[TimeOptions],
    ) -> JoinedStream[K2, Out]: ...
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out]
        | Callable[[Any, V | None, V2 | None], Out]
        | None = None,
        **options: Unpack[JoinOptions],
    ) -> StreamJoin[K, V, V2, V | None, V2 | None] | KeyedStream[Any, Out]:
        """Pair records of two streams, and also return each record of either without a match.

        See :meth:`join` and :meth:`left_join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> here = builder.source("here", serdes.with_key(serdes.int))
        >>> there = builder.source("there", serdes.with_key(serdes.int))
        >>> here.outer_join(there, lambda key, ours, theirs: (key, ours, theirs))
        <keyed stream 'joined-here-there'>
        """
        made = join(self._flow, "outer", right, joiner, options)
        assert not isinstance(made, TableLookup)  # it has no outer join
        return made

    # Merging, branching and moving

    def merge(
        self, *others: Stream[K, V], name: str | None = None, serde: Serde[V] | None = None
    ) -> Stream[K, V]:
        """Return the records of this stream and of others as one stream.

        After the next shuffle they are in the order in which their messages arrived.  ``serde``
        serializes the values if the streams have different serdes.

        Raises
        ------
        TopologyError
            There is no other stream, or one belongs to another builder.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("web", serdes.json).merge(builder.source("shop", serdes.json))
        <stream 'merge-web'>
        """
        step = self._flow.begin("merge", name)
        for other in others:
            check_stream("merge", other, step.caller.origin)
        flows = [self._flow, *(other._flow for other in others)]  # noqa: SLF001 - of its own kind
        return Stream(merged(flows, step, serde))

    def branch(
        self,
        *,
        name: str | None = None,
        default: str = "rest",
        on_error: topology.ErrorPolicy = "fail",
        **predicates: Callable[..., object],
    ) -> Branches[Self]:
        """Split the stream: each record goes to the first branch whose predicate is true for it.

        Parameters
        ----------
        name
            Name of the operator; the branches are named after it.
        default
            Name of the branch for all other records.
        predicates
            A predicate for each branch, by its name: a function of the value, or of key and value.

        Raises
        ------
        TopologyError
            There is no predicate, or one has the name of the default branch.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> parts = orders.branch(large=lambda o: o["price"] > 99, free=lambda o: not o["price"])
        >>> parts.large, parts["rest"]
        (<stream 'branch-orders-large'>, <stream 'branch-orders-rest'>)
        >>> list(parts)
        ['large', 'free', 'rest']
        """
        parts = parted(self._flow, predicates, default, name, on_error)
        return Branches({branch: self._same(part) for branch, part in parts.items()})

    @overload
    def repartition(
        self, key: None = None, *, partitions: int | None = None, **options: Unpack[StepOptions]
    ) -> Self: ...
    @overload
    def repartition(
        self,
        key: Callable[[V], K2],
        *,
        partitions: int | None = None,
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    @overload
    def repartition(
        self,
        key: Callable[[K, V], K2],
        *,
        partitions: int | None = None,
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    def repartition(
        self,
        key: Callable[[V], K2] | Callable[[K, V], K2] | None = None,
        *,
        partitions: int | None = None,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Self | KeyedStream[K2, V]:
        """Move the records to other tasks, so that the next operators run in as many as needed.

        Records go to the partition of their key and keep their order per key.  A stream without
        keys is spread evenly.

        Parameters
        ----------
        key
            Takes the value, or key and value, and returns the new key.
        partitions
            How many of the job's partitions get records, at least 1; all by default.  Fewer of them
            limit the parallel calls to a service that the next operator uses.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("pictures", serdes.bytes).repartition().map_values(len)
        <stream 'map_values-pictures'>
        >>> builder.source("words", serdes.string).repartition(str.lower)
        <keyed stream 'repartition-words'>
        """
        flow = moved(self._flow, key, partitions, name, on_error)
        return self._same(flow) if key is None else _by_key(flow)

    def through(
        self,
        topic: str | None = None,
        *,
        queues: int = 8,
        serde: Serde[V] | None = None,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> Self:
        """Write the records to a topic that the next batch reads, so that others see them too.

        They go to the queue of their key and stay in order per key; a stream without keys writes
        to one queue per task.  Keys, times, headers and lateness of the records are kept, so the
        results are the same as without the topic, only later.

        Parameters
        ----------
        topic
            Name of the topic, which nothing else in the job reads or writes; by default
            ``JOB-ROCKETMQ-THROUGH-NUMBER-shuffleTopic``, where the number is the operator's place
            in the topology.  The job makes the topic if it is missing.  The first start of a job
            does not read records that the topic already holds.
        queues
            Number of queues, at least 1, if the job makes the topic.
        name
            Name of the operator; the one that reads the topic gets the suffix ``-read``.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes
        >>> builder = StreamBuilder("words")
        >>> words = builder.source("words", serdes.string).key_by(str.lower).through()
        >>> words.count().sink("counts", serdes.json)
        <end of 'sink-counts'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words", serdes.string).send("To")
        ...     driver.output("words-ROCKETMQ-THROUGH-00003-shuffleTopic", serdes.string).read().key
        ...     driver.output("counts", serdes.json).read().value
        'to'
        1
        """
        return self._same(looped(self._flow, topic, queues, serde, name, on_error))

    # Processors

    def process(
        self,
        factory: Callable[[], topology.Processor[K, V, K2, V2]],
        *,
        states: Iterable[topology.StateSpec] = (),
        timers: Iterable[topology.TimerSpec] = (),
        outputs: Iterable[str] = (),
        lag: timedelta = timedelta(0),
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> ProcessedStream[K2, V2]:
        """Hand each record to a processor that you write.

        With states or timers, all records of a key come to one task.  Late records come too: the
        processor decides what to do with them.  If it raises, its state changes for this record are
        undone and what it forwarded is dropped; an error in a timer stops the job.

        Parameters
        ----------
        factory
            The processor's class, or a function without parameters that makes one.
        states
            State that is kept for each key: ``value_state``, ``map_state``, ``list_state``,
            ``window_state`` of :mod:`headrace.topology`.
        timers
            Timers that can be set for each key: ``event_timer``, ``wall_timer``.
        outputs
            Names of children besides the returned stream; see
            :meth:`ProcessedStream.output`.
        lag
            How much older than event time the forwarded records may be; records that are older
            still may be late for the next operators.

        Raises
        ------
        TopologyError
            There are states or timers and the stream has no keys, or two have the same name.

        Examples
        --------
        >>> from headrace import Context, Processor, Record, StreamBuilder, TopologyTestDriver
        >>> from headrace import serdes, value_state
        >>> class Changes(Processor[str, float, str, float]):
        ...     def init(self, context: Context) -> None:
        ...         self.context, self.last = context, context.value("last")
        ...
        ...     def process(self, record: Record[str, float]) -> None:
        ...         if record.value != self.last.get():
        ...             self.last.put(record.value)
        ...             self.context.forward(record)
        >>> builder = StreamBuilder("job")
        >>> sensors = builder.source("degrees", serdes.with_key(serdes.float))
        >>> changes = sensors.process(Changes, states=[value_state("last", serdes.float)])
        >>> changes.sink("changes", serdes.float)
        <end of 'sink-changes'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for degrees in (20.5, 20.5, 21.0):
        ...         driver.input("degrees", serdes.float).send(degrees, key="hall")
        ...     [record.value for record in driver.output("changes", serdes.float).read_all()]
        [20.5, 21.0]
        """
        declared = (states, timers, outputs)
        return ProcessedStream(
            *records.processed(self._flow, factory, declared, lag, name, serde, on_error)
        )

    # Ends

    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Serde[V] | type[V] | Serializer[K, V] | Callable[[V], bytes] | None = None,
        **options: Unpack[SinkOptions],
    ) -> End: ...
    @overload
    def sink(
        self,
        topic: str | Callable[[V], str] | Callable[[K, V], str],
        serializer: Callable[[K, V], bytes],
        **options: Unpack[SinkOptions],
    ) -> End: ...
    def sink(
        self,
        topic: str | Callable[..., str],
        serializer: Serde[V] | type[V] | Serializer[K, V] | Callable[..., bytes] | None = None,
        *,
        topics: Iterable[str] = (),
        key: Callable[..., object] | None = None,
        partition: Callable[..., int] | None = None,
        name: str | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> End:
        """Write the records to a topic; no operator can follow.

        The key travels beside the body, in the message's ``KEYS`` (see :mod:`headrace.keys`), and
        decides its queue.  A record whose value is None becomes a message without a body: the
        tombstone that deletes its key from a table.

        Parameters
        ----------
        topic
            Name of the topic, or a function that chooses it for each record from ``topics``.
        serializer
            A serde, or a type such as a dataclass, which is written as JSON, or a callable that
            returns the body for a value, or for key and value if it has two required parameters.
            The default is the serde that the source or ``serde=`` names; without one it follows
            from the type of the values: text and bytes as they are, everything else as JSON.
        topics
            The topics from which the function chooses.  All of them must exist when the job starts;
            a record for any other topic is handled as ``on_error`` says.
        key
            A function that returns the message's key in place of the record's; None for no key.
        partition
            A function that returns the number of the message's queue, from 0; without it the key
            decides.
        name
            Name of the operator; ``sink-TOPIC`` by default.

        Raises
        ------
        TopologyError
            The serializer is neither a serde nor callable, or there is none and the type of the
            values is unknown; keys are of a known type that is not plain data; a function chooses
            the topic without ``topics``, or there are ``topics`` without such a function.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> lines = StreamBuilder("job").source("lines", serdes.string)
        >>> lines.sink("copies", lambda line: line.encode())
        <end of 'sink-copies'>
        >>> lines.sink("lines-again")
        <end of 'sink-lines-again'>
        >>> lines.sink(lambda line: f"log-{line[:4]}", serdes.string, topics=["log-WARN", "log-INFO"])
        <end of 'sink-log-WARN'>
        """
        return written(self._flow, topic, serializer, topics, key, partition, name, on_error)

    def for_each_batch(
        self,
        function: Callable[[topology.BatchRecords[K, V], topology.BatchToken], object],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> End:
        """Call a function with each committed batch, at least once; no operator can follow.

        The function runs after the commit, in a Python process of its own, one batch after the
        other, in their order.  If it raises, it is called again with the same records and the
        same token, after pauses that grow up to a minute; the job itself goes on.  A batch may
        come again after a failure: store the token with what you write, and skip a batch whose
        token is already there.

        Parameters
        ----------
        function
            Takes the records and the :class:`~headrace.BatchToken`.
        serde
            Serializes the values; by default the one that is known for them, or that of plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes
        >>> def show(records, token):
        ...     print(token, [record.value for record in records])
        >>> builder = StreamBuilder("job")
        >>> builder.source("words", serdes.string).for_each_batch(show)
        <end of 'for_each_batch-words'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words", serdes.string).send("to")
        job-1 ['to']
        """
        return batches_to_function(self._flow, function, name, serde, on_error)

    def sink_dataframe(
        self,
        writer: Callable[[Any, topology.BatchToken], object],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> End:
        """Hand each committed batch to Spark's own writers, at least once; no operator can follow.

        The writer gets a Spark data frame and a :class:`~headrace.BatchToken` after the commit,
        one batch after the other.  It is called in a thread of the process that started the job,
        because data frames exist only there; its queries on the data frame run in Spark's
        executors.  Failures are handled as in :meth:`for_each_batch`.

        The columns are key, value, time, headers, broker, queue and offset.  Values with a known
        schema have its type, a struct if there are several columns; others are JSON text, or bytes
        if ``serde`` does not write text.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> def to_parquet(frame, token):
        ...     frame.write.mode("overwrite").parquet(f"/data/orders/batch={token.batch}")
        >>> builder = StreamBuilder("job")
        >>> builder.source("orders", serdes.json).sink_dataframe(to_parquet)
        <end of 'sink_dataframe-orders'>
        """
        return batches_to_spark(self._flow, writer, name, serde, on_error)

    def _same(self, flow: Flow) -> Self:
        """Return a stream of the same kind at another place."""
        made = copy(self)
        made._flow = flow  # noqa: SLF001 - a copy of this very object
        return made


def _by_key(flow: Flow) -> KeyedStream[Any, Any]:
    from headrace.streams.keyed import KeyedStream

    return KeyedStream(flow)


class ProcessedStream(Stream[K, V]):
    """The records that a processor forwards.

    Parameters
    ----------
    flow
        The place of the records in the graph.
    process
        The operator that forwards them.
    """

    def __init__(self, flow: Flow, process: topology.Process) -> None:
        super().__init__(flow)
        self._process = process

    def output(self, name: str) -> Stream[Any, Any]:
        """Return the records that the processor forwards to a named child.

        Raises
        ------
        TopologyError
            The processor declares no such output.

        Examples
        --------
        >>> from headrace import Processor, Record, StreamBuilder, serdes
        >>> class Split(Processor[None, int, None, int]):
        ...     def init(self, context):
        ...         self.context = context
        ...
        ...     def process(self, record: Record[None, int]) -> None:
        ...         self.context.forward(record, child="odd" if record.value % 2 else "")
        >>> numbers = StreamBuilder("job").source("numbers", serdes.int)
        >>> numbers.process(Split, outputs=["odd"]).output("odd")
        <stream 'process-numbers-odd'>
        """
        return Stream(records.output_of(self._flow, self._process, name))
