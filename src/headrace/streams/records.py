"""Operators that handle each record on its own."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace import serdes, topology
from headrace.errors import TopologyError
from headrace.serdes.inference import item_hint, pair_hints, result_hint
from headrace.streams.flow import Flow, NextOperator, accepts, check_function, check_record_function
from headrace.streams.sources import durations_of
from headrace.topology.callers import caller
from headrace.topology.names import check_operator_name

if TYPE_CHECKING:
    from headrace.serdes import Serde


def replaced(
    flow: Flow,
    kind: type[topology.Map | topology.FlatMap | topology.MapValues | topology.FlatMapValues],
    function: Callable[..., Any],
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Replace each record, or its value, by one or any number of others, as ``kind`` says."""
    step, takes_key = _begin(flow, kind.label, function, name, on_error)
    hint = result_hint(function, step.caller.names)
    if issubclass(kind, topology.FlatMap | topology.FlatMapValues):
        hint = item_hint(hint)
    operator = kind(**step.fields, function=function, takes_key=takes_key)
    if not kind.changes_key:
        return step.add(operator, value=step.known(hint, serde))
    key, value = pair_hints(hint)
    return step.add(operator, key=step.known(key), value=step.known(value, serde))


def mapped_async(
    flow: Flow,
    function: Callable[..., Awaitable[Any]],
    max_in_flight: int,
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Replace each value by the result of a coroutine."""
    step = flow.begin("map_async", name, on_error=on_error)
    takes_key = check_record_function("map_async", function, step.caller.origin, awaits=True)
    if max_in_flight < 1:
        raise TopologyError(
            f"map_async at {step.caller.origin} has max_in_flight={max_in_flight}",
            hint="max_in_flight must be at least 1",
        )
    hints = inspect.iscoroutinefunction(function)
    hint = result_hint(function, step.caller.names) if hints else Any
    operator = topology.MapAsync(
        **step.fields, function=function, takes_key=takes_key, max_in_flight=max_in_flight
    )
    return step.add(operator, value=step.known(hint, serde))


def kept_by_function(
    flow: Flow, predicate: Callable[..., Any], name: str | None, on_error: topology.ErrorPolicy
) -> Flow:
    """Drop the records for which a predicate is not true."""
    step = flow.begin("where", name, on_error=on_error)
    if not callable(predicate):
        raise TopologyError(
            f"where at {step.caller.origin} needs a function or an expression, not"
            f" {predicate!r:.100}",
            hint='for example where(lambda order: order.price > 100), or where(col("price") > 100)',
        )
    takes_key = check_record_function("where", predicate, step.caller.origin)
    return step.add(topology.Where(**step.fields, function=predicate, takes_key=takes_key))


def peeked(
    flow: Flow, function: Callable[..., Any], name: str | None, on_error: topology.ErrorPolicy
) -> Flow:
    """Call a function for each record and pass the record on."""
    step, takes_key = _begin(flow, "peek", function, name, on_error)
    return step.add(topology.Peek(**step.fields, function=function, takes_key=takes_key))


def keyed(
    flow: Flow, selector: Callable[..., Any], name: str | None, on_error: topology.ErrorPolicy
) -> Flow:
    """Set the key of each record."""
    step, takes_key = _begin(flow, "key_by", selector, name, on_error)
    known = step.known(result_hint(selector, step.caller.names))
    known.check_key(step.name)
    operator = topology.KeyBy(
        **step.fields, selector=selector, takes_key=takes_key, key_serde=serdes.key
    )
    return step.add(operator, key=known)


def timed(
    flow: Flow,
    function: Callable[[Any], datetime | int | None],
    durations: dict[str, timedelta | str | None],
    name: str | None,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Set the time of each record."""
    step = flow.begin("select_timestamp", name, on_error=on_error)
    check_function("select_timestamp", function, ("value",), step.caller.origin)
    what = f"operator '{step.name}' at {step.caller.origin}"
    fields: dict[str, Any] = {**step.fields, **durations_of(what, durations)}
    return step.add(topology.SelectTimestamp(**fields, function=function))


def _begin(
    flow: Flow, label: str, function: object, name: str | None, on_error: topology.ErrorPolicy
) -> tuple[NextOperator, bool]:
    step = flow.begin(label, name, on_error=on_error)
    return step, check_record_function(label, function, step.caller.origin)


# Processors of the user's own: ``process``.

_LONGEST_NAME = 100


def processed(
    flow: Flow,
    factory: object,
    declared: tuple[Iterable[topology.StateSpec], Iterable[topology.TimerSpec], Iterable[str]],
    lag: timedelta,
    name: str | None,
    serde: Serde[Any] | None,
    on_error: topology.ErrorPolicy,
) -> tuple[Flow, topology.Process]:
    """Hand records to a processor that declares states, timers and outputs.

    Raises
    ------
    TopologyError
        The factory cannot be called without arguments, a name is wrong or occurs twice, or there
        are states or timers but no keys.
    """
    step = flow.begin("process", name, on_error=on_error)
    if not callable(factory) or not accepts(factory, 0):
        raise TopologyError(
            f"process at {step.caller.origin} needs a class of processors, not {factory!r:.100}",
            hint="give it a subclass of Processor, or a function without parameters that makes one",
        )
    states, timers, outputs = tuple(declared[0]), tuple(declared[1]), tuple(declared[2])
    _check_names([*(s.name for s in states), *(t.name for t in timers)], outputs, step)
    fields = {**step.fields, "factory": factory, "outputs": outputs}
    if states or timers:
        fields |= {"states": states, "timers": timers, "lag": lag}
        operator: topology.Process = _keyed_process(flow, step, fields)
    else:
        operator = topology.Process(**fields)
    return step.add(operator, key=step.known(Any), value=step.known(Any, serde)), operator


def output_of(flow: Flow, process: topology.Process, name: str) -> Flow:
    """Return the place of the records that a processor forwards to a named child.

    Raises
    ------
    TopologyError
        The processor declares no such output.
    """
    if name not in process.outputs:
        raise TopologyError(
            f"operator '{process.name}' (made at {process.origin}) has no output '{name}':"
            f" it declares {', '.join(process.outputs) or 'none'}",
            hint=f"process(..., outputs=[{name!r}])",
        )
    output = topology.Output(
        name=f"{process.name}-{name}",
        parents=(process.name,),
        output=name,
        origin=caller().origin,
    )
    flow.builder.add(output)
    return replace(flow, operator=output.name)


def _keyed_process(flow: Flow, step: NextOperator, fields: dict[str, Any]) -> topology.KeyedProcess:
    if flow.key.hint is type(None):
        raise TopologyError(
            f"process at {step.caller.origin} declares states or timers, which belong to keys,"
            f" and the records of '{flow.operator}' have none",
            hint="give them keys first: key_by(...)",
        )
    flow.key.check_key(step.name)
    return topology.KeyedProcess(
        **fields,
        value_serde=flow.value.needed_serde(step.name, "keeps state by key"),
        key_serde=serdes.key,
    )


def _check_names(declared: list[str], outputs: tuple[str, ...], step: NextOperator) -> None:
    origin = step.caller.origin
    for name, times in [*Counter(declared).items(), *Counter(outputs).items()]:
        check_operator_name("job", name, f"declared at {origin}", stateful=False)
        if times > 1 or len(name) > _LONGEST_NAME:
            problem = "twice" if times > 1 else f"with more than {_LONGEST_NAME} characters"
            raise TopologyError(
                f"process at {origin} declares '{name}' {problem}", hint="choose another name"
            )
