"""Processors of the operators over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.columns.functions import evaluate, exploded, filtered
from headrace.columns.schema import column_of
from headrace.errors import HeadraceError, UserCodeError
from headrace.runtime.processors import Processor
from headrace.runtime.user_code import without_bad
from headrace.topology.operators.columns import GroupBy, Select, Where, WindowRows
from headrace.topology.windowed import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.columns.schema import Schema
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code import Locator
    from headrace.topology.operators.core import Operator


T = TypeVar("T")


def batch_of(values: list[Any], schema: Schema) -> pa.RecordBatch:
    """Return the columns of values, made from Python objects where they are not columns yet."""
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
    compute: Callable[[Chunk, pa.RecordBatch], T],
) -> tuple[Chunk, T]:
    """Compute something of a chunk's columns; give the records that are left, and what it is.

    Where a value cannot be computed, such as text that is no number, the operator's policy decides:
    an error names the record that it comes from, or the records that fail are taken out.

    Raises
    ------
    UserCodeError
        A record fails, and the operator's policy is to stop.
    """

    def run(part: Chunk) -> T:
        return compute(part, batch_of(part.values, schema))

    try:
        return chunk, run(chunk)
    except Exception as error:
        if not len(chunk):
            raise
        passes = isinstance(error, HeadraceError) and error.retriable
        found = _culprits(chunk, run, error)
        if operator.on_error == "fail" or passes:
            place, reason = next(found, (0, error))
            raise _failure(operator, locator, int(chunk.marks[place]), reason) from error
        bad = []
        for place, reason in found:
            locator.divert(operator, int(chunk.marks[place]), reason, None)
            bad.append(place)
    kept = without_bad(chunk, bad)
    try:
        return kept, run(kept)
    except Exception as error:
        raise _failure(operator, locator, int(chunk.marks[0]), error) from error


def _failure(operator: Operator, locator: Locator, mark: int, reason: Exception) -> Exception:
    if isinstance(reason, HeadraceError):
        return reason
    return UserCodeError(
        f"operator '{operator.name}' failed on the record at {locator.locate(mark)}:"
        f" {type(reason).__name__}: {reason}",
        hint=f"the operator was made at {operator.origin}; nothing of this batch was committed:"
        " correct the expression and start again, or give the operator"
        ' on_error="skip" or on_error="topic:NAME" to go on without such records',
    )


def _culprits(
    chunk: Chunk, run: Callable[[Chunk], object], error: Exception
) -> Iterator[tuple[int, Exception]]:
    """Find the records that fail alone, by halving: their places and errors, in order."""
    waiting = [(0, len(chunk), error)] if len(chunk) else []
    while waiting:
        low, high, reason = waiting.pop()
        if high - low == 1:
            yield low, reason
            continue
        middle = (low + high) // 2
        halves = []
        for start, stop in ((middle, high), (low, middle)):
            try:
                run(chunk.take(np.arange(start, stop)))
            except Exception as found:  # noqa: BLE001 - whatever it is, it is what is looked for
                halves.append((start, stop, found))
        waiting += halves


class SelectProcessor(Processor[Select]):
    """Computes columns."""

    def process(self, chunk: Chunk) -> Chunk:
        """Compute the columns."""
        columns = self.operator.columns
        chunk, (batch, rows) = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: exploded(columns, batch),
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
        chunk, kept = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: filtered(self.operator.condition, batch),
        )
        if len(kept) == len(chunk):
            return chunk
        return chunk.take(kept.to_numpy().astype(np.intp, copy=False))


class GroupByProcessor(Processor[GroupBy]):
    """Sets keys that stay columns until somebody looks at one."""

    def process(self, chunk: Chunk) -> Chunk:
        """Set the keys."""
        columns = self.operator.columns
        chunk, arrays = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: [evaluate(node, batch) for _, node in columns],
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
