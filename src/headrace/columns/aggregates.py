"""Aggregates over columns, and the partial results that they are made of.

A partial is a row of cells per group.  Cells of two rows of one group merge into one, whichever
records went into which, so groups are combined before the shuffle and again behind it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.expressions import Name, Node
from headrace.columns.functions import evaluate
from headrace.columns.schema import WIDE, Schema, column_of
from headrace.columns.values import ColumnValues, python_values

#: ``total`` is a sum of updates, which is null again when its last value is taken back.
Kind = Literal["count", "sum", "min", "max", "avg", "total", "count_distinct", "top"]
#: The kinds that users may ask for.
COLUMN_KINDS: Final[tuple[Kind, ...]] = (
    *("count", "sum", "min", "max", "avg", "count_distinct", "top"),
)
#: Cells of each kind, by the way in which they merge.
_CELLS: dict[str, tuple[str, ...]] = {
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
    "total": ("sum", "count"),
    "count_distinct": ("distinct",),
}
_MERGES = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
#: How ways begin whose cells are lists of values.
_KEEPING = ("distinct", "top")
#: Digits of the decimals that Arrow adds up.
_DIGITS_128, _DIGITS_256 = 38, 76


@dataclass(frozen=True, slots=True)
class ColumnMeasure:
    """A measure over columns, with one result per group."""

    kind: Kind
    #: What is measured; None counts whole records.
    argument: Node | None = None
    name: str = ""
    #: How many values ``top`` keeps.
    limit: int | None = None

    @property
    def column(self) -> str:
        """Name of the result's column."""
        if self.name:
            return self.name
        of = f"_{self.argument.name}" if isinstance(self.argument, Name) else ""
        return f"{self.kind}{of}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The way in which each cell of its partial result merges."""
        return (f"top {self.limit}",) if self.kind == "top" else _CELLS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}({'' if self.argument is None else self.argument})"

    def result(self, cells: Sequence[Any]) -> Any:
        """Return the result that cells give; None where there was no value."""
        if self.kind == "count_distinct":
            return len(cells[0])
        if len(self.cells) == 1:
            return cells[0]
        total, number = cells
        if not number or total is None:
            return None
        return total / number if self.kind == "avg" else total

    def of_updates(self) -> ColumnMeasure:
        """Return a measure that can take values back.

        Raises
        ------
        TypeError
            If it would need all values that were ever there.
        """
        if self.kind not in {"count", "sum", "avg"}:
            message = (
                f"{self} needs every value there was, once one of them is replaced; count, sum and"
                " avg do not, and aggregates of a keyed stream keep them"
            )
            raise TypeError(message)
        kind: Kind = "total" if self.kind == "sum" else self.kind
        return ColumnMeasure(kind, self.argument, self.column)


@dataclass(slots=True)
class Partials:
    """Partial results: a row per group, and where each group was seen last."""

    keys: list[pa.Array]
    cells: list[pa.Array]
    last: pa.Array

    def __len__(self) -> int:
        return len(self.last)


def group(
    keys: Sequence[pa.Array], measures: Sequence[ColumnMeasure], batch: pa.RecordBatch, first: int
) -> Partials:
    """Combine the records of a batch; ``first`` is the number of its first record."""
    columns: list[tuple[str, pa.Array | None]] = []
    for one in measures:
        values = None if one.argument is None else evaluate(one.argument, batch)
        columns += [(way, values) for way in one.cells]
    numbers = pa.array(np.arange(first, first + batch.num_rows))
    return _grouped(keys, columns, numbers)


def regroup(parts: Sequence[Partials], ways: Sequence[str]) -> Partials:
    """Combine partial results."""
    if len(parts) == 1:
        return parts[0]
    keys = [_joined([part.keys[i] for part in parts]) for i in range(len(parts[0].keys))]
    cells = [_joined([part.cells[i] for part in parts]) for i in range(len(ways))]
    columns = [(_MERGES.get(way, way), column) for way, column in zip(ways, cells, strict=True)]
    return _grouped(keys, columns, _joined([part.last for part in parts]), again=True)


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    tables = [pa.table([column], ["column"]) for column in columns]
    whole = pa.concat_tables(tables, promote_options="permissive").column(0)
    return whole.combine_chunks()


def _grouped(
    keys: Sequence[pa.Array],
    columns: Sequence[tuple[str, pa.Array | None]],
    numbers: pa.Array,
    *,
    again: bool = False,
) -> Partials:
    """Group columns by keys; ``again`` says that they are partial results already."""
    names = [f"key_{i}" for i in range(len(keys))]
    arrays = {**dict(zip(names, keys, strict=True)), "number": numbers}
    wanted: list[tuple[Any, str]] = []
    for place, (way, values) in enumerate(columns):
        if values is None:
            wanted.append(([], "count_all"))
        elif way.startswith(_KEEPING):
            arrays[f"cell_{place}"] = pa.array(np.arange(len(values)))
            wanted.append((f"cell_{place}", "list"))
        else:
            arrays[f"cell_{place}"] = _summable(values) if way == "sum" else values
            wanted.append((f"cell_{place}", way))
    # One thread, so that groups come in the order in which they were seen first.
    grouped = pa.TableGroupBy(pa.table(arrays), names, use_threads=False).aggregate(
        [*wanted, ("number", "max")]
    )
    found = [column.combine_chunks() for column in grouped.columns]
    ends = len(keys)
    cells = []
    for column, (way, values) in zip(found[ends:-1], columns, strict=True):
        if values is not None and way.startswith(_KEEPING):
            cells.append(_kept_by_groups(way, column, values, again=again))
        else:
            cells.append(_narrowed(column) if way == "sum" else column)
    return Partials(found[:ends], cells, found[-1])


