"""Joins of a stream with a table: each record looks up a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

from headrace import serdes
from headrace.errors import TopologyError
from headrace.serdes.inference import result_hint
from headrace.streams._records import no_method
from headrace.streams.joins.chain import (
    check_joiner,
    check_key_types,
    check_one_builder,
    keyed_side,
    may_be_equal,
)
from headrace.streams.sources import check_record_function
from headrace.streams.tables import GlobalTable, nullable_flow
from headrace.topology import GlobalTableJoin, StreamTableJoin
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.streams._options import ValueOptions
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.sources import Flow
    from headrace.streams.tables import Table
    from headrace.topology import ErrorPolicy, JoinKind, LookupKind
    from headrace.topology.callers import Caller

__all__ = ["TableLookup", "check_no_span"]

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
