"""Operators over the columns of a stream: select, where and group_by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace import serdes
from headrace.columns import Expression, Schema, col
from headrace.columns.aggregates import COLUMN_KINDS, ColumnMeasure, group
from headrace.columns.cells import CellsSerde
from headrace.columns.expressions import Node, node_of
from headrace.columns.functions import Explosion, evaluate, filtered, types_of
from headrace.errors import TopologyError
from headrace.serdes.inference import hint_name
from headrace.streams.aggregates import Measure, Row, check_limit, measures_of
from headrace.topology import ErrorPolicy, Source
from headrace.topology.operators.columns import AggregateColumns, GroupBy, Select, WhereColumns
from headrace.topology.stages import gives_updates

if TYPE_CHECKING:
    from headrace.streams.flow import Flow, NextOperator
    from headrace.streams.tables import Table
    from headrace.streams.windowed import WindowedGroups
    from headrace.topology.windows import Windows


T = TypeVar("T")

Named = tuple[tuple[str, Node], ...]

#: Cells of these types are written as MessagePack.
_PACKED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
)


def selected(
    flow: Flow,
    columns: Sequence[Any],
    named: dict[str, Any],
    name: str | None,
    on_error: ErrorPolicy,
) -> Flow:
    """Compute columns from the columns of the values.

    Raises
    ------
    TopologyError
        The values have no columns, a column does not exist, or types do not fit.
    """
    step = flow.begin("select", name, on_error=on_error)
    schema = _schema(flow, step, "select")
    chosen = _named(step, "select", columns, named)
    results = _tried(step, "select", lambda: types_of(dict(chosen), schema))
    operator = Select(**step.fields, schema=schema, columns=chosen)
    return step.add(operator, value=replace(step.known(dict), columns=results))


def kept_by_columns(
    flow: Flow, condition: Expression, name: str | None, on_error: ErrorPolicy
) -> Flow:
    """Drop records for which a condition over columns is not true.

    Raises
    ------
    TopologyError
        The values have no columns, a column does not exist, or the expression is not a condition.
    """
    step = flow.begin("where", name, on_error=on_error)
    schema = _schema(flow, step, "where")
    node = condition.node
    _tried(step, "where", lambda: filtered(node, schema.without_rows()))
    return step.add(WhereColumns(**step.fields, schema=schema, condition=node))


def grouped(
    flow: Flow,
    columns: Sequence[Any],
    named: dict[str, Any],
    name: str | None,
    on_error: ErrorPolicy,
) -> ColumnGroups:
    """Key records by the values of columns.

    Raises
    ------
    TopologyError
        The values have no columns, a column does not exist, or types do not fit.
    """
    step = flow.begin("group_by", name, on_error=on_error)
    schema = _schema(flow, step, "group_by")
    keys = _named(step, "group_by", columns, named)
    types = _tried(step, "group_by", lambda: _types(keys, schema))
    operator = GroupBy(**step.fields, schema=schema, columns=keys)
    flow = step.add(operator, key=step.known(Any))
    flow = replace(flow, value=replace(flow.value, columns=schema))
    return ColumnGroups(flow, Schema(types))


class ColumnGroups:
    """A stream grouped by columns."""

    def __init__(self, flow: Flow, keys: Schema) -> None:
        self._flow = flow
        self._keys = keys

    def __repr__(self) -> str:
        return f"<groups '{self._flow.operator}' by {', '.join(self._keys.names)}>"

    def window(self, windows: Windows, *, grace: timedelta | str = timedelta(0)) -> WindowedGroups:
        """Divide the records of each group into windows; see :meth:`KeyedStream.window`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> words = StreamBuilder("job").source("words", serdes.string).group_by("value")
        >>> words.window(tumbling(timedelta(minutes=1)))
        <windows of groups 'group_by-words'>
        """
        from headrace.streams.windowed import WindowedGroups

        return WindowedGroups(self._flow, self._keys, windows, grace)

    def agg(
        self,
        *measures: Measure[Any],
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **named: Measure[Any],
    ) -> Table[Any, Row]:
        """Compute measures of each group; each batch emits those of the groups that changed.

        Values are dicts of the key's columns and the measures.  Integers do not overflow and
        decimals stay exact.

        Parameters
        ----------
        measures
            Made by ``count``, ``count_distinct``, ``sum_``, ``min_``, ``max_``, ``avg`` and ``top``
            of columns.
        name
            Name of the operator and of its state store.
        on_error
            What to do with a record for which a measure cannot be computed; see :class:`Stream`.
        named
            Measures, by the names of the columns that they make.

        Raises
        ------
        TopologyError
            Two columns have the same name, or a measure does not fit its column.

        Examples
        --------
        >>> from dataclasses import dataclass
        >>> from headrace import StreamBuilder, avg, count, serdes, sum_
        >>> @dataclass
        ... class Order:
        ...     city: str
        ...     price: int
        >>> orders = StreamBuilder("job").source("orders", serdes.json(Order))
        >>> orders.group_by("city").agg(orders=count(), total=sum_("price"), mean=avg("price"))
        <table 'agg-orders'>
        """
        from headrace.streams.tables import Table

        step = self._flow.begin("agg", name, on_error=on_error)
        chosen, types = results_of(step, self._flow, measures, named)
        results = Schema(self._keys.columns + types)
        _check_names(step, "agg", results.names)
        schema = self._flow.value.columns
        assert schema is not None
        updates = gives_updates(self._flow.builder.operators, self._flow.operator)
        if updates:
            chosen = _tried(step, "agg", lambda: tuple(one.of_updates() for one in chosen))
        operator = AggregateColumns(
            **step.fields,
            schema=schema,
            keys=tuple(self._keys.names),
            measures=(*chosen, ColumnMeasure("count")) if updates else chosen,
            results=results,
            key_serde=serdes.key,
            state_serde=cells_serde(types),
            value_serde=self._flow.value.simple_serde() or serdes.plain,
            of_updates=updates,
        )
        known = replace(step.known(dict), columns=results)
        return Table(step.add(operator, value=known))


def results_of(
    step: NextOperator, flow: Flow, measures: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[ColumnMeasure, ...], tuple[tuple[str, pa.DataType], ...]]:
    """Return the measures of columns, with the names and types of the columns that they make.

    Raises
    ------
    TopologyError
        One is not a measure of columns, or does not fit its column.
    """
    chosen = tuple(_of_column(step, one) for one in measures_of(step, measures, named))
    schema = flow.value.columns
    assert schema is not None
    types = _tried(step, "agg", lambda: tuple(_measured(one, schema) for one in chosen))
    return chosen, types


def _of_column(step: NextOperator, measure: Measure[Any]) -> ColumnMeasure:
    kind, of = measure.kind, measure.of
    if kind not in COLUMN_KINDS:
        raise TopologyError(
            f"agg at {step.caller.origin}: groups of columns have no {measure.label}",
            hint="they have count, count_distinct, sum_, avg, min_, max_ and top; the others belong"
            " to key_by(...).agg(...), which takes functions of the value",
        )
    check_limit(step, measure)
    if isinstance(of, str):
        of = col(of)
    if isinstance(of, Expression):
        return ColumnMeasure(kind, of.node, measure.name, measure.limit)
    if of is None and kind == "count":
        return ColumnMeasure(kind, None, measure.name)
    raise TopologyError(
        f"agg at {step.caller.origin}: {kind} of groups takes a column, not {of!r:.100}",
        hint='name one, such as "price" or col("price") * 2; functions belong to'
        " key_by(...).agg(...)",
    )


def cells_serde(types: Iterable[tuple[str, pa.DataType]]) -> CellsSerde:
    """Choose the serde for the cells of measures whose columns have these types."""
    return CellsSerde(packs=all(any(test(kind) for test in _PACKED) for _, kind in types))


def _schema(flow: Flow, step: NextOperator, label: str) -> Schema:
    """Return the columns of a stream's values."""
    known = flow.value
    schema = known.columns
    if schema is None and known.serde is not None:
        schema = known.serde.schema
    if schema is None:
        schema = Schema.of(known.hint)
    if schema is None:
        raise TopologyError(
            f"{label} at {step.caller.origin} needs values with columns, and '{known.operator}'"
            f" (made at {known.origin}) emits values of type {hint_name(known.hint)}",
            hint="read them with a schema, e.g. serdes.json(Order) of a dataclass Order, or"
            " annotate the function that makes them with such a type",
        )
    _read_as_columns(flow)
    return schema


