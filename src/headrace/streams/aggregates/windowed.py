"""Aggregates of windowed streams besides count, sum, reduce and aggregate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.streams._options import WindowOptions
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.tables import Table
    from headrace.streams.windowed import WindowedTable
    from headrace.topology import ErrorPolicy
    from headrace.topology.operators.windows import WindowEmit


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
Real = TypeVar("Real", bound=float)


class WindowedGathered(ABC, Generic[K, V]):
    """What a windowed stream gathers of the records of each key and window."""

    def count_distinct(
        self,
        selector: Callable[[V], object] | None = None,
        *,
        approximate: bool = False,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, int]:
        """Count the different values of each window; see :meth:`KeyedStream.count_distinct`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> visits = StreamBuilder("job").source("visits", serdes.json)
        >>> by_page = visits.key_by(lambda v: v["page"]).window(tumbling(timedelta(hours=1)))
        >>> by_page.count_distinct(lambda v: v["user"], approximate=True)
        <windowed table 'count_distinct-visits'>
        """
        group = self._gathering(emit)
        return self._table(
            group.count_distinct(selector, approximate=approximate, name=name, on_error=on_error)
        )

    @overload
    def avg(
        self: WindowedGathered[K, Decimal],
        selector: None = None,
        **options: Unpack[WindowOptions],
    ) -> WindowedTable[K, Decimal, Decimal]: ...
    @overload
    def avg(
        self: WindowedGathered[K, Real],
        selector: None = None,
        **options: Unpack[WindowOptions],
    ) -> WindowedTable[K, Real, float]: ...
    @overload
    def avg(
        self,
        selector: Callable[[V], Decimal],
        **options: Unpack[WindowOptions],
    ) -> WindowedTable[K, V, Decimal]: ...
    @overload
    def avg(
        self,
        selector: Callable[[V], float],
        **options: Unpack[WindowOptions],
    ) -> WindowedTable[K, V, float]: ...
    def avg(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, Any, Any]:
        """Average the values of each window; see :meth:`KeyedStream.avg`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> readings = StreamBuilder("job").source("readings", serdes.json)
        >>> by_room = readings.key_by(lambda r: r["room"]).window(tumbling(timedelta(minutes=5)))
        >>> by_room.avg(lambda reading: reading["degrees"])
        <windowed table 'avg-readings'>
        """
        group: KeyedStream[K, Any] = self._gathering(emit)
        return self._table(group.avg(selector, name=name, on_error=on_error))

    def min(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, V]:
        """Keep the value with the least number of each window; see :meth:`KeyedStream.min`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.min(lambda order: order["price"])
        <windowed table 'min-orders'>
        """
        return self._table(self._gathering(emit).min(selector, name=name, on_error=on_error))

    def max(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, V]:
        """Keep the value with the greatest number of each window; see :meth:`KeyedStream.max`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.max(lambda order: order["price"])
        <windowed table 'max-orders'>
        """
        return self._table(self._gathering(emit).max(selector, name=name, on_error=on_error))

    def top(
        self,
        n: int,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, list[V]]:
        """Keep the values with the greatest numbers of each window; see :meth:`KeyedStream.top`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> by_item = orders.key_by(lambda o: o["item"]).window(tumbling(timedelta(days=1)))
        >>> by_item.top(3, lambda order: order["price"])
        <windowed table 'top-orders'>
        """
        return self._table(self._gathering(emit).top(n, selector, name=name, on_error=on_error))

    def collect(
        self,
        *,
        distinct: bool = False,
        limit: int | None = None,
        name: str | None = None,
        emit: WindowEmit = "close",
        on_error: ErrorPolicy = "fail",
    ) -> WindowedTable[K, V, list[V]]:
        """Keep the values of each window as a list; see :meth:`KeyedStream.collect`.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, session
        >>> clicks = StreamBuilder("job").source("clicks", serdes.string).key_by(str.lower)
        >>> clicks.window(session(timedelta(minutes=30))).collect(limit=100)
        <windowed table 'collect-clicks'>
        """
        group = self._gathering(emit)
        return self._table(
            group.collect(distinct=distinct, limit=limit, name=name, on_error=on_error)
        )

    @abstractmethod
    def _gathering(self, emit: WindowEmit) -> KeyedStream[K, V]:
        """Return the stream whose aggregates gather by these windows."""

    @abstractmethod
    def _table(self, table: Table[K, R]) -> WindowedTable[K, V, R]:
        """Return the windowed form of a table."""
