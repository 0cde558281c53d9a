"""Joins with tables: lookups by the records of a stream, and joins of two tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, Unpack, overload

from headrace import serdes, topology
from headrace.errors import TopologyError
from headrace.serdes import Serde, nullable
from headrace.serdes.inference import result_hint
from headrace.spelling import did_you_mean
from headrace.streams.flow import (
    Flow,
    Known,
    TimeOptions,
    ValueOptions,
    check_function,
    check_record_function,
    no_method,
)
from headrace.streams.joins import chain
from headrace.topology.callers import Caller, caller

if TYPE_CHECKING:
    from headrace.streams.keyed import KeyedStream


K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
R = TypeVar("R")
Out = TypeVar("Out")

_WHY = "joins them with a table"
_OPTIONS = ("left_key", "right_key", *TimeOptions.__annotations__)


def join(
    flow: Flow,
    kind: topology.JoinKind,
    right: Any,
    joiner: Callable[..., Any] | None,
    given: Mapping[str, Any],
) -> chain.StreamJoin[Any, Any, Any, Any, Any] | TableLookup[Any, Any, Any] | KeyedStream[Any, Any]:
    """Begin a join of a stream with a stream or a table, and complete it if there is a joiner.

    Raises
    ------
    TopologyError
        The right side is neither a stream nor a table, or an option does not fit.
    """
    from headrace.streams.tables import GlobalTable, Table

    options = dict(given)
    for option in options.keys() - {*_OPTIONS}:
        raise TopologyError(
            f"the join at {caller().origin} takes no option '{option}'",
            hint=did_you_mean(option, _OPTIONS, f"it takes {', '.join(_OPTIONS)}"),
        )
    final = {o: options.pop(o) for o in ("name", "serde", "on_error") if o in options}
    if isinstance(right, Table | GlobalTable):
        _check_lookup(kind, options)
        everywhere = isinstance(right, GlobalTable)
        side: topology.LookupKind = "left" if kind == "left" else "inner"
        made: chain.StreamJoin[Any, Any, Any, Any, Any] | TableLookup[Any, Any, Any]
        made = TableLookup(flow, right._flow, side, everywhere=everywhere)  # noqa: SLF001 - a side of the same join
        if options.get("left_key") is not None:
            made = made.left_key(options["left_key"])
    else:
        chain.check_stream("the join", right, caller().origin, Table, GlobalTable)
        made = chain.StreamJoin(flow, right._flow, kind).described(**options)  # noqa: SLF001 - the same
    return made if joiner is None else made.apply(joiner, **final)


def _check_lookup(kind: topology.JoinKind, options: dict[str, Any]) -> None:
    if kind == "outer":
        raise TopologyError(
            f"outer_join at {caller().origin} cannot take a table: only records of the stream make"
            " results",
            hint="use left_join, or join two tables",
        )
    wrong = sorted(options.keys() - {"left_key"})
    if wrong:
        raise TopologyError(
            f"the join with a table at {caller().origin} cannot have {', '.join(wrong)}",
            hint="a record finds the row of its key at that moment; name its key with left_key=",
        )


class TableLookup(Generic[K, V, R]):
    """A join of a stream with a table that :meth:`apply` completes.

    :meth:`Stream.join` and :meth:`Stream.left_join` begin one.  A record of the stream finds the
    row that its key has at that moment; a row that comes later changes no result.

    Parameters
    ----------
    stream
        The records.
    table
        The table in which they look up rows.
    everywhere
        Whether each partition has all rows.
    kind
        What to do with a record without a row: ``"inner"`` drops it, ``"left"`` returns it alone.
    """

    def __init__(
        self, stream: Flow, table: Flow, kind: topology.LookupKind, *, everywhere: bool
    ) -> None:
        self._stream = stream
        self._table = table
        self._kind: topology.LookupKind = kind
        self._everywhere = everywhere
        self._left_key: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<{self._kind} join of '{self._stream.operator}' and '{self._table.operator}'>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    @overload
    def left_key(self, selector: Callable[[V], K2]) -> TableLookup[K2, V, R]: ...
    @overload
    def left_key(self, selector: Callable[[K, V], K2]) -> TableLookup[K2, V, R]: ...
    def left_key(self, selector: Callable[..., Any]) -> Any:
        """Set the key by which a record looks up its row; the default is the record's own key.

        In a join with a table it becomes the key of the result; with a global table the record
        keeps its own key.

        Parameters
        ----------
        selector
            Takes the stream's value; with a global table, key and value if two parameters are
            required.
        """
        made = copy(self)
        made._left_key = selector  # noqa: SLF001 - a copy of this very object
        return made

    @overload
    def apply(
        self, joiner: Callable[[V, R], Out], **options: Unpack[ValueOptions[Out]]
    ) -> KeyedStream[K, Out]: ...
    @overload
    def apply(
        self, joiner: Callable[[K, V, R], Out], **options: Unpack[ValueOptions[Out]]
    ) -> KeyedStream[K, Out]: ...
    def apply(
        self,
        joiner: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Any = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> KeyedStream[K, Any]:
        """Complete the join.

        Parameters
        ----------
        joiner
            Takes the record's value and the row, or the record's key and both; a missing row is
            None.
        name
            Name of the operator, and of its state store.
        serde
            Serializes the results.
        on_error
            What to do with a record on which a function raises; see :class:`Stream`.

        Raises
        ------
        TopologyError
            The keys are of different types, the stream and the table belong to different builders,
            or a function takes other arguments.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> clicks = builder.source("clicks", serdes.json)
        >>> people = builder.table("people", serdes.json)
        >>> (
        ...     clicks.left_join(people)
        ...     .left_key(lambda click: click["user"])
        ...     .apply(lambda click, person: {**click, "country": person and person["country"]})
        ... )
        <keyed stream 'join-clicks-people'>
        """
        from headrace.streams.keyed import KeyedStream

        made_by = caller()
        takes_key = chain.check_joiner("join", joiner, made_by.origin)
        table = nullable_flow(self._table)
        chain.check_one_builder(self._stream, table, made_by.origin)
        stream = self._stream
        if not self._everywhere:
            stream = chain.keyed_side(stream, self._left_key, made_by, on_error)
        place = replace(stream, place=f"{stream.place}-{table.place}")
        step = place.begin("join", name, made_by)
        fields: dict[str, Any] = {
            **step.fields,
            "parents": (stream.operator, table.operator),
            "key_serde": serdes.key,
            "left_serde": stream.value.needed_serde(step.name, _WHY),
            "right_serde": table.value.needed_serde(step.name, chain.KEPT),
            "function": joiner,
            "takes_key": takes_key,
            "kind": self._kind,
            "on_error": on_error,
        }
        known = step.known(result_hint(joiner, made_by.names), serde)
        if self._everywhere:
            operator: Any = topology.GlobalTableJoin(
                **fields, **self._lookup(stream, table, made_by)
            )
        else:
            chain.check_key_types(stream, table, made_by.origin)
            operator = topology.StreamTableJoin(**fields)
        return KeyedStream(step.add(operator, value=known))

    def _lookup(self, stream: Flow, table: Flow, made_by: Caller) -> dict[str, Any]:
        stream.key.check_key("join")
        selector, by_key, hint = _own_key, True, stream.key.hint
        if self._left_key is not None:
            selector = self._left_key
            by_key = check_record_function("left_key", selector, made_by.origin)
            hint = result_hint(selector, made_by.names)
        if not chain.may_be_equal(hint, table.key.hint):
            looked_up = replace(stream, key=replace(stream.key, hint=hint))
            chain.check_key_types(looked_up, table, made_by.origin)
        return {"selector": selector, "selects_by_key": by_key}


def _own_key(key: Any, value: Any) -> Any:
    del value
    return key


# Joins of tables.


def joined(
    left: Flow,
    kind: topology.JoinKind,
    right: Any,
    joiner: Callable[..., Any],
    foreign_key: Callable[[Any], Any] | None,
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Join two tables.

    Raises
    ------
    TopologyError
        The right side is not a table, the keys can never be equal, or a function takes other
        arguments.
    """
    from headrace.streams.tables import Table

    made_by = caller()
    if not isinstance(right, Table):
        raise TopologyError(
            f"the join at {made_by.origin} takes a Table, not {right!r:.100}",
            hint="stream.to_table() makes a table of the last value of each key",
        )
    left_side, right_side = nullable_flow(left), nullable_flow(right._flow)  # noqa: SLF001 - a side of the same join
    chain.check_one_builder(left_side, right_side, made_by.origin)
    takes_key = chain.check_joiner("join", joiner, made_by.origin)
    place = replace(left_side, place=f"{left_side.place}-{right_side.place}")
    if foreign_key is not None:
        assert kind != "outer"
        return _joined_by_foreign_key(
            kind, place, right_side, (joiner, takes_key), foreign_key, name, serde, on_error
        )
    chain.check_key_types(left_side, right_side, made_by.origin)
    step = place.begin("join", name, made_by, on_error=on_error)
    known = nullable_known(step.known(result_hint(joiner, made_by.names), serde))
    operator = topology.TableJoin(
        **{**step.fields, "parents": (left_side.operator, right_side.operator)},
        key_serde=serdes.key,
        left_serde=left_side.value.needed_serde(step.name, chain.KEPT),
        right_serde=right_side.value.needed_serde(step.name, chain.KEPT),
        function=joiner,
        takes_key=takes_key,
        kind=kind,
    )
    return step.add(operator, value=known)


