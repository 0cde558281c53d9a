"""Aggregates as values, and the aggregations that keyed and windowed streams make of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, overload

from headrace import serdes, topology
from headrace.columns import Expression
from headrace.columns.cells import CellsSerde
from headrace.errors import HeadraceError, TopologyError
from headrace.serdes.inference import hint_name, plain_serde_for, result_hint
from headrace.streams.flow import Flow, Known, NextOperator, check_function
from headrace.topology.accumulators import removable
from headrace.topology.stages import gives_updates

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.aggregations import AggregationKind
    from headrace.topology.operators.windows import WindowEmit
    from headrace.topology.windows import Windows


V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)
Number = int | float | Decimal
Column = Expression | str
Row = dict[str, Any]


# The arguments of agg.

#: The names of functions that differ from the names of their kinds, by kind.
_LABELS: dict[AggregationKind, str] = {
    "collect_distinct": "collect",
    "custom": "aggregate",
    "estimate_distinct": "count_distinct",
}


@dataclass(frozen=True, slots=True)
class Measure(Generic[V_contra]):
    """One aggregate of the values of a key, made by :func:`count`, :func:`sum_` and so on.

    A measure of values takes a function in ``key_by(...).agg``, and a column in
    ``group_by(...).agg``.
    """

    kind: AggregationKind
    #: A function of the value, a column, the reducer, or an accumulator or its factory.
    of: Callable[..., Any] | topology.Accumulator[V_contra, Any] | Column | None = None
    #: The largest number of values to keep.
    limit: int | None = None
    #: Serializes what a reducer or an accumulator keeps.
    serde: Serde[Any] | None = None
    name: str = ""

    def named(self, name: str) -> Measure[V_contra]:
        """Return the measure under a name; use this for names that ``agg`` has as parameters."""
        return replace(self, name=name)

    @property
    def label(self) -> str:
        """The name of the method for this kind."""
        return _LABELS.get(self.kind, self.kind)


def count(of: Column | None = None) -> Measure[object]:
    """Count the records, or only those in which a column is not null.

    Examples
    --------
    >>> from headrace import StreamBuilder, count, serdes
    >>> words = StreamBuilder("job").source("words", serdes.string)
    >>> words.key_by(len).agg(count()), words.group_by("value").agg(words=count())
    (<table 'agg-words'>, <table 'agg-words-2'>)
    """
    return Measure("count", of)


@overload
def count_distinct(of: Column | None = None, *, approximate: bool = False) -> Measure[Any]: ...
@overload
def count_distinct(of: Callable[[V], object], *, approximate: bool = False) -> Measure[V]: ...
def count_distinct(
    of: Callable[..., object] | Column | None = None, *, approximate: bool = False
) -> Measure[Any]:
    """Count different values, results, or values of a column that are neither null nor NaN.

    See :meth:`KeyedStream.count_distinct`.
    """
    return Measure("estimate_distinct" if approximate else "count_distinct", of)


@overload
def sum_(of: Column | None = None) -> Measure[Any]: ...
@overload
def sum_(of: Callable[[V], Number]) -> Measure[V]: ...
def sum_(of: Callable[..., Number] | Column | None = None) -> Measure[Any]:
    """Add up the values, the results of a function, or a column; integers and decimals are exact.

    The sum of a column is null if the column has no value.
    """
    return Measure("sum", of)


@overload
def avg(of: Column | None = None) -> Measure[Any]: ...
@overload
def avg(of: Callable[[V], Number]) -> Measure[V]: ...
def avg(of: Callable[..., Number] | Column | None = None) -> Measure[Any]:
    """Average the values, the results of a function, or a column; decimals give a decimal.

    The average of a column is null if the column has no value.
    """
    return Measure("avg", of)


@overload
def min_(of: Column | None = None) -> Measure[Any]: ...
@overload
def min_(of: Callable[[V], Any]) -> Measure[V]: ...
def min_(of: Callable[..., Any] | Column | None = None) -> Measure[Any]:
    """Keep the whole value with the least result of a function, or the least value of a column."""
    return Measure("min", of)


@overload
def max_(of: Column | None = None) -> Measure[Any]: ...
@overload
def max_(of: Callable[[V], Any]) -> Measure[V]: ...
def max_(of: Callable[..., Any] | Column | None = None) -> Measure[Any]:
    """Keep the whole value with the greatest result of a function, or the greatest of a column."""
    return Measure("max", of)


@overload
def top(n: int, of: Column | None = None) -> Measure[Any]: ...
@overload
def top(n: int, of: Callable[[V], Any]) -> Measure[V]: ...
def top(n: int, of: Callable[..., Any] | Column | None = None) -> Measure[Any]:
    """Keep the ``n`` values with the greatest results of a function, or the greatest of a column.

    A column gives a list of its values, the greatest first, without null and NaN; see also
    :meth:`KeyedStream.top`.
    """
    return Measure("top", of, limit=n)


def collect(*, distinct: bool = False, limit: int | None = None) -> Measure[object]:
    """Keep the values as a list, in the order of arrival; see :meth:`KeyedStream.collect`."""
    return Measure("collect_distinct" if distinct else "collect", limit=limit)


def reduce(function: Callable[[V, V], V], *, serde: Serde[V] | None = None) -> Measure[V]:
    """Fold values into one by a function; see :meth:`KeyedStream.reduce`."""
    return Measure("reduce", function, serde=serde)


def aggregate(
    accumulator: topology.Accumulator[V, Any] | Callable[[], topology.Accumulator[V, Any]],
    *,
    serde: Serde[Any] | None = None,
) -> Measure[V]:
    """Fold values into an accumulator of your own; see :meth:`KeyedStream.aggregate`."""
    return Measure("custom", accumulator, serde=serde)


def measures_of(
    step: NextOperator, measures: Sequence[Any], named: Mapping[str, Any]
) -> list[Measure[Any]]:
    """Return all measures that ``agg`` was given, each with its name if it has one.

    Raises
    ------
    TopologyError
        There is none, or one of them is not a measure.
    """
    for one in (*measures, *named.values()):
        if not isinstance(one, Measure):
            raise TopologyError(
                f"agg at {step.caller.origin} takes aggregates, not {one!r:.100}",
                hint='make them with count(), sum_("price") and their like, from headrace',
            )
    if not measures and not named:
        raise TopologyError(
            f"agg at {step.caller.origin} has nothing to compute", hint="for example agg(n=count())"
        )
    return [*measures, *(one.named(name) for name, one in named.items())]


# From a measure to the aggregation of a keyed or a windowed stream.


@dataclass(frozen=True, slots=True)
class Gathering:
    """An aggregation, and the type and serde of its results."""

    aggregation: topology.Aggregation
    result: Known
    #: Whether records may be combined before the shuffle.
    merges: bool = True
    #: Whether windows may be merged from parts.
    meets: bool = True

    def check_travel(self, step: NextOperator, *, combined: bool) -> None:
        """Check that values that must travel one by one have a serde.

        Raises
        ------
        TopologyError
            The type of the values is known and has no serde.
        """
        if not combined and self.aggregation.kinds - {"count", "reduce"}:
            travelling(step)


def travelling(step: NextOperator) -> Serde[Any]:
    """Return the serde of values that move to the partition of their key."""
    return step.flow.value.needed_serde(step.name, "needs them in the partition of their key")


def gathered(step: NextOperator, measure: Measure[Any]) -> Gathering:
    """Make the aggregation of one measure.

    Raises
    ------
    TopologyError
        The measure cannot aggregate the records of this stream.
    """
    if isinstance(measure.of, Expression | str):
        raise TopologyError(
            f"{measure.label} at {step.caller.origin} names the column {measure.of!s}, but"
            " a keyed stream takes functions of the value",
            hint='give it a function, such as lambda order: order["price"], or group by columns:'
            ' group_by("city").agg(...)',
        )
    match measure.kind:
        case "reduce":
            return _reduced(step, measure)
        case "custom":
            return _custom(step, measure)
    if measure.of is not None:
        check_function(measure.label, measure.of, ("value",), step.caller.origin)
    match measure.kind:
        case "min" | "max" | "top" | "collect" | "collect_distinct":
            return _kept(step, measure)
        case "count_distinct" | "estimate_distinct":
            return _distinct(step, measure)
    return _number(step, measure)


def gathered_row(
    step: NextOperator, measures: Sequence[Any], named: Mapping[str, Any]
) -> Gathering:
    """Make one aggregation of several measures, whose result is a row.

    Raises
    ------
    TopologyError
        A measure cannot aggregate the records of this stream, or two have the same name.
    """
    chosen = measures_of(step, measures, named)
    parts: dict[str, Gathering] = {}
    for one in chosen:
        name = one.name or one.label
        if name in parts:
            raise TopologyError(
                f"agg at {step.caller.origin} gives two aggregates the name '{name}'",
                hint="give one of them another name, with .named(...) or as name=...",
            )
        parts[name] = gathered(step, one)
    writers = [one.serde for one in chosen if one.kind == "reduce" and one.serde is not None]
    writers += [part.aggregation.value_serde for part in parts.values()]
    aggregation = topology.Aggregation(
        kind="row",
        state_serde=CellsSerde(packs=True),
        value_serde=next((one for one in writers if one is not serdes.nothing), serdes.nothing),
        parts=tuple((name, part.aggregation) for name, part in parts.items()),
    )
    hints = tuple(part.result.hint for part in parts.values())
    return Gathering(
        aggregation,
        step.known(GenericAlias(dict, (str, Union[hints]))),  # noqa: UP007 - the types are known only now
        merges=all(part.merges for part in parts.values()),
        meets=all(part.meets for part in parts.values()),
    )


def _number(step: NextOperator, measure: Measure[Any]) -> Gathering:
    """Make the aggregation of a count, a sum or an average."""
    if measure.kind == "count":
        counting = topology.Aggregation(
            kind="count", state_serde=serdes.int, value_serde=serdes.nothing
        )
        return Gathering(counting, step.known(builtins.int))
    numbers = _selected(step, measure).hint
    averages = measure.kind == "avg"
    aggregation = topology.Aggregation(
        kind=measure.kind,
        state_serde=serdes.int if numbers is builtins.int and not averages else serdes.plain,
        value_serde=step.flow.value.serde_or_plain(),
        function=_function(measure),
    )
    floats = averages and numbers in (builtins.int, builtins.float)
    return Gathering(aggregation, step.known(builtins.float if floats else numbers))


def _distinct(step: NextOperator, measure: Measure[Any]) -> Gathering:
    values = _selected(step, measure)
    if plain_serde_for(values.hint) is None:
        kind = hint_name(values.hint)
        raise TopologyError(
            f"count_distinct at {step.caller.origin} cannot tell values of type {kind} apart:"
            " only plain data has one encoding for equal values",
            hint=f"give a selector that returns plain data that identifies the {kind}",
        )
    aggregation = topology.Aggregation(
        kind=measure.kind,
        state_serde=serdes.plain if measure.kind == "count_distinct" else serdes.bytes,
        value_serde=step.flow.value.serde_or_plain(),
        function=_function(measure),
    )
    return Gathering(aggregation, step.known(builtins.int))


def check_limit(step: NextOperator, measure: Measure[Any]) -> None:
    """Refuse a number of values that cannot be kept.

    Raises
    ------
    TopologyError
        It is not a positive number.
    """
    if measure.limit is not None and (type(measure.limit) is not int or measure.limit < 1):
        raise TopologyError(
            f"{measure.label} at {step.caller.origin} cannot keep {measure.limit!r} values",
            hint="give a positive number",
        )


def _kept(step: NextOperator, measure: Measure[Any]) -> Gathering:
    """Make an aggregation that keeps whole values."""
    check_limit(step, measure)
    chosen = travelling(step)
    aggregation = topology.Aggregation(
        kind=measure.kind,
        state_serde=topology.EntriesSerde(chosen),
        value_serde=chosen,
        function=_function(measure),
        limit=measure.limit,
    )
    hint = step.flow.value.hint
    if measure.kind in ("min", "max"):
        return Gathering(aggregation, step.known(hint, chosen))
    return Gathering(aggregation, step.known(GenericAlias(list, (hint,))))


def _reduced(step: NextOperator, measure: Measure[Any]) -> Gathering:
    check_function("reduce", measure.of, ("result", "value"), step.caller.origin)
    chosen = measure.serde or travelling(step)
    aggregation = topology.Aggregation(
        kind="reduce", state_serde=chosen, value_serde=chosen, function=_function(measure)
    )
    return Gathering(aggregation, step.known(step.flow.value.hint, chosen), merges=False)


def _custom(step: NextOperator, measure: Measure[Any]) -> Gathering:
    sample = _sample(measure.of, step)
    make: Any = (
        topology.Copies(measure.of) if isinstance(measure.of, topology.Accumulator) else measure.of
    )
    state = topology.AccumulatorSerde(make, measure.serde or serdes.plain)
    _check_state(sample, state, step)
    aggregation = topology.Aggregation(
        kind="custom",
        state_serde=state,
        value_serde=step.flow.value.serde_or_plain(),
        accumulator=make,
    )
    result = step.known(result_hint(sample.result, step.caller.names))
    merges = topology.mergeable(sample)
    return Gathering(aggregation, result, merges=merges, meets=merges)


def _selected(step: NextOperator, measure: Measure[Any]) -> Known:
    """Return what is known of the values that the measure adds up, averages or counts."""
    function = _function(measure)
    if function is None:
        return step.flow.value
    return step.known(result_hint(function, step.caller.names))


def _function(measure: Measure[Any]) -> Callable[..., Any] | None:
    assert measure.of is None or callable(measure.of)
    return measure.of


def of_updates(gathering: Gathering, step: NextOperator, emit: str) -> Gathering:
    """Return the aggregation for a stream of updates, which take earlier values back.

    Raises
    ------
    TopologyError
        This kind of aggregate cannot take a value back, or it has ``emit="each"``.
    """
    what = f"'{step.name}' (made at {step.caller.origin}) is fed by updates, which take earlier"
    if emit == "each":
        raise TopologyError(
            f"{what} results back, and so has no result for each record",
            hint='leave emit="each" out here, or set it on the aggregate before this one',
        )
    updated = _taking_back(gathering.aggregation, what, travelling(step))
    return replace(gathering, aggregation=updated, merges=False)


def _taking_back(
    aggregation: topology.Aggregation, what: str, values: Serde[Any]
) -> topology.Aggregation:
    refused = _CANNOT_TAKE_BACK.get(aggregation.kind)
    if aggregation.accumulator is not None and not removable(aggregation.accumulator()):
        refused = "give your accumulator a remove(value) method"
    if refused is not None:
        raise TopologyError(
            f"{what} results back, and it cannot take a value back",
            hint=f'{refused}; or set emit="each" on the aggregate before this one, for a plain'
            " stream of results",
        )
    match aggregation.kind:
        case "row":
            state = aggregation.state_serde
        case "custom":
            state = topology.EntriesSerde(aggregation.state_serde)
        case kind:
            state = _UPDATED_STATE.get(kind, topology.EntriesSerde(serdes.bytes))
    parts = tuple(
        (name, _taking_back(part, f"'{name}' of {what}", values))
        for name, part in aggregation.parts
    )
    return replace(aggregation, updates=True, state_serde=state, value_serde=values, parts=parts)


_CANNOT_TAKE_BACK = {
    "estimate_distinct": "count exactly, without approximate=True",
    "reduce": "use aggregate with an accumulator that has remove(value)",
}
_UPDATED_STATE: dict[str, Serde[Any]] = {
    "avg": serdes.plain,
    "count": serdes.int,
    "sum": serdes.plain,
}


def _sample(accumulator: object, step: NextOperator) -> topology.Accumulator[Any, Any]:
    if isinstance(accumulator, topology.Accumulator):
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
    if not isinstance(sample, topology.Accumulator):
        raise TopologyError(
            f"aggregate at {step.caller.origin} needs an Accumulator, or a function that makes"
            f" one, not {hint_name(type(sample))}",
            hint="derive your class from headrace.Accumulator",
        )
    return sample


def _check_state(
    sample: topology.Accumulator[Any, Any], serde: topology.AccumulatorSerde, step: NextOperator
) -> None:
    try:
        serde.serialize(sample)
    except Exception as error:
        reason = error.message if isinstance(error, HeadraceError) else error
        raise TopologyError(
            f"aggregate at {step.caller.origin}: the state of {hint_name(type(sample))} cannot be"
            f" written by serde {serde!r}: {reason}",
            hint="keep plain data in its attributes, give it a state() and a restore(state) that"
            " use plain data, or name a serde with serde=",
        ) from error


# Aggregations as operators, running or windowed.


def running(
    flow: Flow,
    label: str,
    describe: Callable[[NextOperator], Gathering],
    name: str | None,
    emit: topology.Emit,
    on_error: topology.ErrorPolicy,
) -> Flow:
    """Add a running aggregate, one without windows.

    Raises
    ------
    TopologyError
        The aggregate cannot take the records of this stream, or their keys are not plain data.
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
    operator = topology.Aggregate(
        **step.fields, aggregation=gathering.aggregation, key_serde=serdes.key, emit=emit
    )
    return step.add(operator, value=gathering.result)


