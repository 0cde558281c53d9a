"""Reading a view: byte ranges of the records from an offset on, found without decoding any."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import CorruptLogError, NotFoundError
from headrace.protocol.layout import MIN_RECORD
from headrace.store.compaction.reports import QueueRead
from headrace.store.compaction.units import INDEX, IndexRows
from headrace.store.reading import ReadStatus
from headrace.store.record import store_time_of

if TYPE_CHECKING:
    from headrace.store.compaction.view import Part, View

__all__ = ["offset_at", "read", "store_time", "units"]

#: With a tag filter a read looks at up to so many records for those that match.
_FILTER_WINDOW = 16_384
#: More ranges than this are joined into one buffer when they are small.
_MAX_SLICES = 256
_SMALL_SLICE = 4096


def read(
    view: View, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None
) -> QueueRead:
    """Read from an offset on; one that is gone or was never there means the next larger one."""
    if offset > view.log_end:
        return _nothing(ReadStatus.BEYOND, view, view.log_end)
    max_count = max(max_count, 1)
    # What lies behind the last one that can fit is not even looked at.
    most = min(max_count, max_bytes // MIN_RECORD + 1)
    window = most if tags is None else max(most, _FILTER_WINDOW)
    slices: list[memoryview] = []
    count = 0
    next_offset = -1
    for part, rows in _rows_from(view, offset, window):
        chosen, seen = _choose(rows, max_count - count, max_bytes, tags, is_first=count == 0)
        found, good = _slices(part, rows[chosen], may_stop=count > 0)
        if good < len(chosen):
            # Damage ends this read; one that begins there tells of it.
            chosen, seen = chosen[:good], int(chosen[good])
        slices += found
        count += len(chosen)
        max_bytes -= int(rows["size"][chosen].sum())
        if seen:
            next_offset = int(rows["offset"][seen - 1]) + 1
        if seen < len(rows) or count == max_count:
            break
    if next_offset < 0:
        return _nothing(ReadStatus.AT_END, view, view.log_end)
    if not count:
        return _nothing(ReadStatus.NO_MATCH, view, next_offset)
    if len(slices) > _MAX_SLICES and sum(map(len, slices)) < _SMALL_SLICE * len(slices):
        slices = [memoryview(b"".join(slices))]
    return QueueRead(ReadStatus.FOUND, slices, count, next_offset, view.min_offset, view.log_end)


def units(view: View, first: int, last: int) -> IndexRows:
    """Give the index rows of the offsets from ``first`` to before ``last``."""
    found = []
    for part in view.parts[view.first_part(first) :]:
        if part.meta.first >= last:
            break
        begin = part.file.row_of(part.meta, first)
        end = part.meta.count
        if part.meta.last >= last:
            end = part.file.row_of(part.meta, last)
        found.append(part.file.index(part.meta)[begin:end])
    return np.concatenate(found) if found else np.empty(0, INDEX)


def store_time(view: View, offset: int) -> int:
    """Tell when a record was stored, ms since 1970.

    Raises
    ------
    NotFoundError
        The log does not hold the offset.
    """
    number = view.first_part(offset)
    if number < len(view.parts):
        part = view.parts[number]
        row = part.file.row_of(part.meta, offset)
        if int(part.file.index(part.meta)["offset"][row]) == offset:
            return _store_time(part, row)
    raise NotFoundError(f"the compaction log does not hold offset {offset}")


def offset_at(view: View, timestamp: int, *, upper: bool) -> int:
    """Find a record by its store time: the first that is not older, or the last that is not newer.

    The log's end when all are older; the first offset when all are newer.
    """
    bases = np.cumsum([0, *(part.meta.count for part in view.parts)])
    low, high = 0, int(bases[-1])
    while low < high:
        middle = (low + high) // 2
        part, row = _locate(view, bases, middle)
        time = _store_time(part, row)
        if time < timestamp or (upper and time == timestamp):
            low = middle + 1
        else:
            high = middle
    if upper:
        low = max(low - 1, 0)
    if low == bases[-1]:
        return view.log_end
    part, row = _locate(view, bases, low)
    return int(part.file.index(part.meta)["offset"][row])


def _locate(
    view: View, bases: np.ndarray[tuple[int], np.dtype[np.int64]], row: int
) -> tuple[Part, int]:
    number = int(np.searchsorted(bases, row, "right")) - 1
    return view.parts[number], row - int(bases[number])


def _store_time(part: Part, row: int) -> int:
    unit = part.file.index(part.meta)[row]
    at = int(unit["at"])
    return store_time_of(part.file.checked(at, at + int(unit["size"])))


def _rows_from(view: View, offset: int, window: int) -> Iterator[tuple[Part, IndexRows]]:
    for part in view.parts[view.first_part(offset) :]:
        first = part.file.row_of(part.meta, offset)
        rows = part.file.index(part.meta)[first : first + window]
        yield part, rows
        window -= len(rows)
        if window <= 0:
            return


def _choose(
    rows: IndexRows, max_count: int, max_bytes: int, tags: frozenset[int] | None, *, is_first: bool
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Pick rows, and tell how many were looked at before the read was full."""
    chosen = np.arange(len(rows))
    if tags is not None:
        chosen = np.flatnonzero(np.isin(rows["tag"], np.fromiter(tags, np.int32, len(tags))))
    sizes = np.cumsum(rows["size"][chosen], dtype=np.int64)
    # One record is given however large it is, or a reader could never get past it.
    fitting = max(int(np.searchsorted(sizes, max_bytes, side="right")), int(is_first))
    count = min(fitting, max_count, len(chosen))
    seen = len(rows) if count == len(chosen) else int(chosen[count])
    return chosen[:count], seen


def _slices(part: Part, rows: IndexRows, *, may_stop: bool) -> tuple[list[memoryview], int]:
    """Give the bytes of rows in front of the first damage, and how many rows these are."""
    if not len(rows):
        return [], 0
    starts = np.ascontiguousarray(rows["at"])
    ends = starts + rows["size"]
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    bounds = np.concatenate(([0], breaks, [len(rows)])).tolist()
    slices: list[memoryview] = []
    for first, last in itertools.pairwise(bounds):
        try:
            slices.append(part.file.checked(int(starts[first]), int(ends[last - 1])))
        except CorruptLogError:
            if slices or may_stop:
                return slices, first
            raise
    return slices, len(rows)


def _nothing(status: ReadStatus, view: View, next_offset: int) -> QueueRead:
    return QueueRead(status, [], 0, next_offset, view.min_offset, view.log_end)