def _joined_by_foreign_key(
    kind: Literal["inner", "left"],
    left: Flow,
    right: Flow,
    joiner: tuple[Callable[..., Any], bool],
    foreign_key: Callable[[Any], Any],
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    # Each row goes to the key that it refers to; a table keeps the joined rows by their own keys.
    made_by = caller()
    check_function("join", foreign_key, ("value",), made_by.origin)
    step = left.begin("foreign_key", name and f"{name}-requests", made_by, on_error=on_error)
    rows = left.value.needed_serde(step.name, chain.KEPT)
    refers = step.known(result_hint(foreign_key, made_by.names))
    refers.check_key(step.name)
    requests = step.add(
        topology.ForeignKeyRequests(
            **step.fields, key_serde=serdes.key, value_serde=rows, selector=foreign_key
        ),
        key=refers,
    )
    chain.check_key_types(requests, right, made_by.origin)
    step = requests.begin("join", name and f"{name}-rows", made_by, on_error=on_error)
    known = nullable_known(step.known(result_hint(joiner[0], made_by.names), serde))
    joined = step.add(
        topology.ForeignKeyJoin(
            **{**step.fields, "parents": (requests.operator, right.operator)},
            key_serde=serdes.key,
            left_serde=serdes.plain,
            right_serde=right.value.needed_serde(step.name, chain.KEPT),
            row_serde=rows,
            function=joiner[0],
            takes_key=joiner[1],
            kind=kind,
        ),
        key=left.key,
        value=known,
    )
    return kept(joined, name)


# Tables of streams, and values that may be None.


def kept(flow: Flow, name: str | None) -> Flow:
    """Keep the last value of each key."""
    flow = nullable_flow(flow)
    step = flow.begin("table", name)
    flow.key.check_key(step.name)
    chain.check_keyed(flow, "to_table", step.caller.origin)
    operator = topology.KeepTable(
        **step.fields,
        key_serde=serdes.key,
        value_serde=flow.value.needed_serde(step.name, chain.KEPT),
    )
    return step.add(operator)


def nullable_flow(flow: Flow) -> Flow:
    """Return the place with values that may be None."""
    return replace(flow, value=nullable_known(flow.value))


def nullable_known(known: Known) -> Known:
    """Return what is known of the values if they may also be None."""
    serde = None if known.serde is None else nullable(known.serde)
    if known.hint is Any or known.hint is type(None):
        return replace(known, serde=serde)
    return replace(known, hint=known.hint | None, serde=serde)