def _read_as_columns(flow: Flow) -> None:
    """Let the source read columns, if the operator right before is a source."""
    operators = {operator.name: operator for operator in flow.builder.operators}
    source = operators[flow.operator]
    if isinstance(source, Source):
        reader = source.deserializer.as_columns()
        if reader is not None:
            flow.builder.replace(replace(source, deserializer=reader))


def _named(step: NextOperator, label: str, columns: Sequence[Any], named: dict[str, Any]) -> Named:
    """Return each selected column with its name."""
    chosen: list[tuple[str, Node]] = []
    for given in columns:
        expression = col(given) if isinstance(given, str) else given
        if not isinstance(expression, Expression) or not expression.name:
            raise TopologyError(
                f"{label} at {step.caller.origin} needs a name for {given!r:.100}",
                hint='name it, e.g. total=col("price") * col("quantity")',
            )
        chosen.append((expression.name, expression.node))
    chosen += [(name, node_of(value)) for name, value in named.items()]
    if not chosen:
        raise TopologyError(
            f"{label} at {step.caller.origin} names no column", hint=f'for example {label}("price")'
        )
    _check_names(step, label, [name for name, _ in chosen])
    return tuple(chosen)


def _check_names(step: NextOperator, label: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(
                f"{label} at {step.caller.origin} gives two columns the name '{name}'",
                hint="give one of them another name, with .named(...) or as name=...",
            )
        seen.add(name)


def _tried(step: NextOperator, label: str, compute: Callable[[], T]) -> T:
    """Compute something without records, so that an error shows while the topology is built."""
    try:
        return compute()
    except (Explosion, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise TopologyError(
            f"{label} at {step.caller.origin} cannot be computed: {reason}",
            hint="check the columns that it takes and their types; cast() changes a type",
        ) from None


def _types(columns: Named, schema: Schema) -> tuple[tuple[str, pa.DataType], ...]:
    batch = schema.without_rows()
    return tuple((name, evaluate(node, batch).type) for name, node in columns)


def _measured(measure: ColumnMeasure, schema: Schema) -> tuple[str, pa.DataType]:
    """Return the name and type of the column that a measure makes."""
    if measure.kind in ("count_distinct", "top") and measure.argument is not None:
        kind = evaluate(measure.argument, schema.without_rows()).type
        if pa.types.is_nested(kind):
            raise TypeError(f"{measure} cannot tell values of type {kind} apart or order them")
        return measure.column, pa.int64() if measure.kind == "count_distinct" else pa.list_(kind)
    (cells,) = (group([], [measure], schema.without_rows(), 0).cells,)
    decimal = pa.types.is_decimal(cells[0].type)
    if measure.kind == "avg" and not decimal:
        return measure.column, pa.float64()
    return measure.column, cells[0].type
