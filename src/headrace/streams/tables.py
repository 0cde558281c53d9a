"""Tables: the latest value of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

from headrace.serdes.inference import result_hint
from headrace.streams.flow import Flow, SinkOptions, ValueOptions, check_function, no_method
from headrace.streams.joins.tables import joined, nullable_known
from headrace.streams.outputs import End, written
from headrace.topology import ErrorPolicy, MapTable, OperatorHandle, ToStream, WhereTable

if TYPE_CHECKING:
    from headrace.serdes import Serde, Serializer
    from headrace.streams.stream import Stream


K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
V2 = TypeVar("V2")
Out = TypeVar("Out")


class Table(OperatorHandle[K, Any, V]):
    """The latest value of each key.

    :meth:`StreamBuilder.table`, :meth:`Stream.to_table`, aggregates and joins of tables make one.
    In its stream of updates, None means that a key was deleted.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that makes the updates, and of its state store if it has one."""
        return self._flow.operator

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def to_stream(self, *, name: str | None = None) -> Stream[K, V]:
        """Return the updates of the table as a stream; None means that the key was deleted.

        ``serdes.optional`` writes None as an empty body, which deletes the key for readers too.

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
        on_error: ErrorPolicy = "fail",
    ) -> End:
        """Write the updates of the table to a topic; no operator can follow.

        The parameters are those of :meth:`Stream.sink`.  A key that was deleted becomes a
        tombstone, a message without a body.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        >>> words.count().sink("counts", serdes.json)
        <end of 'sink-counts'>
        """
        return written(self._flow, topic, serializer, topics, key, partition, name, on_error)

    def map_values(
        self,
        function: Callable[[V], V2],
        *,
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V2]:
        """Replace the value of every key; deletes pass unchanged.

        Parameters
        ----------
        function
            Takes the value and returns the new one; None deletes the key.
        name
            Name of the operator.
        serde
            Serializes the new values.
        on_error
            What to do with a change on which the function raises; see :class:`Stream`.  If the
            change is left out, the next operators keep the row as it was.

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

    def where(
        self,
        condition: Callable[[V], object],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Keep the keys whose values satisfy a condition; the others are deleted.

        ``on_error`` says what to do with a change on which it raises; see :meth:`map_values`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> people = StreamBuilder("job").table("people", serdes.json)
        >>> people.where(lambda person: person["age"] >= 18)
        <table 'where-people'>
        """
        step = self._flow.begin("where", name, on_error=on_error)
        check_function("where", condition, ("value",), step.caller.origin)
        known = nullable_known(self._flow.value)
        return Table(step.add(WhereTable(**step.fields, function=condition), value=known))

    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    @overload
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[K, V, V2], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    def join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2], Out] | Callable[[K, V, V2], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        name: str | None = None,
        serde: Serde[Out] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Out]:
        """Join with another table: the result has a row for each key that both have.

        Parameters
        ----------
        right
            The other table.
        joiner
            Takes the left and the right value, or the key and both; None deletes the key.
        foreign_key
            Takes a left value and returns the key of the right row that it refers to; without it
            rows with the same key are joined.
        name
            Name of the operator and of its state store.
        serde
            Serializes the results.
        on_error
            What to do with a change on which the joiner or ``foreign_key`` raises; see
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
        return Table(joined(self._flow, "inner", right, joiner, foreign_key, name, serde, on_error))

    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2 | None], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    @overload
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[K, V, V2 | None], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    def left_join(
        self,
        right: Table[Any, V2],
        joiner: Callable[[V, V2 | None], Out] | Callable[[K, V, V2 | None], Out],
        *,
        foreign_key: Callable[[V], object] | None = None,
        name: str | None = None,
        serde: Serde[Out] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Out]:
        """Join with another table: the result has a row for each key of this one; see :meth:`join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> names, ages = builder.table("names", serdes.string), builder.table("ages", serdes.int)
        >>> names.left_join(ages, lambda name, age: (name, age))
        <table 'join-names-ages'>
        """
        return Table(joined(self._flow, "left", right, joiner, foreign_key, name, serde, on_error))

    @overload
    def outer_join(
        self,
        right: Table[K, V2],
        joiner: Callable[[V | None, V2 | None], Out],
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    @overload
    def outer_join(
        self,
        right: Table[K, V2],
        joiner: Callable[[K, V | None, V2 | None], Out],
        **options: Unpack[ValueOptions[Out]],
    ) -> Table[K, Out]: ...
    def outer_join(
        self,
        right: Table[K, V2],
        joiner: Callable[[V | None, V2 | None], Out] | Callable[[K, V | None, V2 | None], Out],
        *,
        name: str | None = None,
        serde: Serde[Out] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Out]:
        """Join with another table: the result has a row for each key of either; see :meth:`join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> here, there = builder.table("here", serdes.int), builder.table("there", serdes.int)
        >>> here.outer_join(there, lambda ours, theirs: (ours or 0) + (theirs or 0))
        <table 'join-here-there'>
        """
        return Table(joined(self._flow, "outer", right, joiner, None, name, serde, on_error))


class GlobalTable(OperatorHandle[K, Any, V]):
    """A table of which every partition has a whole copy; see :meth:`Stream.join`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __repr__(self) -> str:
        return f"<global table '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that makes the updates."""
        return self._flow.operator
