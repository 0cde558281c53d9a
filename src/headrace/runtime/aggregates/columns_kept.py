"""Aggregates over columns for whoever keeps accumulators record by record, as windows do."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from headrace.columns.aggregates import merge_cells
from headrace.runtime.aggregates.algebra import ABSENT, Algebra
from headrace.topology.numbers import add_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.columns.rows import CellsOf
    from headrace.topology.aggregations import Aggregation

__all__ = ["ColumnAlgebra"]


class ColumnAlgebra(Algebra):
    """Cells of measures; each record has cells of its own, and they merge."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        cells: Any = aggregation.function
        self._cells: CellsOf = cells
        self._merge = merge_cells(
            [way for measure in self._cells.measures for way in measure.cells], add_numbers
        )

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        """Give the cells with those of one more record."""
        del mark
        cells = self._cells(value)
        return cells if accumulator is ABSENT else self._merge(accumulator, cells)

    def merge(self, left: Any, right: Any) -> Any:
        """Give the cells of the records of both."""
        return self._merge(left, right)

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        """Add many records at once, or one by one where some value fails."""
        try:
            # The iterators stay where they are until it is known that no value fails.
            rows = self._cells.of_many(list(copy.copy(values)))
        except Exception:  # noqa: BLE001 - some value is bad: find out which, one by one
            super().fold(accumulators, keys, values, marks)
            return
        get, merge = accumulators.get, self._merge
        for key, cells, _, _ in zip(keys, rows, values, marks, strict=True):
            before = get(key, ABSENT)
            accumulators[key] = cells if before is ABSENT else merge(before, cells)

    def result(self, accumulator: Any) -> Any:
        """Give the measures by name."""
        return self._cells.result(accumulator)
