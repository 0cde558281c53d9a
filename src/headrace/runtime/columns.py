"""Processors of the operators over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.columns.evaluation import evaluate, exploded, filtered
from headrace.columns.schema import column_of
from headrace.errors import HeadraceError, UserCodeError
from headrace.runtime.processors import Processor
from headrace.topology.operators_columns import GroupBy, Select, Where, WindowRows
from headrace.topology.windowed import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.columns.schema import Schema
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code import Locator
    from headrace.topology.operators import Operator

__all__ = [
    "GroupByProcessor",
    "SelectProcessor",
    "WhereProcessor",
    "WindowRowsProcessor",
    "batch_of",
    "by_columns",
    "without_gone",
]


def batch_of(values: list[Any], schema: Schema) -> pa.RecordBatch:
    """Give the columns of values, made from Python objects where they are not columns yet."""
    if isinstance(values, ColumnValues):
        return values.batch
    return schema.batch(values)


def without_gone(chunk: Chunk) -> Chunk:
    """Leave out updates to None: the key of such a one has no value any more."""
    if isinstance(chunk.values, ColumnValues) or None not in chunk.values:
        return chunk
    live = [index for index, value in enumerate(chunk.values) if value is not None]
    return chunk.take(np.array(live, np.intp))


def by_columns(
    operator: Operator,
    schema: Schema,
    locator: Locator,
    chunk: Chunk,
    compute: Callable[[pa.RecordBatch], Any],
) -> Any:
    """Compute something of a chunk's columns; an error names the record that it comes from.

    Raises
    ------
    UserCodeError
        A value cannot be computed, such as text that is no number.
    """
    try:
        return compute(batch_of(chunk.values, schema))
    except HeadraceError:
        raise
    except Exception as error:
        mark, reason = _culprit(schema, chunk, compute, error)
        raise UserCodeError(
            f"operator '{operator.name}' failed on the record at {locator.locate(mark)}:"
            f" {type(reason).__name__}: {reason}",
            hint=f"the operator was made at {operator.origin};"
            " nothing of this batch was committed: correct the expression and start again",
        ) from error


def _culprit(
    schema: Schema, chunk: Chunk, compute: Callable[[pa.RecordBatch], Any], error: Exception
) -> tuple[int, Exception]:
    """Find the first record that fails alone, by halving."""
    low, high = 0, len(chunk)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            compute(batch_of(chunk.take(np.arange(low, middle)).values, schema))
            low = middle
        except Exception as found:  # noqa: BLE001 - whatever it is, it is what is looked for
            high, error = middle, found
    return int(chunk.marks[low]), error


class SelectProcessor(Processor[Select]):
    """Computes columns."""

    def process(self, chunk: Chunk) -> Chunk:
        """Compute the columns."""
        chunk = without_gone(chunk)
        columns = self.operator.columns
        batch, rows = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            chunk,
            lambda batch: exploded(columns, batch),
        )
        values: Any = ColumnValues(batch)
        if rows is None:
            return chunk.with_values(values)
        nothing: Any = ColumnValues(_no_columns(len(chunk)))
        return chunk.with_values(nothing).take(rows.to_numpy()).with_values(values)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["nothing"])


class WhereProcessor(Processor[Where]):
    """Keeps some records."""

    def process(self, chunk: Chunk) -> Chunk:
        """Keep what fits."""
        chunk = without_gone(chunk)
        kept = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            chunk,
            lambda batch: filtered(self.operator.condition, batch),
        )
        if len(kept) == len(chunk):
            return chunk
        return chunk.take(kept.to_numpy().astype(np.intp, copy=False))


class GroupByProcessor(Processor[GroupBy]):
    """Sets keys that stay columns until somebody looks at one."""

    def process(self, chunk: Chunk) -> Chunk:
        """Set the keys."""
        chunk = without_gone(chunk)
        columns = self.operator.columns
        arrays = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            chunk,
            lambda batch: [evaluate(node, batch) for _, node in columns],
        )
        batch = pa.RecordBatch.from_arrays(arrays, [name for name, _ in columns])
        keys: Any = ColumnValues(batch, "tuple")
        return chunk.with_keys(keys)


class WindowRowsProcessor(Processor[WindowRows]):
    """Makes columns of results of windows, whose bounds travel as headers."""

    def process(self, chunk: Chunk) -> Chunk:
        """Handle results of a window operator, which all have the headers."""
        operator = self.operator
        keys = chunk.key_list()
        lists = [keys] if len(operator.keys) == 1 else list(map(list, zip(*keys, strict=True)))
        measures = operator.results.names[len(operator.keys) : -2]
        lists += [[value[name] for value in chunk.values] for name in measures]
        headers = [own or {} for own in chunk.headers or []]
        lists += [[int(own[bound]) for own in headers] for bound in (WINDOW_START, WINDOW_END)]
        kinds = [kind for _, kind in operator.results.columns]
        columns = [column_of(values, kind) for values, kind in zip(lists, kinds, strict=True)]
        values: Any = ColumnValues(pa.RecordBatch.from_arrays(columns, operator.results.names))
        return chunk.with_values(values)
