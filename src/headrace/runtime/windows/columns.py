"""The way of columns to a window operator: groups combined in Arrow by key and pane."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import ColumnValues
from headrace.columns.aggregates import Cells, Measure, group, regroup
from headrace.columns.expressions import Name
from headrace.columns.schema import column_of
from headrace.columns.values import python_values
from headrace.keys import encode_keys, partitions_of
from headrace.runtime.blocks import BlockKind, Rows
from headrace.runtime.columns import by_columns, without_gone
from headrace.runtime.edges import RecordEdge
from headrace.runtime.keyless import count_keyless
from headrace.runtime.user_code.writing import writing
from headrace.runtime.windows.assigning import panes
from headrace.runtime.windows.lateness import split_doubtful

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.chunk import Chunk
    from headrace.runtime.processors import ProcessorContext
    from headrace.topology.operators.windows import TimeWindow

__all__ = ["ColumnWindowEdge"]

_PANE = struct.Struct(">q")
#: Columns beside those of the values; no field of a class has such a name.
_TIME, _MARK, _LATE = "\0time", "\0mark", "\0late"
_WAITING_GROUPS = 1 << 18


class ColumnWindowEdge:
    """Sends one row of cells per key and pane; what may come too late travels as records.

    Parameters
    ----------
    operator
        The window operator that takes the rows; its aggregation is one over columns.
    port
        Number of the parent that sends.
    context
        Of the task that sends.
    """

    def __init__(self, operator: TimeWindow, port: int, context: ProcessorContext) -> None:
        self._operator = operator
        self._context = context
        self._records = RecordEdge(operator, port, context.locator)
        cells: Any = operator.aggregation.function
        self._schema = cells.schema
        self._own = [way for measure in cells.measures for way in measure.cells]
        self._measures = (
            *cells.measures,
            Measure("max", Name(_TIME)),
            Measure("max", Name(_MARK)),
            Measure("min", Name(_LATE)),
        )
        self._ways = [way for measure in self._measures for way in measure.cells]
        self._fired = context.operator_watermark(operator).time - operator.grace
        self._parts: list[Cells] = []

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        chunk = self._with_keys(without_gone(chunk))
        apart, chunk = split_doubtful(self._operator, chunk, self._fired)
        self._records.add(apart)
        if len(chunk):
            self._combine(chunk)

    def _with_keys(self, chunk: Chunk) -> Chunk:
        keys: Any = chunk.keys
        if not isinstance(keys, ColumnValues) or keys.batch.num_columns > 1:
            return chunk
        column = keys.batch.column(0)
        if not column.null_count:
            return chunk
        count_keyless(self._context.counters, self._operator.name, column.null_count)
        return chunk.take(pc.indices_nonzero(column.is_valid()).to_numpy().astype(np.intp))

    def _combine(self, chunk: Chunk) -> None:
        def combined(part: Chunk, batch: pa.RecordBatch) -> Cells:
            late = part.late_below
            late_below = pa.nulls(len(part), pa.int64()) if late is None else pa.array(late)
            times, marks = pa.array(part.times), pa.array(part.marks)
            for name, column in ((_TIME, times), (_MARK, marks), (_LATE, late_below)):
                batch = batch.append_column(name, column)
            starts = pa.array(panes(self._operator.windows, part.times))
            return group([starts, *self._key_columns(part.key_list())], self._measures, batch, 0)

        _, cells = by_columns(self._operator, self._schema, self._context.locator, chunk, combined)
        self._parts.append(cells)
        if len(self._parts) > 1 and sum(map(len, self._parts)) > _WAITING_GROUPS:
            self._parts = [regroup(self._parts, self._ways)]

    def _key_columns(self, keys: Any) -> list[pa.Array]:
        if isinstance(keys, ColumnValues):
            return list(keys.batch.columns)
        cells: Any = self._operator.aggregation.function
        kinds = [kind for _, kind in cells.keys]
        lists = [keys] if len(kinds) == 1 else map(list, zip(*keys, strict=True))
        return [column_of(values, kind) for values, kind in zip(lists, kinds, strict=True)]

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Give everything taken so far, by kind and partition."""
        yield from self._records.flush(partitions)
        if not self._parts:
            return
        cells = regroup(self._parts, self._ways)
        self._parts = []
        own = len(self._own)
        times, marks, late = (column.to_numpy(zero_copy_only=False) for column in cells.cells[own:])
        order = np.argsort(marks, kind="stable")
        starts, *columns = (python_values(column) for column in cells.keys)
        with writing(self._operator, "a key"):
            encoded = encode_keys(
                columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            )
        lists = [python_values(column) for column in cells.cells[:own]]
        aggregation = self._operator.aggregation
        keys = [_PANE.pack(start) + key for start, key in zip(starts, encoded, strict=True)]
        wants_late = self._operator.emit == "update" and not cells.cells[-1].null_count
        rows = Rows(
            pa.array(keys, pa.binary()),
            aggregation.state_serde.serialize_many(list(zip(*lists, strict=True))),
            times,
            marks,
            late_below=late.astype(np.int64) if wants_late else None,
        )
        for partition, part in rows.take(order).split(partitions_of(encoded, partitions)[order]):
            yield BlockKind.PARTIALS, partition, part
