"""Aggregations: what they are described by, the same for keyed and for windowed streams."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal

from headrace import serdes
from headrace.errors import HeadraceError, TopologyError
from headrace.serdes.inference import hint_name, plain_serde_for, result_hint
from headrace.streams.flow import check_function
from headrace.topology import (
    Accumulator,
    AccumulatorSerde,
    Aggregate,
    Aggregation,
    Copies,
    CountWindow,
    CountWindows,
    EntriesSerde,
    SessionWindow,
    SessionWindows,
    SlidingWindow,
    SlidingWindows,
    TimeWindow,
    TimeWindows,
    mergeable,
)
from headrace.topology.accumulators import removable
from headrace.topology.stages import gives_updates

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.flow import Flow, Known, NextOperator
    from headrace.topology import Emit, ErrorPolicy, WindowAggregate
    from headrace.topology.aggregations import AggregationKind
    from headrace.topology.operators.windows import WindowEmit
    from headrace.topology.windows import Windows


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
    if plain_serde_for(values.hint) is None:
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


# Aggregations as operators: running ones, and ones of windows.


def running(
    flow: Flow,
    label: str,
    describe: Callable[[NextOperator], Gathering],
    name: str | None,
    emit: Emit,
    on_error: ErrorPolicy,
) -> Flow:
    """Add an aggregate that goes on for ever.

    Raises
    ------
    TopologyError
        It cannot gather what flows here, or keys cannot travel.
    """
    step = flow.begin(label, name, on_error=on_error)
    if emit not in ("update", "each"):
        raise TopologyError(
            f"{label} at {step.caller.origin} has emit={emit!r}",
            hint="emit is 'update' (latest result per key and batch) or 'each' (one per record)",
        )
    flow.key.check_key(step.name)
    gathering = describe(step)
    if gives_updates(flow.builder.operators, flow.operator):
        gathering = of_updates(gathering, step, emit)
    gathering.check_travel(step, combined=emit == "update" and gathering.merges)
    operator = Aggregate(
        **step.fields, aggregation=gathering.aggregation, key_serde=serdes.key, emit=emit
    )
    return step.add(operator, value=gathering.result)


#: What gathers by each kind of window.
_OPERATORS: dict[type[Windows], type[Any]] = {
    CountWindows: CountWindow,
    SessionWindows: SessionWindow,
    SlidingWindows: SlidingWindow,
    TimeWindows: TimeWindow,
}


def by_windows(
    step: NextOperator, gathering: Gathering, windows: Windows, grace: int, emit: WindowEmit
) -> tuple[Flow, WindowAggregate]:
    """Add an aggregate that has a result for each window.

    Raises
    ------
    TopologyError
        These windows cannot gather that.
    """
    _check_windows(step, gathering, windows, grace, emit)
    gathering.check_travel(step, combined=False)
    aggregation = gathering.aggregation
    operator: WindowAggregate = _OPERATORS[type(windows)](
        **step.fields,
        aggregation=aggregation,
        value_serde=_written(step.flow.value, aggregation.value_serde),
        windows=windows,
        grace=grace,
        emit=emit,
    )
    return step.add(operator, value=gathering.result), operator


def _check_windows(
    step: NextOperator, gathering: Gathering, windows: Windows, grace: int, emit: str
) -> None:
    if emit not in ("close", "update"):
        raise TopologyError(
            f"operator '{step.name}' (made at {step.caller.origin}) has emit={emit!r}",
            hint="emit is 'close' (one result per window) or 'update' (at every change)",
        )
    if type(windows) not in _OPERATORS:
        raise TopologyError(
            f"window at {step.caller.origin} needs windows, not {windows!r:.100}",
            hint="give what tumbling, hopping, sliding, session or count_window makes",
        )
    if grace and isinstance(windows, CountWindows):
        raise TopologyError(
            f"window at {step.caller.origin} has grace={grace} ms, but it counts records",
            hint="leave grace= out: nothing is late for windows that count records",
        )
    fixed = isinstance(windows, TimeWindows | CountWindows)
    if not (fixed or gathering.merges or gathering.aggregation.kind == "reduce"):
        raise TopologyError(
            f"operator '{step.name}' (made at {step.caller.origin}) gathers by windows that"
            " are put together from parts, and its accumulator cannot merge",
            hint="give the accumulator a merge(other) method",
        )


def _written(values: Known, chosen: Serde[Any]) -> Serde[Any]:
    """Choose what writes records that travel one by one, as late ones do.

    A count looks at no value, yet late ones are shown as they were where that is possible.
    """
    if chosen is not serdes.nothing:
        return chosen
    return values.serde or (None if values.hint is Any else values.simple_serde()) or chosen
