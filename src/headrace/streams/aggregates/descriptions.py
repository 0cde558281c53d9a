"""Aggregations as the front doors describe them: the same for keyed and for windowed streams."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from headrace import serdes
from headrace.errors import HeadraceError, TopologyError
from headrace.serdes.inference import hint_name, result_hint, serde_for
from headrace.streams.sources import check_function
from headrace.streams.stream import Stream
from headrace.topology import (
    Accumulator,
    AccumulatorSerde,
    Aggregation,
    Copies,
    EntriesSerde,
    mergeable,
)
from headrace.topology.accumulators import removable

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import AggregateOptions
    from headrace.streams.sources import Known, NextOperator
    from headrace.streams.tables import Table
    from headrace.topology import Emit, ErrorPolicy
    from headrace.topology.aggregations import AggregationKind


@dataclass(frozen=True, slots=True)
class Gathering:
    """An aggregation, and what is known of its results."""

    aggregation: Aggregation
    result: Known
    #: Records may be combined before the shuffle.
    merges: bool = True

    def check_travel(self, step: NextOperator, *, combined: bool) -> None:
        """Refuse values that must travel one by one and have no serde.

        Raises
        ------
        TopologyError
            Their type is known and has no serde.
        """
        if not combined and self.aggregation.kind not in ("count", "reduce"):
            travelling(step)


def travelling(step: NextOperator) -> Serde[Any]:
    """Choose the serde of values that move to the partition of their key."""
    return step.flow.value.needed_serde(step.name, "needs them in the partition of their key")


def gather_count(step: NextOperator) -> Gathering:
    """Describe a count of records."""
    aggregation = Aggregation(kind="count", state_serde=serdes.int, value_serde=serdes.nothing)
    return Gathering(aggregation, step.known(builtins.int))


def gather_sum(step: NextOperator, selector: Callable[[Any], Any] | None) -> Gathering:
    """Describe a sum of values, or of what a selector finds in them."""
    numbers = _selected(step, "sum", selector)
    aggregation = Aggregation(
        kind="sum",
        state_serde=serdes.int if numbers.hint is builtins.int else serdes.plain,
        value_serde=step.flow.value.serde_or_plain(),
        function=selector,
    )
    return Gathering(aggregation, step.known(numbers.hint))


def gather_reduce(
    step: NextOperator, function: Callable[[Any, Any], Any], serde: Serde[Any] | None
) -> Gathering:
    """Describe a fold of values into one."""
    check_function("reduce", function, ("result", "value"), step.caller.origin)
    chosen = serde or travelling(step)
    aggregation = Aggregation(
        kind="reduce", state_serde=chosen, value_serde=chosen, function=function
    )
    return Gathering(aggregation, step.known(step.flow.value.hint, chosen), merges=False)


def gather_custom(step: NextOperator, accumulator: object, serde: Serde[Any] | None) -> Gathering:
    """Describe a fold of values into accumulators of the user's own."""
    sample = _sample(accumulator, step)
    make: Any = Copies(accumulator) if isinstance(accumulator, Accumulator) else accumulator
    state = AccumulatorSerde(make, serde or serdes.plain)
    _check_state(sample, state, step)
    aggregation = Aggregation(
        kind="custom",
        state_serde=state,
        value_serde=step.flow.value.serde_or_plain(),
        accumulator=make,
    )
    result = step.known(result_hint(sample.result, step.caller.names))
    return Gathering(aggregation, result, merges=mergeable(sample))


def gather_count_distinct(
    step: NextOperator, selector: Callable[[Any], object] | None, *, approximate: bool
) -> Gathering:
    """Describe a count of different values."""
    values = _selected(step, "count_distinct", selector)
    if serde_for(values.hint) is None:
        kind = hint_name(values.hint)
        raise TopologyError(
            f"count_distinct at {step.caller.origin} cannot tell values of type {kind} apart:"
            " only plain data has one encoding for equal values",
            hint=f"give a selector that finds something plain that identifies the {kind}",
        )
    aggregation = Aggregation(
        kind="estimate_distinct" if approximate else "count_distinct",
        state_serde=serdes.bytes if approximate else serdes.plain,
        value_serde=step.flow.value.serde_or_plain(),
        function=selector,
    )
    return Gathering(aggregation, step.known(builtins.int))


def gather_avg(step: NextOperator, selector: Callable[[Any], Any] | None) -> Gathering:
    """Describe an average of values, or of what a selector finds in them."""
    numbers = _selected(step, "avg", selector)
    aggregation = Aggregation(
        kind="avg",
        state_serde=serdes.plain,
        value_serde=step.flow.value.serde_or_plain(),
        function=selector,
    )
    floats = numbers.hint in (builtins.int, builtins.float)
    return Gathering(aggregation, step.known(builtins.float if floats else numbers.hint))


def gather_extreme(
    step: NextOperator, kind: Literal["min", "max"], selector: Callable[[Any], Any] | None
) -> Gathering:
    """Describe the value with the least or the greatest number."""
    _selected(step, kind, selector)
    chosen = travelling(step)
    aggregation = Aggregation(
        kind=kind, state_serde=EntriesSerde(chosen), value_serde=chosen, function=selector
    )
    return Gathering(aggregation, step.known(step.flow.value.hint, chosen))


