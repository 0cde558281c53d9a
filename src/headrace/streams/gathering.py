"""Aggregations as the front doors describe them: the same for keyed and for windowed streams."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import serdes
from headrace.errors import HeadraceError, TopologyError
from headrace.serdes.inference import hint_name, result_hint
from headrace.streams._calls import check_function
from headrace.topology import Accumulator, AccumulatorSerde, Aggregation, Copies, mergeable

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._flow import Known, Step

__all__ = ["Gathering", "gather_count", "gather_custom", "gather_reduce", "gather_sum"]


@dataclass(frozen=True, slots=True)
class Gathering:
    """An aggregation, and what is known of its results."""

    aggregation: Aggregation
    result: Known
    #: Records may be combined before the shuffle.
    merges: bool = True

    def check_travel(self, step: Step, *, combined: bool) -> None:
        """Refuse values that must travel one by one and have no serde.

        Raises
        ------
        TopologyError
            Their type is known and has no serde.
        """
        if not combined and self.aggregation.kind not in ("count", "reduce"):
            travelling(step)


def travelling(step: Step) -> Serde[Any]:
    """Choose the serde of values that move to the partition of their key."""
    return step.flow.value.needed_serde(step.name, "needs them in the partition of their key")


def gather_count(step: Step) -> Gathering:
    """Describe a count of records."""
    aggregation = Aggregation(kind="count", state_serde=serdes.int, value_serde=serdes.nothing)
    return Gathering(aggregation, step.known(builtins.int))


def gather_sum(step: Step, selector: Callable[[Any], Any] | None) -> Gathering:
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
    step: Step, function: Callable[[Any, Any], Any], serde: Serde[Any] | None
) -> Gathering:
    """Describe a fold of values into one."""
    check_function("reduce", function, ("result", "value"), step.caller.origin)
    chosen = serde or travelling(step)
    aggregation = Aggregation(
        kind="reduce", state_serde=chosen, value_serde=chosen, function=function
    )
    return Gathering(aggregation, step.known(step.flow.value.hint, chosen), merges=False)


def gather_custom(step: Step, accumulator: object, serde: Serde[Any] | None) -> Gathering:
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


def _selected(step: Step, label: str, selector: Callable[[Any], Any] | None) -> Known:
    if selector is None:
        return step.flow.value
    check_function(label, selector, ("value",), step.caller.origin)
    return step.known(result_hint(selector, step.caller.names))


def _sample(accumulator: object, step: Step) -> Accumulator[Any, Any]:
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


def _check_state(sample: Accumulator[Any, Any], serde: AccumulatorSerde, step: Step) -> None:
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
