"""The ways from a stream into a join."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

from headrace import serdes
from headrace.errors import TopologyError
from headrace.serdes.inference import result_hint
from headrace.streams._options import ValueOptions
from headrace.streams._records import BaseStream, no_method
from headrace.streams.joins.chain import (
    StreamJoin,
    check_joiner,
    check_key_types,
    check_one_builder,
    check_stream,
    keyed_side,
    may_be_equal,
)
from headrace.streams.sources import check_record_function
from headrace.streams.tables import GlobalTable, Table, kept_table, nullable_flow
from headrace.topology import GlobalTableJoin, StreamTableJoin
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.streams.joins.results import JoinedStream
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.sources import Flow
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy, JoinKind, LookupKind
    from headrace.topology.callers import Caller
    from headrace.topology.windows import Windows


# Joins of a stream with a table: each record looks up a row.

K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
R = TypeVar("R")
Out = TypeVar("Out")

_WHY = "needs them beside the table"


class TableLookup(Generic[K, V, R]):
    """A join of a stream with a table about to be made; :meth:`apply` makes it.

    Made by :meth:`Stream.join` and :meth:`Stream.left_join`.  A record of the stream meets the row
    that its key has at that moment; a row that comes later changes no result.

    Parameters
    ----------
    stream
        The records.
    table
        Where they look up rows.
    kind
        What becomes of a record without a row: ``"inner"`` drops it, ``"left"`` gives it alone.
    """

    def __init__(
        self, stream: Flow, table: Table[Any, Any] | GlobalTable[Any, Any], kind: LookupKind
    ) -> None:
        self._stream = stream
        self._table = table
        self._kind: LookupKind = kind
        self._where: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<{self._kind} join of '{self._stream.operator}' and '{self._table.name}'>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    @overload
    def where(self, selector: Callable[[V], K2]) -> TableLookup[K2, V, R]: ...
    @overload
    def where(self, selector: Callable[[K, V], K2]) -> TableLookup[K2, V, R]: ...
    def where(self, selector: Callable[..., Any]) -> Any:
        """Name the key of the row that a record looks up; without it the record's own key.

        A join with a table makes it the key of the result; with a global table the record keeps
        the key that it has.

        Parameters
        ----------
        selector
            Takes the stream's value; with a global table, key and value if it has two parameters.
        """
        made: TableLookup[Any, V, R] = TableLookup(self._stream, self._table, self._kind)
        made._where = selector
        return made

    @overload
    def apply(
        self,
        joiner: Callable[[V, R], Out],
        **options: Unpack[ValueOptions[Out]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def apply(
        self,
        joiner: Callable[[K, V, R], Out],
        **options: Unpack[ValueOptions[Out]],
    ) -> KeyedStream[K, Out]: ...
    def apply(
        self,
        joiner: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Any = None,
        on_error: ErrorPolicy = "fail",
    ) -> KeyedStream[K, Any]:
        """Make the join.

        Parameters
        ----------
        joiner
            Takes the record's value and the row's, or the record's key and both; a row that is
            missing is None.
        name
            Name of the operator, and of its state store.
        serde
            Writes the results.
        on_error
            What becomes of a record on which a function raises; see :meth:`Stream.map`.

        Raises
        ------
        TopologyError
            The keys are of different types, stream and table belong to different builders, or a
            function takes other arguments.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> clicks = builder.source("clicks", serdes.json)
        >>> people = builder.table("people", serdes.json)
        >>> (
        ...     clicks.left_join(people)
        ...     .where(lambda click: click["user"])
        ...     .apply(lambda click, person: {**click, "country": person and person["country"]})
        ... )
        <keyed stream 'join-clicks-people'>
        """
        from headrace.streams.keyed import KeyedStream

        made_by = caller()
        takes_key = check_joiner("join", joiner, made_by.origin)
        table = nullable_flow(self._table._flow)  # noqa: SLF001 - a side of the same join
        check_one_builder(self._stream, table, made_by.origin)
        everywhere = isinstance(self._table, GlobalTable)
        stream = self._stream
        if not everywhere:
            stream = keyed_side(stream, self._where, made_by, on_error)
        place = replace(stream, place=f"{stream.place}-{table.place}")
        step = place.begin("join", name, made_by)
        fields: dict[str, Any] = {
            **step.fields,
            "parents": (stream.operator, table.operator),
            "key_serde": serdes.key,
            "left_serde": stream.value.needed_serde(step.name, _WHY),
            "right_serde": table.value.needed_serde(step.name, "keeps them in its state"),
            "function": joiner,
            "takes_key": takes_key,
            "kind": self._kind,
            "on_error": on_error,
        }
        known = step.known(result_hint(joiner, made_by.names), serde)
        if everywhere:
            operator: Any = GlobalTableJoin(**fields, **self._lookup(stream, table, made_by))
        else:
            check_key_types(stream, table, made_by.origin)
            operator = StreamTableJoin(**fields)
        return KeyedStream(step.add(operator, value=known))

    def _lookup(self, stream: Flow, table: Flow, made_by: Caller) -> dict[str, Any]:
        stream.key.check_key("join")
        selector, by_key, hint = _own_key, True, stream.key.hint
        if self._where is not None:
            selector = self._where
            by_key = check_record_function("where", selector, made_by.origin)
            hint = result_hint(selector, made_by.names)
        if not may_be_equal(hint, table.key.hint):
            looked_up = replace(stream, key=replace(stream.key, hint=hint))
            check_key_types(looked_up, table, made_by.origin)
        return {"selector": selector, "selects_by_key": by_key}


def _own_key(key: Any, value: Any) -> Any:
    del value
    return key


def check_no_span(kind: JoinKind, options: dict[str, Any]) -> None:
    """Refuse what only joins of two streams have.

    Raises
    ------
    TopologyError
        The join is an outer one, an option says when records meet, or names a key of the table's.
    """
    if kind == "outer":
        raise TopologyError(
            f"outer_join at {caller().origin} cannot take a table: rows come without a record",
            hint="use left_join, or join two tables",
        )
    wrong = sorted(options.keys() - {"where"})
    if wrong:
        raise TopologyError(
            f"the join with a table at {caller().origin} cannot have {', '.join(wrong)}",
            hint="a record meets the row that its key has at that moment; name its key with where=",
        )


# What joins of streams take by name.


class JoinOptions(ValueOptions[Any], total=False):
    """What a join of two streams takes by name."""

    #: How much earlier, and how much later, than the left record the right one may be.
    within: timedelta | tuple[timedelta, timedelta] | None
    #: Which windows both share.
    window: Windows | None
    #: How much longer to wait for late records.
    grace: timedelta


V2 = TypeVar("V2")


_OPTIONS = ("where", "equal_to", *JoinOptions.__annotations__)


class Joins(BaseStream[K, V]):
    """A place in the graph, and what it can be joined with."""

    @overload
    def join(
        self,
        right: Stream[Any, V2],
    ) -> StreamJoin[K, V, V2, V, V2]: ...
    @overload
    def join(
        self,
        right: Table[Any, V2] | GlobalTable[Any, V2],
    ) -> TableLookup[K, V, V2]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2], Out],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        where: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        where: Callable[[K, V], object],
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
        where: Callable[[V], K2],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K2, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K, V, V2], Out],
        **options: Unpack[JoinOptions],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K2, V, V2], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2] | None = None,
        **options: Unpack[JoinOptions],
    ) -> KeyedStream[K2, Out]: ...
    def join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records that have the same key; or look records up in a table.

        With nothing but ``right`` it begins a chain (``.where(...).equal_to(...)`` and so on) that
        :meth:`StreamJoin.apply` ends; with a joiner it is the whole join.

        Parameters
        ----------
        right
            The other stream, which may be this one; a table, whose row of that moment a record of
            this stream meets; or a global table, where ``where`` may give any key.
        joiner
            Takes left and right value, or key and both.
        options
            ``where`` and ``equal_to`` give the left and the right side's key; without them the
            records' own keys meet.  ``within``, a length or a pair, says how much earlier, and how
            much later, than the left record the right one may be; ``window`` says which windows
            they share (see :func:`headrace.tumbling`); without both the last value of each side
            meets, whenever one of them comes.  ``grace`` says how much longer to wait for late
            records.  ``name`` is that of the operator that keeps state, ``serde`` writes the
            results, ``on_error`` says what becomes of records on which a function raises.

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
        >>> orders.join(countries).where(lambda order: order["country"])
        <inner join of 'source-orders' and 'source-countries'>
        """
        return self._join("inner", right, joiner, **options)

    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
    ) -> StreamJoin[K, V, V2, V, V2 | None]: ...
    @overload
    def left_join(
        self,
        right: Table[Any, V2] | GlobalTable[Any, V2],
    ) -> TableLookup[K, V, V2 | None]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def left_join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        where: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: GlobalTable[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        where: Callable[[K, V], object],
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
        where: Callable[[V], K2],
        **options: Unpack[ValueOptions[Any]],
    ) -> KeyedStream[K2, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K, V, V2 | None], Out],
        **options: Unpack[JoinOptions],
    ) -> KeyedStream[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2] | Table[Any, V2] | GlobalTable[Any, V2],
        joiner: Callable[[K2, V, V2 | None], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2] | None = None,
        **options: Unpack[JoinOptions],
    ) -> KeyedStream[K2, Out]: ...
    def left_join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records as :meth:`join` does, and give a left one alone where nothing meets it.

        By time that happens once, when its time is up; without a window, and with a table, at once.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> prices = builder.table("prices", serdes.float)
        >>> orders.left_join(prices, lambda order, price: (order, price or 0.0))
        <keyed stream 'join-orders-prices'>
        """
        return self._join("left", right, joiner, **options)

    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
    ) -> StreamJoin[K, V, V2, V | None, V2 | None]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K2, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[K, V | None, V2 | None], Out],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[K2, V | None, V2 | None], Out],
        *,
        where: Callable[[V], K2],
        equal_to: Callable[[V2], K2],
        **options: Unpack[JoinOptions],
    ) -> JoinedStream[K2, Out]: ...
    def outer_join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records of two streams, and give one of either side alone where nothing meets it.

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
        return self._join("outer", right, joiner, **options)

    def to_table(self, *, name: str | None = None) -> Table[K, V]:
        """Keep the last value of each key; None deletes the key.

        Parameters
        ----------
        name
            Name of the table and of its state store.

        Raises
        ------
        TopologyError
            The records have no keys, or their values no serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> people = StreamBuilder("job").source("people", serdes.json)
        >>> people.key_by(lambda person: person["name"]).to_table()
        <table 'table-people'>
        """
        return kept_table(self._flow, name)

    def _join(
        self, kind: JoinKind, right: Any, joiner: Callable[..., Any] | None, **options: Any
    ) -> Any:
        for option in options.keys() - set(_OPTIONS):
            close = get_close_matches(option, _OPTIONS, 1)
            raise TopologyError(
                f"the join at {caller().origin} takes no option '{option}'",
                hint=f"did you mean {close[0]}=?" if close else f"it takes {', '.join(_OPTIONS)}",
            )
        final = {o: options.pop(o) for o in ("name", "serde", "on_error") if o in options}
        if isinstance(right, Table | GlobalTable):
            made: Any = self._lookup(kind, right, options)
        else:
            check_stream("the join", right, caller().origin, Table, GlobalTable)
            made = StreamJoin(self._flow, right._flow, kind).described(**options)  # noqa: SLF001 - a side of the same join
        return made if joiner is None else made.apply(joiner, **final)

    def _lookup(
        self,
        kind: JoinKind,
        table: Table[Any, Any] | GlobalTable[Any, Any],
        options: dict[str, Any],
    ) -> TableLookup[Any, Any, Any]:
        check_no_span(kind, options)
        side: LookupKind = "left" if kind == "left" else "inner"
        made: TableLookup[Any, Any, Any] = TableLookup(self._flow, table, side)
        return made.where(options["where"]) if options.get("where") is not None else made