#: The operator for each kind of window.
_OPERATORS: dict[type[Windows], type[Any]] = {
    topology.CountWindows: topology.CountWindow,
    topology.SessionWindows: topology.SessionWindow,
    topology.SlidingWindows: topology.SlidingWindow,
    topology.TimeWindows: topology.TimeWindow,
}


def by_windows(
    step: NextOperator, gathering: Gathering, windows: Windows, grace: int, emit: WindowEmit
) -> tuple[Flow, topology.WindowAggregate]:
    """Add an aggregate that has a result for each window.

    Raises
    ------
    TopologyError
        The aggregation does not work in windows of this kind.
    """
    _check_windows(step, gathering, windows, grace, emit)
    gathering.check_travel(step, combined=False)
    aggregation = gathering.aggregation
    operator: topology.WindowAggregate = _OPERATORS[type(windows)](
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
            hint="emit is 'close' (one result per window) or 'update' (the latest, once per batch)",
        )
    if type(windows) not in _OPERATORS:
        raise TopologyError(
            f"window at {step.caller.origin} needs windows, not {windows!r:.100}",
            hint="give the result of tumbling, hopping, sliding, session or count_window",
        )
    if grace and isinstance(windows, topology.CountWindows):
        raise TopologyError(
            f"window at {step.caller.origin} has grace={grace} ms, but it counts records",
            hint="leave grace= out: nothing is late for windows that count records",
        )
    if not (gathering.meets or isinstance(windows, topology.TimeWindows | topology.CountWindows)):
        raise TopologyError(
            f"operator '{step.name}' (made at {step.caller.origin}) uses windows that are"
            " merged from parts, but its accumulator cannot merge",
            hint="give the accumulator a merge(other) method",
        )


def _written(values: Known, chosen: Serde[Any]) -> Serde[Any]:
    """Choose the serde of records that travel one by one, as late ones do.

    A count uses no values, but its late records should keep theirs if there is a serde for them.
    """
    if chosen is not serdes.nothing:
        return chosen
    return values.serde or (None if values.hint is Any else values.simple_serde()) or chosen