def _kept_by_groups(way: str, rows: pa.Array, values: pa.Array, *, again: bool) -> pa.Array:
    """Return what each group keeps of the rows that it has, of values or of lists of them."""
    kind = values.type.value_type if again else values.type
    known = python_values(values)
    lists = known if again else [[value] for value in known]
    taken = ([lists[row] for row in own] for own in rows.to_pylist())
    found = [kept(way, chain.from_iterable(own)) for own in taken]
    return column_of(found, pa.list_(pa.int64() if kind == WIDE else kind))


def kept(way: str, values: Iterable[Any]) -> list[Any]:
    """Return the different values, or so many of the greatest ones; null and NaN count for nothing.

    Examples
    --------
    >>> kept("distinct", [2, None, 1, 2]), kept("top 2", [1, 3, float("nan"), 2])
    ([2, 1], [3, 2])
    """
    there = (value for value in values if value is not None and value == value)  # noqa: PLR0124
    if way == "distinct":
        return list(dict.fromkeys(there))
    return heapq.nlargest(int(way.removeprefix("top ")), there)


def _summable(values: pa.Array) -> pa.Array:
    """Return values in a type that their sum fits, whatever the groups are."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int64())
    if pa.types.is_integer(kind):
        bounds = pc.min_max(values)
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is None or -(1 << 63) <= least * len(values) <= most * len(values) < 1 << 63:
            return values.cast(pa.int64())
        return values.cast(WIDE)
    if pa.types.is_decimal(kind):
        digits = kind.precision + math.ceil(math.log10(len(values) + 1))
        if digits > _DIGITS_128 and kind != WIDE:
            return values.cast(pa.decimal256(_DIGITS_256, kind.scale))
    return values


def _narrowed(sums: pa.Array) -> pa.Array:
    """Bring sums back to 64 bits where they fit."""
    if sums.type != WIDE:
        return sums
    try:
        return sums.cast(pa.int64())
    except pa.ArrowInvalid:
        return sums


def merge_cells(
    ways: Sequence[str], add: Callable[[Any, Any], Any]
) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]:
    """Make a function that merges two rows of cells of one group.

    Examples
    --------
    >>> from operator import add
    >>> merge_cells(["count", "sum", "min"], add)((1, 5, None), (2, None, "a"))
    (3, 5, 'a')
    """
    steps = [
        partial(_kept_of_both, way)
        if way.startswith(_KEEPING)
        else {"min": _least, "max": _greatest}.get(way, add)
        for way in ways
    ]

    if len(steps) == 1:
        (only,) = steps

        def merge_one(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
            a, b = left[0], right[0]
            return (a if b is None else b if a is None else only(a, b),)

        return merge_one

    def merge(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            a if b is None else b if a is None else step(a, b)
            for step, a, b in zip(steps, left, right, strict=True)
        )

    return merge


def _kept_of_both(way: str, left: list[Any], right: list[Any]) -> list[Any]:
    return kept(way, [*left, *right])


def _least(left: Any, right: Any) -> Any:
    # As in Arrow, NaN counts only where nothing else is.
    return right if right < left or left != left else left  # noqa: PLR0124


def _greatest(left: Any, right: Any) -> Any:
    return right if right > left or left != left else left  # noqa: PLR0124


def negated(cells: Partials, ways: Sequence[str]) -> Partials:
    """Return cells that take back what these have added up."""
    turned = [
        pc.negate_checked(column) if column.type != WIDE else _turned(column)
        for column, _ in zip(cells.cells, ways, strict=True)
    ]
    return Partials(cells.keys, turned, cells.last)


def _turned(column: pa.Array) -> pa.Array:
    return pa.array([None if v is None else -Decimal(v) for v in column.to_pylist()], WIDE)


def _cells(way: str, values: list[Any]) -> list[Any]:
    if way == "count":
        return [int(value is not None) for value in values]
    if way == "sum":
        return [int(value) if isinstance(value, bool) else value for value in values]
    if way.startswith(_KEEPING):
        return [kept(way, [value]) for value in values]
    return values


@dataclass(frozen=True, slots=True)
class CellsOf:
    """A function that returns the cells of records, one row of cells for each.

    Examples
    --------
    >>> from headrace.columns import Schema, col
    >>> from headrace.columns.aggregates import ColumnMeasure
    >>> mean = ColumnMeasure("avg", col("value").node)
    >>> cells = CellsOf(Schema.of(int), (ColumnMeasure("count"), mean), ())
    >>> cells(3), cells.of_many([4, 5]), cells.result((2, 9, 2))
    ((1, 3, 1), [(1, 4, 1), (1, 5, 1)], {'count': 2, 'avg_value': 4.5})
    """

    #: The schema of the records.
    schema: Schema
    measures: tuple[ColumnMeasure, ...]
    #: Names and types of the columns of the key.
    keys: tuple[tuple[str, pa.DataType], ...]

    def __call__(self, value: Any) -> tuple[Any, ...]:
        """Return the cells of one record."""
        return self.of_many([value])[0]

    def of_many(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the cells of many records."""
        batch = values.batch if isinstance(values, ColumnValues) else self.schema.batch(values)
        columns: list[list[Any]] = []
        for measure in self.measures:
            if measure.argument is None:
                columns.append([1] * len(values))
                continue
            found = python_values(evaluate(measure.argument, batch))
            columns += [_cells(way, found) for way in measure.cells]
        return list(zip(*columns, strict=True))

    def result(self, cells: Sequence[Any]) -> dict[str, Any]:
        """Return the results of merged cells, by the names of the measures."""
        results: dict[str, Any] = {}
        at = 0
        for measure in self.measures:
            results[measure.column] = measure.result(cells[at : at + len(measure.cells)])
            at += len(measure.cells)
        return results
