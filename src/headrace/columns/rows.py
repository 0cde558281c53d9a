"""Measures of single records, for operators that gather record by record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.columns.evaluation import evaluate
from headrace.columns.values import ColumnValues, python_values

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.columns.aggregates import Measure
    from headrace.columns.schema import Schema

__all__ = ["CellsOf"]


@dataclass(frozen=True, slots=True)
class CellsOf:
    """Gives the cells of records, one row of cells for each.

    Examples
    --------
    >>> from headrace.columns import Schema, avg, count
    >>> cells = CellsOf(Schema.of(int), (count(), avg("value")), ())
    >>> cells(3), cells.of_many([4, 5]), cells.result((2, 9, 2))
    ((1, 3, 1), [(1, 4, 1), (1, 5, 1)], {'count': 2, 'avg_value': 4.5})
    """

    #: Of the records.
    schema: Schema
    measures: tuple[Measure, ...]
    #: Names and types of the columns of the key.
    keys: tuple[tuple[str, pa.DataType], ...]

    def __call__(self, value: Any) -> tuple[Any, ...]:
        """Give the cells of one record."""
        return self.of_many([value])[0]

    def of_many(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Give the cells of many records."""
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
        """Give what merged cells say, by the names of the measures."""
        results: dict[str, Any] = {}
        at = 0
        for measure in self.measures:
            results[measure.column] = measure.result(cells[at : at + len(measure.cells)])
            at += len(measure.cells)
        return results


def _cells(way: str, values: list[Any]) -> list[Any]:
    if way == "count":
        return [int(value is not None) for value in values]
    if way == "sum":
        return [int(value) if isinstance(value, bool) else value for value in values]
    return values
