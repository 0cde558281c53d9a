"""Aggregates of a keyed stream besides count, sum, reduce and aggregate."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from headrace.streams.aggregates.descriptions import (
    gather_avg,
    gather_collect,
    gather_count_distinct,
    gather_extreme,
    gather_top,
)
from headrace.streams.stream import Stream

if TYPE_CHECKING:
    from headrace.streams._flow import Step
    from headrace.streams._options import AggregateOptions
    from headrace.streams.aggregates.descriptions import Gathering
    from headrace.streams.keyed import Table
    from headrace.topology import Emit, ErrorPolicy

__all__ = ["Gathered"]

K = TypeVar("K")
V = TypeVar("V")
Real = TypeVar("Real", bound=float)


class Gathered(Stream[K, V]):
    """What a keyed stream gathers of its records."""

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
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``, as for :meth:`KeyedStream.sum`.

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
        step = self._aggregate_step("count_distinct", name, emit, on_error)
        return self._gather(
            step, gather_count_distinct(step, selector, approximate=approximate), emit
        )

    @overload
    def avg(
        self: Gathered[K, Decimal],
        selector: None = None,
        **options: Unpack[AggregateOptions],
    ) -> Table[K, Decimal]: ...
    @overload
    def avg(
        self: Gathered[K, Real],
        selector: None = None,
        **options: Unpack[AggregateOptions],
    ) -> Table[K, float]: ...
    @overload
    def avg(
        self,
        selector: Callable[[V], Decimal],
        **options: Unpack[AggregateOptions],
    ) -> Table[K, Decimal]: ...
    @overload
    def avg(
        self,
        selector: Callable[[V], float],
        **options: Unpack[AggregateOptions],
    ) -> Table[K, float]: ...
    def avg(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, Any]:
        """Average the values of each key, or the numbers that a selector finds in them.

        Number and sum are kept, so the average of integers is the float nearest to the true one,
        and that of decimals is exact to 28 digits.

        Parameters
        ----------
        selector
            Takes the value, gives the number; without it the value is the number.
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``, as for :meth:`KeyedStream.sum`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).avg(lambda order: order["price"])
        <table 'avg-orders'>
        """
        step = self._aggregate_step("avg", name, emit, on_error)
        return self._gather(step, gather_avg(step, selector), emit)

    def min(
        self,
        selector: Callable[[V], Any] | None = None,
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
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``, as for :meth:`KeyedStream.sum`.

        Raises
        ------
        TopologyError
            The values are of a known type for which there is no serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).min(lambda order: order["price"])
        <table 'min-orders'>
        """
        step = self._aggregate_step("min", name, emit, on_error)
        return self._gather(step, gather_extreme(step, "min", selector), emit)

    def max(
        self,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, V]:
        """Keep the value with the greatest result of a selector; of equal ones the first.

        Takes what :meth:`min` takes.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).max(lambda order: order["price"])
        <table 'max-orders'>
        """
        step = self._aggregate_step("max", name, emit, on_error)
        return self._gather(step, gather_extreme(step, "max", selector), emit)

    def top(
        self,
        n: int,
        selector: Callable[[V], Any] | None = None,
        *,
        name: str | None = None,
        emit: Emit = "update",
        on_error: ErrorPolicy = "fail",
    ) -> Table[K, list[V]]:
        """Keep the values with the greatest results of a selector, best first.

        Parameters
        ----------
        n
            How many; of equal ones the first.
        selector
            Takes the value, gives what is compared; without it the values are compared.
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``, as for :meth:`KeyedStream.sum`.

        Raises
        ------
        TopologyError
            ``n`` is not positive, or the values are of a known type for which there is no serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.key_by(lambda order: order["item"]).top(3, lambda order: order["price"])
        <table 'top-orders'>
        """
        step = self._aggregate_step("top", name, emit, on_error)
        return self._gather(step, gather_top(step, n, selector), emit)

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
        name
            Name of the operator and of its state store.
        emit
            ``"update"`` or ``"each"``.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``, as for :meth:`KeyedStream.sum`.

        Raises
        ------
        TopologyError
            The limit is not positive, or the values are of a known type for which there is no
            serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> words = StreamBuilder("job").source("words", serdes.string)
        >>> words.key_by(len).collect(distinct=True, limit=100)
        <table 'collect-words'>
        """
        step = self._aggregate_step("collect", name, emit, on_error)
        return self._gather(step, gather_collect(step, distinct=distinct, limit=limit), emit)

    def _aggregate_step(
        self, label: str, name: str | None, emit: str, on_error: ErrorPolicy = "fail"
    ) -> Step:
        raise NotImplementedError

    def _gather(self, step: Step, gathering: Gathering, emit: Emit) -> Table[K, Any]:
        raise NotImplementedError
