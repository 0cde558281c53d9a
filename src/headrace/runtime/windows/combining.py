"""The way to a window operator: records combined by key and pane, late ones as they are."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import encode_keys, partitions_of
from headrace.runtime.aggregates.folding import Folder
from headrace.runtime.aggregates.running import dict_keys
from headrace.runtime.blocks import BlockKind, Rows
from headrace.runtime.edges import RecordEdge
from headrace.runtime.keyless import skip_keyless
from headrace.runtime.user_code.writing import writing
from headrace.runtime.windows.assigning import panes
from headrace.runtime.windows.lateness import split_doubtful

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.processors import ProcessorContext
    from headrace.topology.operators.windows import TimeWindow

__all__ = ["WindowEdge", "split_pane_keys"]

_PANE = struct.Struct(">q")
_PANE_BITS = 32


class WindowEdge:
    """Sends one partial result per key and pane; what may come too late travels as records.

    A pane is a stretch of time whose records all belong to the same windows, so a record is
    folded once however many windows overlap.

    Parameters
    ----------
    operator
        The window operator that takes the partials.
    port
        Number of the parent that sends.
    context
        Of the task that sends.
    """

    def __init__(self, operator: TimeWindow, port: int, context: ProcessorContext) -> None:
        self._operator = operator
        self._context = context
        self._records = RecordEdge(operator, port, context.locator)
        self._folder = Folder(operator, operator.aggregation, context.locator)
        #: A window that ended here or before has fired already.
        self._fired = context.operator_watermark(operator).time - operator.grace
        self._keys = _KeyNumbers()
        self._panes: dict[int, int] = {}
        self._accumulators: dict[int, Any] = {}
        self._noted: list[tuple[Int64s, Chunk]] = []

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        chunk = skip_keyless(chunk, self._context.counters, self._operator.name)
        apart, chunk = split_doubtful(self._operator, chunk, self._fired)
        self._records.add(apart)
        if len(chunk):
            self._combine(chunk)

    def _combine(self, chunk: Chunk) -> None:
        with writing(self._operator, "a key"):
            numbers = self._keys.of(chunk.key_list())
        starts, which = np.unique(panes(self._operator.windows, chunk.times), return_inverse=True)
        known = self._panes
        pane_numbers = np.array(
            [known.setdefault(start, len(known)) for start in starts.tolist()], np.int64
        )
        groups = numbers << _PANE_BITS | pane_numbers[which]
        self._folder.fold(self._accumulators, groups.tolist(), chunk)
        self._noted.append((groups, chunk))

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Give everything taken so far, by kind and partition."""
        yield from self._records.flush(partitions)
        if not self._accumulators:
            return
        groups = np.fromiter(self._accumulators, np.int64, len(self._accumulators))
        keys, rows = self._rows(groups)
        of_key = partitions_of(self._keys.encoded, partitions)
        for partition, part in rows.split(of_key[keys]):
            yield BlockKind.PARTIALS, partition, part

    def _rows(self, groups: Int64s) -> tuple[Int64s, Rows]:
        """Make the rows of the groups, in the order of their marks, and give the key of each."""
        with writing(self._operator, "its partial results"):
            values = self._folder.algebra.encode(list(self._accumulators.values()))
        numbers = groups >> _PANE_BITS
        starts = np.fromiter(self._panes, np.int64, len(self._panes))
        pane_of = starts[groups & ((1 << _PANE_BITS) - 1)]
        times, marks, late_below = self._last(groups)
        keys = pc.binary_join_element_wise(
            _packed(pane_of), pa.array(self._keys.encoded, pa.binary()).take(pa.array(numbers)), b""
        )
        order = np.argsort(marks, kind="stable")
        rows = Rows(keys, values, times, marks, late_below=late_below)
        return numbers[order], rows.take(order)

    def _last(self, groups: Int64s) -> tuple[Int64s, Int64s, Int64s | None]:
        """Give the last mark of each group, the time of a result, and when that would be late.

        The time is the highest of the group; of an update, that of the last record.
        """
        noted = np.concatenate([own for own, _ in self._noted])
        order = np.argsort(noted, kind="stable")
        ordered = noted[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        places = np.searchsorted(ordered[starts], groups)
        times = np.concatenate([chunk.times for _, chunk in self._noted])[order]
        marks = np.concatenate([chunk.marks for _, chunk in self._noted])[order]
        last = np.append(starts[1:], len(order))[places] - 1
        if self._operator.emit == "close":
            return np.maximum.reduceat(times, starts)[places], marks[last], None
        late_below = None
        if self._noted[0][1].late_below is not None:
            bounds = [chunk.late_below for _, chunk in self._noted if chunk.late_below is not None]
            late_below = np.concatenate(bounds)[order][last]
        return times[last], marks[last], late_below


class _KeyNumbers:
    """Numbers keys, and tells them apart as their canonical encodings do."""

    def __init__(self) -> None:
        self._tables: dict[type | None, dict[Any, int]] = {}
        self.encoded: list[bytes] = []

    def of(self, keys: list[Any]) -> Int64s:
        """Give the number of each key."""
        kind, keys = dict_keys(keys)
        table = self._tables.setdefault(kind, {})
        numbers = list(map(table.get, keys))
        if None in numbers:
            fresh = [key for key in dict.fromkeys(keys) if key not in table]
            encoded = fresh if kind is None else encode_keys(fresh)
            table.update(zip(fresh, range(len(self.encoded), 1 << _PANE_BITS), strict=False))
            self.encoded += encoded
            numbers = list(map(table.__getitem__, keys))
        return np.array(numbers, np.int64)


def _packed(numbers: Int64s) -> pa.BinaryArray:
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * _PANE.size
    data = pa.py_buffer(numbers.astype(">i8").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), data])


def split_pane_keys(keys: list[bytes]) -> tuple[Int64s, list[bytes]]:
    """Part the starts of panes from the keys behind them."""
    starts = np.frombuffer(b"".join([key[: _PANE.size] for key in keys]), ">i8")
    return starts.astype(np.int64), [key[_PANE.size :] for key in keys]
