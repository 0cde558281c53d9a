"""The way to a window operator: records combined by key and pane, late ones as they are."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import ColumnValues
from headrace.columns.aggregates import ColumnMeasure, Partials
from headrace.columns.expressions import Name
from headrace.columns.values import python_values
from headrace.keys import encode_keys, partitions_of
from headrace.runtime.aggregates.running import Folder, dict_keys
from headrace.runtime.chunk import NEVER, Chunk, Int64s, count_keyless, skip_keyless
from headrace.runtime.columns import CellGroups, by_columns, without_gone
from headrace.runtime.control import BlockKind, Rows
from headrace.runtime.processors import Processor, ProcessorContext, RecordEdge
from headrace.runtime.user_code import writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.windows import TimeWindow
    from headrace.topology.windows import TimeWindows


# Which windows a time belongs to: for many times at once.

_DAY = 86_400_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's time, of whatever zone
_MILLISECOND = timedelta(milliseconds=1)


class Assigned(NamedTuple):
    """Windows of times: a time of several windows comes once for each."""

    #: Which time.
    indices: npt.NDArray[np.intp]
    starts: Int64s
    ends: Int64s


def panes(windows: TimeWindows, times: Int64s) -> Int64s:
    """Return the start of the pane of each time: times of one pane belong to the same windows.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> panes(TimeWindows(5, 2), np.array([-1, 0, 4])).tolist()
    [-1, 0, 4]
    >>> panes(TimeWindows(10, 5), np.array([-1, 0, 14])).tolist()
    [-5, 0, 10]
    """
    if windows.zone is not None:
        bounds = _day_bounds(windows, times)
        return bounds[np.searchsorted(bounds, times, side="right") - 1]
    width = math.gcd(windows.size, windows.slide)
    return (times - windows.offset) // width * width + windows.offset


def first_ends(windows: TimeWindows, times: Int64s) -> Int64s:
    """Return the end of the first window of each time that ends.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> first_ends(TimeWindows(10, 5), np.array([-1, 0, 14])).tolist()
    [0, 5, 15]
    """
    if windows.zone is not None:
        assigned = assign(windows, times)
        ends = np.full(len(times), np.iinfo(np.int64).max)
        np.minimum.at(ends, assigned.indices, assigned.ends)
        return ends
    # The first of its windows is the oldest: the last that began a size ago or before has ended.
    before = (times - windows.size - windows.offset) // windows.slide
    return (before + 1) * windows.slide + windows.offset + windows.size


def assign(windows: TimeWindows, times: Int64s) -> Assigned:
    """Return all windows of each time, the newest first.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> found = assign(TimeWindows(5_000, 2_000), np.array([14_500, 16_000]))
    >>> found.indices.tolist(), found.starts.tolist()
    ([0, 0, 0, 1, 1, 1], [14000, 12000, 10000, 16000, 14000, 12000])
    """
    if windows.zone is not None:
        return _assign_days(windows, times)
    last = (times - windows.offset) // windows.slide * windows.slide + windows.offset
    indices = np.arange(len(times))
    if windows.size == windows.slide:
        return Assigned(indices, last, last + windows.size)
    most = -(-windows.size // windows.slide)
    starts = last[:, None] - np.arange(most) * windows.slide
    live = (starts + windows.size > times[:, None]).ravel()
    starts = starts.ravel()[live]
    return Assigned(np.repeat(indices, most)[live], starts, starts + windows.size)


def _assign_days(windows: TimeWindows, times: Int64s) -> Assigned:
    assert windows.zone is not None
    indices: list[npt.NDArray[np.intp]] = []
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    groups, group_of = np.unique(panes(windows, times), return_inverse=True)
    for number, pane in enumerate(groups.tolist()):
        own = np.flatnonzero(group_of == number)
        for start, end in _windows_of_day(windows, pane):
            indices.append(own)
            starts.append(np.full(len(own), start))
            ends.append(np.full(len(own), end))
    if not indices:
        none = np.empty(0, np.int64)
        return Assigned(none, none, none)
    return Assigned(np.concatenate(indices), np.concatenate(starts), np.concatenate(ends))


@lru_cache(maxsize=4096)
def _windows_of_day(windows: TimeWindows, pane: int) -> tuple[tuple[int, int], ...]:
    """Return the windows that hold the calendar day, or several, that begins at ``pane``."""
    assert windows.zone is not None
    # The wall clock around noon of the day tells which day it is, whatever clocks do at its ends.
    wall = _wall(windows.zone, pane + _DAY // 2) - windows.offset
    last = wall // windows.slide * windows.slide
    found = []
    for start in range(last, last - windows.size, -windows.slide):
        if start + windows.size > wall:
            begin, end = start + windows.offset, start + windows.offset + windows.size
            found.append((_instant(windows.zone, begin), _instant(windows.zone, end)))
    return tuple(found)


def _day_bounds(windows: TimeWindows, times: Int64s) -> Int64s:
    """Return the starts of all days around some times."""
    assert windows.zone is not None
    days = np.unique(times // _DAY).tolist()
    offset = windows.offset % _DAY
    around = {
        _instant(windows.zone, (day + more) * _DAY + offset)
        for day in days
        for more in range(-2, 3)
    }
    return np.array(sorted(around), np.int64)


@lru_cache(maxsize=65536)
def _instant(zone: str, wall: int) -> int:
    """Return when a zone's clocks first showed a time, ms; skipped times are when they would be."""
    try:
        shown = (_EPOCH + wall * _MILLISECOND).replace(tzinfo=ZoneInfo(zone))
        return (shown - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
    except (OverflowError, ValueError):
        return wall  # no calendar reaches there


def _wall(zone: str, time: int) -> int:
    """Return what a zone's clocks show, ms."""
    try:
        shown = (datetime(1970, 1, 1, tzinfo=UTC) + time * _MILLISECOND).astimezone(ZoneInfo(zone))
        return (shown.replace(tzinfo=None) - _EPOCH) // _MILLISECOND
    except (OverflowError, ValueError):
        return time


# Records that come too late for a window operator.

#: The output that takes late records, and the counter of them.
LATE = "late"


def give_late(processor: Processor[Any], chunk: Chunk) -> None:
    """Count late records and send them to whoever takes them."""
    if len(chunk):
        count_late(processor, len(chunk))
        processor.give(LATE, chunk)


def count_late(processor: Processor[Any], count: int) -> None:
    """Count records that came too late."""
    counters = processor.context.counters
    for name in (LATE, f"{LATE}.{processor.operator.name}"):
        counters[name] = counters.get(name, 0) + count


def split_doubtful(operator: TimeWindow, chunk: Chunk, fired: int) -> tuple[Chunk, Chunk]:
    """Part records that may be too late, to be judged where the windows are, from those in time.

    A window that ended at ``fired`` or before has fired already.
    """
    doubtful = chunk.late(operator.grace)
    doubtful |= first_ends(operator.windows, chunk.times) <= fired
    return chunk.split(doubtful)


def event_times(before: int, watermarks: Sequence[Watermark], marks: Int64s) -> Int64s:
    """Return how far an operator's event time had come before the records with some marks."""
    times = np.array([before, *(watermark.time for watermark in watermarks)], np.int64)
    seen = np.array([watermark.mark for watermark in watermarks], np.int64)
    return np.maximum(times[np.searchsorted(seen, marks, side="left")], NEVER)


# The way of columns to a window operator: groups combined in Arrow by key and pane.

#: A column beside those of the values; no field of a class has such a name.
_TIME = "\0time"


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
        measures = (*cells.measures, ColumnMeasure("max", Name(_TIME)))
        self._groups = CellGroups(measures, [kind for _, kind in cells.keys])
        self._fired = context.operator_watermark(operator).time - operator.grace

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
        def combined(part: Chunk, batch: pa.RecordBatch) -> Partials:
            batch = batch.append_column(_TIME, pa.array(part.times))
            starts = pa.array(panes(self._operator.windows, part.times))
            return self._groups.grouped(part.key_list(), batch, starts)

        chunk, cells = by_columns(
            self._operator, self._schema, self._context.locator, chunk, combined
        )
        self._groups.add(chunk, cells)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Yield everything taken so far, by kind and partition."""
        yield from self._records.flush(partitions)
        if not self._groups.noted.count:
            return
        cells = self._groups.take()
        *own, highest = cells.cells
        last = cells.last.to_numpy()
        order = np.argsort(last)
        times, marks, late_below = self._groups.noted.of(last)
        if self._operator.emit == "close":
            # A window's result has the highest time in it, an update that of the last record.
            times, late_below = highest.to_numpy(), None
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
        """Yield everything taken so far, by kind and partition."""
        yield from self._records.flush(partitions)
        if not self._accumulators:
            return
        groups = np.fromiter(self._accumulators, np.int64, len(self._accumulators))
        keys, rows = self._rows(groups)
        of_key = partitions_of(self._keys.encoded, partitions)
        for partition, part in rows.split(of_key[keys]):
            yield BlockKind.PARTIALS, partition, part

    def _rows(self, groups: Int64s) -> tuple[Int64s, Rows]:
        """Return the rows of the groups, in the order of their marks, and the key of each."""
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
        """Return the last mark of each group, the time of a result, and when that would be late.

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
        """Return the number of each key."""
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
