"""The ways from a stream into a join."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.streams._records import Records
from headrace.streams.joins import StreamJoin

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.stream import Stream
    from headrace.topology import JoinKind

__all__ = ["Joins"]

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")
Out = TypeVar("Out")

Interval = timedelta | tuple[timedelta, timedelta]


class Joins(Records[K, V]):
    """A place in the graph, and what it can be joined with."""

    @overload
    def join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V, V2]: ...
    @overload
    def join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2], Out] | Callable[[Any, V, V2], Out],
        *,
        where: Callable[[V], Any] | None = None,
        equal_to: Callable[[V2], Any] | None = None,
        within: Interval | None = None,
        grace: timedelta = ...,
        name: str | None = None,
        serde: Serde[Out] | None = None,
    ) -> KeyedStream[Any, Out]: ...
    def join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records of two streams that have the same key.

        With nothing but ``right`` it begins a chain (``.where(...).equal_to(...)`` and so on) that
        :meth:`StreamJoin.apply` ends; with a joiner it is the whole join.

        Parameters
        ----------
        right
            The other stream; it may be this one.
        joiner
            Takes left and right value, or key and both.
        where, equal_to
            Give the left and the right side's key; without them the records' own keys meet.
        within
            How far apart the times may be: one length, or how much earlier and how much later than
            the left record the right one may be.  Without it the last value of each side and key
            meets, whenever one of them comes.
        grace
            How much longer to wait for late records.
        name
            Name of the operator that keeps the sides, and of its state store.
        serde
            Writes the results.

        Raises
        ------
        TopologyError
            See :meth:`StreamJoin.apply`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> prices = builder.source("prices", serdes.with_key(serdes.float))
        >>> orders.join(prices, lambda order, price: order["amount"] * price)
        <keyed stream 'joined-orders-prices'>
        """
        return self._join("inner", right, joiner, **options)

    @overload
    def left_join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V, V2 | None]: ...
    @overload
    def left_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V, V2 | None], Out] | Callable[[Any, V, V2 | None], Out],
        *,
        where: Callable[[V], Any] | None = None,
        equal_to: Callable[[V2], Any] | None = None,
        within: Interval | None = None,
        grace: timedelta = ...,
        name: str | None = None,
        serde: Serde[Out] | None = None,
    ) -> KeyedStream[Any, Out]: ...
    def left_join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records of two streams, and give a left record alone where nothing meets it.

        By time, that happens once, when its time is up; without a window, at once.  See
        :meth:`join`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> prices = builder.source("prices", serdes.with_key(serdes.float))
        >>> orders.left_join(prices, lambda order, price: (order, price or 0.0))
        <keyed stream 'joined-orders-prices'>
        """
        return self._join("left", right, joiner, **options)

    @overload
    def outer_join(self, right: Stream[Any, V2]) -> StreamJoin[K, V, V2, V | None, V2 | None]: ...
    @overload
    def outer_join(
        self,
        right: Stream[Any, V2],
        joiner: Callable[[V | None, V2 | None], Out] | Callable[[Any, V | None, V2 | None], Out],
        *,
        where: Callable[[V], Any] | None = None,
        equal_to: Callable[[V2], Any] | None = None,
        within: Interval | None = None,
        grace: timedelta = ...,
        name: str | None = None,
        serde: Serde[Out] | None = None,
    ) -> KeyedStream[Any, Out]: ...
    def outer_join(self, right: Any, joiner: Any = None, **options: Any) -> Any:
        """Pair records of two streams, and give a record of either alone where nothing meets it.

        See :meth:`left_join`.

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

    def _join(
        self,
        kind: JoinKind,
        right: Stream[Any, Any],
        joiner: Callable[..., Any] | None,
        *,
        name: str | None = None,
        serde: Serde[Any] | None = None,
        **how: Any,
    ) -> Any:
        made: StreamJoin[Any, Any, Any, Any, Any] = StreamJoin(self._flow, right._flow, kind)  # noqa: SLF001 - a side of the same join
        made = _described(made, **how)
        return made if joiner is None else made.apply(joiner, name=name, serde=serde)


def _described(
    made: StreamJoin[Any, Any, Any, Any, Any],
    *,
    where: Callable[[Any], Any] | None = None,
    equal_to: Callable[[Any], Any] | None = None,
    within: Interval | None = None,
    grace: timedelta = timedelta(0),
) -> StreamJoin[Any, Any, Any, Any, Any]:
    if where is not None:
        made = made.where(where)
    if equal_to is not None:
        made = made.equal_to(equal_to)
    if within is not None:
        made = made.within(*within) if isinstance(within, tuple) else made.within(within)
    return made.grace(grace)
