"""Reading: byte ranges of the log for the messages of one queue, found without decoding any."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import NotFoundError
from headrace.store.record import record_size_at, store_time_of
from headrace.store.segments import GoneError

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.index import IndexView, QueueKey, Units
    from headrace.store.log import CommitLog
    from headrace.store.verification import Verification

__all__ = ["Bounds", "Cut", "ReadResult", "ReadStatus", "Reader"]

#: With a tag filter a read looks at up to so many messages for those that match.
_FILTER_WINDOW = 16_384
#: More ranges than this are joined into one buffer when they are small.
_MAX_SLICES = 256
_SMALL_SLICE = 4096
#: Each try takes a fresh view: to fail, as many deletes must have come between.
_TRIES = 5

T = TypeVar("T")


class ReadStatus(Enum):
    """Outcome of a read."""

    #: There are messages.
    FOUND = "found"
    #: Messages were looked at, none has one of the tags.
    NO_MATCH = "no match"
    #: The offset is the next one to be written.
    AT_END = "at end"
    #: The queue holds no message.
    EMPTY = "empty"
    #: The offset is beyond the next one to be written.
    BEYOND = "beyond"
    #: The offset is before the first that the queue still holds.
    BELOW_MIN = "below min"


@dataclass(frozen=True, slots=True)
class Bounds:
    """First offset of a queue, and one past its last."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Stored records of one queue, as slices of the log."""

    status: ReadStatus
    slices: list[memoryview]
    count: int
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Several queues, cut at one position of the log."""

    #: Every message before this position is before the queue's end, every later one behind it.
    position: int
    begins: dict[QueueKey, int]
    ends: dict[QueueKey, int]
    #: One past the last message of each queue.
    latest: dict[QueueKey, int]


class Reader:
    """All questions about stored messages; any thread may ask."""

    def __init__(self, log: CommitLog, catalog: Catalog, verification: Verification) -> None:
        self._log = log
        self._catalog = catalog
        self._verification = verification

    def bounds(self, key: QueueKey) -> Bounds:
        """Give the offsets between which a queue holds messages."""
        view = self._catalog.view(key)
        return Bounds(view.min_offset, view.max_offset)

    def read(
        self,
        key: QueueKey,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> ReadResult:
        """Read from an offset on; see :meth:`MessageStore.read`."""
        return _looking_again(
            lambda: self._read(self._catalog.view(key), offset, max_count, max_bytes, tags)
        )

    def _read(
        self,
        view: IndexView,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> ReadResult:
        status = _status(view, offset)
        if status is not ReadStatus.FOUND:
            return _nothing(status, view, offset)
        window = max_count if tags is None else max(max_count, _FILTER_WINDOW)
        stop = min(view.max_offset, offset + max(window, 1))
        units, stop = _choose(view.units(offset, stop), offset, max_count, max_bytes, tags)
        while not len(units) and tags is None and stop < view.max_offset:
            # All of them were lost: the next larger offset is wanted.
            first, stop = stop, min(view.max_offset, stop + _FILTER_WINDOW)
            units, stop = _choose(view.units(first, stop), first, max_count, max_bytes, tags)
        if not len(units):
            return _nothing(ReadStatus.NO_MATCH, view, stop)
        return ReadResult(
            ReadStatus.FOUND,
            self._slices(units),
            len(units),
            stop,
            view.min_offset,
            view.max_offset,
        )

    def read_at(self, position: int) -> bytes:
        """Read the record that begins at a position of the log."""
        with contextlib.suppress(GoneError):
            if (record := self._record_at(position)) is not None:
                return record
        raise NotFoundError(f"no message begins at position {position} of the log")

    def _record_at(self, position: int) -> bytes | None:
        log, end = self._log, self._catalog.position
        if log.begin <= position < end:
            segment = log.segment_at(position)
            rest = segment.view(position, min(segment.end, end))
            size = record_size_at(rest, position)
            if size is not None and size <= len(rest):
                self._verification.check(position, position + size)
                return bytes(rest[:size])
        return None

    def store_time(self, key: QueueKey, offset: int) -> int:
        """Tell when a message was stored, ms since 1970."""
        return _looking_again(lambda: self._time_of(key, offset))

    def _time_of(self, key: QueueKey, offset: int) -> int:
        view = self._catalog.view(key)
        if not view.min_offset <= offset < view.max_offset:
            raise NotFoundError(
                f"queue {key[1]} of topic {key[0]!r} holds offsets {view.min_offset} to before "
                f"{view.max_offset}, not {offset}"
            )
        return self._store_time(view, offset)

    def offset_at(self, key: QueueKey, timestamp: int, *, upper: bool) -> int:
        """Find a message by its store time; see :meth:`MessageStore.offset_at`."""
        return _looking_again(lambda: self._offset_at(key, timestamp, upper=upper))

    def _offset_at(self, key: QueueKey, timestamp: int, *, upper: bool) -> int:
        view = self._catalog.view(key)
        low, high = view.min_offset, view.max_offset
        while low < high:
            middle = (low + high) // 2
            time = self._store_time(view, middle)
            if time < timestamp or (upper and time == timestamp):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, view.min_offset) if upper else low

    def cut(self, begins: Mapping[QueueKey, int], limit: int) -> Cut:
        """Cut queues at one position; see :meth:`MessageStore.cut`."""
        return _looking_again(lambda: self._cut(begins, limit))

    def _cut(self, begins: Mapping[QueueKey, int], limit: int) -> Cut:
        taken = self._catalog.view_all(begins)
        latest = {key: view.max_offset for key, view in taken.views.items()}
        held = {key: max(begins[key], view.min_offset) for key, view in taken.views.items()}
        ends = {key: max(held[key], end) for key, end in latest.items()}
        position = taken.position
        if limit and sum(ends[key] - held[key] for key in ends) > limit:
            position = _position_after(taken.views, held, limit)
            for key, view in taken.views.items():
                ends[key] = _first_from(view, held[key], ends[key], position)
        return Cut(position, dict(begins), ends, latest)

    def _store_time(self, view: IndexView, offset: int) -> int:
        unit = view.units(offset, offset + 1)
        if not unit["size"][0]:
            unit = _nearest(view, offset)
        position, size = int(unit["position"][0]), int(unit["size"][0])
        return store_time_of(self._log.view(position, position + size))

    def _slices(self, units: Units) -> list[memoryview]:
        starts = np.ascontiguousarray(units["position"])
        ends = starts + units["size"]
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        firsts = starts[np.concatenate(([0], breaks))].tolist()
        lasts = ends[np.concatenate((breaks - 1, [-1]))].tolist()
        slices = []
        for first, last in zip(firsts, lasts, strict=True):
            self._verification.check(first, last)
            slices.append(self._log.view(first, last))
        total = sum(map(len, slices))
        if len(slices) > _MAX_SLICES and total < _SMALL_SLICE * len(slices):
            return [memoryview(b"".join(slices))]
        return slices


def _looking_again(look: Callable[[], T]) -> T:
    """Look once more when retention, or the delete of a topic, came between."""
    for _ in range(_TRIES):
        with contextlib.suppress(GoneError):
            return look()
    return look()


def _status(view: IndexView, offset: int) -> ReadStatus:
    if view.min_offset == view.max_offset:
        return ReadStatus.EMPTY
    if offset < view.min_offset:
        return ReadStatus.BELOW_MIN
    if offset == view.max_offset:
        return ReadStatus.AT_END
    return ReadStatus.BEYOND if offset > view.max_offset else ReadStatus.FOUND


def _nothing(status: ReadStatus, view: IndexView, offset: int) -> ReadResult:
    return ReadResult(status, [], 0, offset, view.min_offset, view.max_offset)


def _choose(
    units: Units, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None
) -> tuple[Units, int]:
    """Pick what one read gives, and the offset where the next one goes on.

    A unit without a size is an offset that was lost.
    """
    chosen = np.flatnonzero(units["size"])
    if tags is not None:
        wanted = np.isin(units["tag"][chosen], np.fromiter(tags, np.int32, len(tags)))
        chosen = chosen[wanted]
    sizes = np.cumsum(units["size"][chosen], dtype=np.int64)
    # One message is given however large it is, or a reader could never get past it.
    fitting = max(int(np.searchsorted(sizes, max_bytes, side="right")), 1)
    count = min(fitting, max(max_count, 1), len(chosen))
    seen = len(units) if count == len(chosen) else int(chosen[count])
    in_a_row = count and int(chosen[count - 1]) == count - 1
    return units[:count] if in_a_row else units[chosen[:count]], offset + seen


def _nearest(view: IndexView, offset: int) -> Units:
    """Find the unit next to a lost one: the time of what was lost is between its neighbours'."""
    for begin in range(offset, view.max_offset, _FILTER_WINDOW):
        units = view.units(begin, min(begin + _FILTER_WINDOW, view.max_offset))
        if units["size"].any():
            return units[np.flatnonzero(units["size"])[:1]]
    for end in range(offset, view.min_offset, -_FILTER_WINDOW):
        units = view.units(max(end - _FILTER_WINDOW, view.min_offset), end)
        if units["size"].any():
            return units[np.flatnonzero(units["size"])[-1:]]
    raise NotFoundError(f"all messages of queue {view.key} were lost")