def gather_top(step: NextOperator, n: int, selector: Callable[[Any], Any] | None) -> Gathering:
    """Describe the values with the greatest numbers."""
    _selected(step, "top", selector)
    _check_limit(step, "top", n)
    return _listed(step, "top", n, selector)


def gather_collect(step: NextOperator, *, distinct: bool, limit: int | None) -> Gathering:
    """Describe a list of the values."""
    if limit is not None:
        _check_limit(step, "collect", limit)
    return _listed(step, "collect_distinct" if distinct else "collect", limit, None)


def of_updates(gathering: Gathering, step: NextOperator, emit: str) -> Gathering:
    """Describe the same for values that take earlier ones back.

    Raises
    ------
    TopologyError
        This kind of aggregate cannot take a value back, or would do so record by record.
    """
    aggregation = gathering.aggregation
    what = f"'{step.name}' (made at {step.caller.origin}) is fed by updates, which take earlier"
    if emit == "each":
        raise TopologyError(
            f"{what} results back, and so has no result for each record",
            hint='leave emit="each" out here, or give it to the aggregate in front',
        )
    refused = _CANNOT_TAKE_BACK.get(aggregation.kind)
    if aggregation.accumulator is not None and not removable(aggregation.accumulator()):
        refused = "give your accumulator a remove(value)"
    if refused is not None:
        raise TopologyError(
            f"{what} results back, and it cannot take a value back",
            hint=f'{refused}; or give emit="each" to the aggregate in front for a plain stream of'
            " results",
        )
    state = _UPDATED_STATE.get(aggregation.kind, EntriesSerde(serdes.bytes))
    updated = replace(
        aggregation,
        updates=True,
        state_serde=EntriesSerde(aggregation.state_serde)
        if aggregation.kind == "custom"
        else state,
        value_serde=travelling(step),
    )
    return replace(gathering, aggregation=updated, merges=False)


_CANNOT_TAKE_BACK = {
    "estimate_distinct": "count exactly, without approximate=True",
    "reduce": "use aggregate with an accumulator that has remove(value)",
}
_UPDATED_STATE: dict[str, Serde[Any]] = {
    "avg": serdes.plain,
    "count": serdes.int,
    "sum": serdes.plain,
}


def _listed(
    step: NextOperator,
    kind: AggregationKind,
    limit: int | None,
    selector: Callable[[Any], Any] | None,
) -> Gathering:
    chosen = travelling(step)
    hint = step.flow.value.hint
    aggregation = Aggregation(
        kind=kind,
        state_serde=EntriesSerde(chosen),
        value_serde=chosen,
        function=selector,
        limit=limit,
    )
    return Gathering(aggregation, step.known(GenericAlias(list, (hint,))))


def _check_limit(step: NextOperator, label: str, limit: object) -> None:
    if type(limit) is not int or limit < 1:
        raise TopologyError(
            f"{label} at {step.caller.origin} cannot keep {limit!r} values",
            hint="give a positive number",
        )


def _selected(step: NextOperator, label: str, selector: Callable[[Any], Any] | None) -> Known:
    if selector is None:
        return step.flow.value
    check_function(label, selector, ("value",), step.caller.origin)
    return step.known(result_hint(selector, step.caller.names))


def _sample(accumulator: object, step: NextOperator) -> Accumulator[Any, Any]:
    if isinstance(accumulator, Accumulator):
        return accumulator
    check_function("aggregate", accumulator, (), step.caller.origin)
    assert callable(accumulator)
    try:
        sample = accumulator()
    except Exception as error:
        raise TopologyError(
            f"aggregate at {step.caller.origin} could not make an accumulator:"
            f" {type(error).__name__}: {error}",
            hint="give a class or function that can be called without arguments",
        ) from error
    if not isinstance(sample, Accumulator):
        raise TopologyError(
            f"aggregate at {step.caller.origin} needs an Accumulator or what makes one; it got"
            f" {hint_name(type(sample))}",
            hint="derive your class from headrace.Accumulator",
        )
    return sample


def _check_state(
    sample: Accumulator[Any, Any], serde: AccumulatorSerde, step: NextOperator
) -> None:
    try:
        serde.serialize(sample)
    except Exception as error:
        reason = error.message if isinstance(error, HeadraceError) else error
        raise TopologyError(
            f"aggregate at {step.caller.origin}: the state of {hint_name(type(sample))} cannot be"
            f" written by serde {serde!r}: {reason}",
            hint="keep plain data in its attributes, give it a state() and restore(state) that do,"
            " or name a serde with serde=",
        ) from error


# Aggregates of a keyed stream besides count, sum, reduce and aggregate.

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
    ) -> NextOperator:
        raise NotImplementedError

    def _gather(self, step: NextOperator, gathering: Gathering, emit: Emit) -> Table[K, Any]:
        raise NotImplementedError
