"""Tables: the latest value of each key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

from headrace import serdes
from headrace.errors import TopologyError
from headrace.serdes import nullable
from headrace.serdes.inference import result_hint
from headrace.streams._records import no_method
from headrace.streams.joins.chain import (
    check_joiner,
    check_key_types,
    check_keyed,
    check_one_builder,
)
from headrace.streams.sources import check_function
from headrace.topology import (
    FilterTable,
    KeepTable,
    MapTable,
    TableJoin,
    ToStream,
)
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import ValueOptions
    from headrace.streams.sources import Flow, Known
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy, JoinKind


K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
V2 = TypeVar("V2")
Out = TypeVar("Out")

#: Why values need a serde here.
KEPT = "keeps them in its state"


class Table(Generic[K, V]):
    """The latest value of each key.

    Made by :meth:`StreamBuilder.table`, :meth:`Stream.to_table`, aggregates and joins of tables.
    As a stream of updates, None means that a key has been deleted.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that gives the updates; where it keeps state, of its store too."""
        return self._flow.operator

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def to_stream(self, *, name: str | None = None) -> Stream[K, V]:
        """Return the updates of the table as a stream; None stands for a key that was deleted.

        ``serdes.optional`` writes None as an empty body, which deletes on the other side, too.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> words.count().to_stream()
        <stream 'to_stream-words'>
        """
        from headrace.streams.stream import Stream

        step = self._flow.begin("to_stream", name)
        return Stream(step.add(ToStream(**step.fields)))

    def map_values(
        self,
        function: Callable[[V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V2]:
        """Replace the value of every key; deletes pass as they are.

        Parameters
        ----------
        function
            Takes the value, gives a new one; None deletes the key.
        name
            Name of the operator.
        serde
            Writes the new values.
        on_error
            What becomes of a change on which the function raises, see :meth:`Stream.map_values`:
            where it is left out, what follows keeps the row as it was.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> people = StreamBuilder("job").table("people", serdes.json)
        >>> people.map_values(lambda person: person["name"])
        <table 'map_values-people'>
        """
        step = self._flow.begin("map_values", name, on_error=on_error)
        check_function("map_values", function, ("value",), step.caller.origin)
        known = nullable_known(step.known(result_hint(function, step.caller.names), serde))
        return Table(step.add(MapTable(**step.fields, function=function), value=known))

    def filter(
        self,
        predicate: Callable[[V], object],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Keep the keys whose value the predicate finds true; the others are deleted.

        ``on_error`` says what becomes of a change on which it raises; see :meth:`map_values`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> people = StreamBuilder("job").table("people", serdes.json)
        >>> people.filter(lambda person: person["age"] >= 18)
        <table 'filter-people'>
        """
        step = self._flow.begin("filter", name, on_error=on_error)
        check_function("filter", predicate, ("value",), step.caller.origin)
        known = nullable_known(self._flow.value)
        return Table(step.add(FilterTable(**step.fields, function=predicate), value=known))

    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[K, V, V2], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    def join(
        self,
        right: Table[Any, Any],
        joiner: Callable[..., Any],
        *,
        foreign_key: Callable[[V], Any] | None = None,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Any]:
        """Join with another table: a row for each key that both have.

        Parameters
        ----------
        right
            The other table.
        joiner
            Takes left and right value, or key and both; None deletes the key.
        foreign_key
            Takes a left value, gives the key of the right row that it belongs to; without it
            rows with the same key meet.
        name
            Name of the operator and of its state store.
        serde
            Writes the results.
        on_error
            What becomes of a change on which the joiner or ``foreign_key`` raises; see
            :meth:`map_values`.

        Raises
        ------
        TopologyError
            The keys are of different types, the tables belong to different builders, or the
            joiner takes other arguments.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders, people = builder.table("orders", serdes.json), builder.table("people", serdes.json)
        >>> orders.join(
        ...     people,
        ...     lambda order, person: {**order, "to": person["address"]},
        ...     foreign_key=lambda order: order["customer"],
        ... )
        <table 'table-orders-people'>
        """
        return self._join("inner", right, joiner, foreign_key, name, serde, on_error)

    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[K, V, V2 | None], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    def left_join(
        self,
        right: Table[Any, Any],
        joiner: Callable[..., Any],
        *,
        foreign_key: Callable[[V], Any] | None = None,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Any]:
        """Join with another table: a row for each key of this one; see :meth:`join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> names, ages = builder.table("names", serdes.string), builder.table("ages", serdes.int)
        >>> names.left_join(ages, lambda name, age: (name, age))
        <table 'join-names-ages'>
        """
        return self._join("left", right, joiner, foreign_key, name, serde, on_error)

    @overload
    def outer_join(
        self,
        right: Table[K, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Table[K, V2],
        joiner: Callable[[K, V | None, V2 | None], Out],
        **options: Unpack[ValueOptions[Any]],
    ) -> Table[K, Out]: ...
    def outer_join(
        self,
        right: Table[K, Any],
        joiner: Callable[..., Any],
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Any]:
        """Join with another table: a row for each key that either has; see :meth:`join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> here, there = builder.table("here", serdes.int), builder.table("there", serdes.int)
        >>> here.outer_join(there, lambda ours, theirs: (ours or 0) + (theirs or 0))
        <table 'join-here-there'>
        """
        return self._join("outer", right, joiner, None, name, serde, on_error)

    def _join(
        self,
        kind: JoinKind,
        right: Table[Any, Any],
        joiner: Callable[..., Any],
        foreign_key: Callable[[Any], Any] | None,
        name: str | None,
        serde: Serde[Any] | None,
        on_error: ErrorPolicy,
    ) -> Table[K, Any]:
        made_by = caller()
        if not isinstance(right, Table):
            raise TopologyError(
                f"the join at {made_by.origin} takes a Table, not {right!r:.100}",
                hint="the last value of each key of a stream is stream.to_table()",
            )
        left_side, right_side = nullable_flow(self._flow), nullable_flow(right._flow)
        check_one_builder(left_side, right_side, made_by.origin)
        takes_key = check_joiner("join", joiner, made_by.origin)
        place = replace(left_side, place=f"{left_side.place}-{right_side.place}")
        if foreign_key is not None:
            assert kind != "outer"
            from headrace.streams.joins.foreign_keys import foreign_key_join

            return foreign_key_join(
                kind, place, right_side, (joiner, takes_key), foreign_key, name, serde, on_error
            )
        check_key_types(left_side, right_side, made_by.origin)
        step = place.begin("join", name, made_by, on_error=on_error)
        known = nullable_known(step.known(result_hint(joiner, made_by.names), serde))
        operator = TableJoin(
            **{**step.fields, "parents": (left_side.operator, right_side.operator)},
            key_serde=serdes.key,
            left_serde=left_side.value.needed_serde(step.name, KEPT),
            right_serde=right_side.value.needed_serde(step.name, KEPT),
            function=joiner,
            takes_key=takes_key,
            kind=kind,
        )
        return Table(step.add(operator, value=known))


class GlobalTable(Generic[K, V]):
    """A table that every partition has whole, for joins by any key; see :meth:`Stream.join`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<global table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that gives the updates."""
        return self._flow.operator


def kept_table(flow: Flow, name: str | None) -> Table[Any, Any]:
    """Keep the last value of each key that flows here."""
    flow = nullable_flow(flow)
    step = flow.begin("table", name)
    flow.key.check_key(step.name)
    check_keyed(flow, "to_table", step.caller.origin)
    operator = KeepTable(
        **step.fields,
        key_serde=serdes.key,
        value_serde=flow.value.needed_serde(step.name, KEPT),
    )
    return Table(step.add(operator))


def nullable_flow(flow: Flow) -> Flow:
    """Let values be None."""
    return replace(flow, value=nullable_known(flow.value))


def nullable_known(known: Known) -> Known:
    """Let values be None."""
    serde = None if known.serde is None else nullable(known.serde)
    if known.hint is Any or known.hint is type(None):
        return replace(known, serde=serde)
    return replace(known, hint=known.hint | None, serde=serde)