def _position_after(
    views: Mapping[QueueKey, IndexView], begins: Mapping[QueueKey, int], limit: int
) -> int:
    """Find the position of the first message beyond a limit, counted over all queues.

    Only a window of each queue is loaded, and it grows while it may hide an earlier message.
    """
    windows = {key: 2 * limit // len(views) + 1024 for key in views}
    while True:
        positions = {
            key: _positions(view, begins[key], begins[key] + windows[key])
            for key, view in views.items()
        }
        loaded = np.concatenate(list(positions.values()))
        # Fewer loaded than the limit: then some window is too small, and all of them grow.
        cut = int(np.partition(loaded, limit)[limit]) if len(loaded) > limit else None
        short = [
            key
            for key, view in views.items()
            if begins[key] + windows[key] < view.max_offset
            and (cut is None or positions[key][-1] < cut)
        ]
        if cut is not None and not short:
            return cut
        for key in short:
            windows[key] *= 4


def _positions(view: IndexView, first: int, last: int) -> npt.NDArray[np.int64]:
    last = min(last, view.max_offset)
    if first >= last:
        return np.empty(0, np.int64)
    return np.ascontiguousarray(view.units(first, last)["position"])


def _first_from(view: IndexView, first: int, last: int, position: int) -> int:
    """Find the first offset, from ``first`` on, whose message lies at or behind a position."""
    low, high = first, min(last, view.max_offset)
    while low < high:
        middle = (low + high) // 2
        if view.position(middle) < position:
            low = middle + 1
        else:
            high = middle
    return max(low, first)
