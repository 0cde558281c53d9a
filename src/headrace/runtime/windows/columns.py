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

    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.processors import ProcessorContext
    from headrace.topology.operators.windows import TimeWindow

__all__ = ["ColumnWindowEdge"]

_PANE = struct.Struct(">q")
#: A column beside those of the values; no field of a class has such a name.
_TIME = "\0time"
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
        self._measures = (*cells.measures, Measure("max", Name(_TIME)))
        self._ways = [way for measure in self._measures for way in measure.cells]
        self._fired = context.operator_watermark(operator).time - operator.grace
        self._parts: list[Cells] = []
        #: Times, marks and bounds of all records so far, which the groups number.
        self._noted: list[tuple[Int64s, Int64s, Int64s | None]] = []
        self._seen = 0

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
            batch = batch.append_column(_TIME, pa.array(part.times))
            keys = [
                pa.array(panes(self._operator.windows, part.times)),
                *self._key_columns(part.key_list()),
            ]
            return group(keys, self._measures, batch, self._seen)

        chunk, cells = by_columns(
            self._operator, self._schema, self._context.locator, chunk, combined
        )
        self._parts.append(cells)
        self._noted.append((chunk.times, chunk.marks, chunk.late_below))
        self._seen += len(chunk)
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
        *own, highest = cells.cells
        last = cells.last.to_numpy()
        order = np.argsort(last)
        times, marks, late_below = self._last(last)
        if self._operator.emit == "close":
            # A window's result has the highest time in it, an update that of the last record.
            times = highest.to_numpy()
        starts, *columns = (python_values(column) for column in cells.keys)
        with writing(self._operator, "a key"):
            encoded = encode_keys(
                columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            )
        lists = [python_values(column) for column in own]
        aggregation = self._operator.aggregation
        keys = [_PANE.pack(start) + key for start, key in zip(starts, encoded, strict=True)]
        rows = Rows(
            pa.array(keys, pa.binary()),
            aggregation.state_serde.serialize_many(list(zip(*lists, strict=True))),
            times,
            marks,
            late_below=late_below,
        )
        for partition, part in rows.take(order).split(partitions_of(encoded, partitions)[order]):
            yield BlockKind.PARTIALS, partition, part

    def _last(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s | None]:
        """Give times and marks of records, and the bounds that an update inherits."""
        times, marks, bounds = zip(*self._noted, strict=True)
        late_below = None
        if self._operator.emit == "update" and bounds[0] is not None:
            late_below = np.concatenate(bounds)[numbers]
        return np.concatenate(times)[numbers], np.concatenate(marks)[numbers], late_below
