"""Reading: byte ranges of the log for the messages of one queue, found without decoding any."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, NotFoundError, StoreError
from headrace.protocol import layout
from headrace.store.compaction.manifest import QueueRead, ReadStatus
from headrace.store.log import CommitLog, GoneError, looking_again

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog, QueueLogs
    from headrace.store.compaction import QueueLog
    from headrace.store.entries import QueueKey, Verification
    from headrace.store.index import IndexView, Units


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """Several queues, cut at one position of the log."""

    #: Every message before this position is before the queue's end, every later one behind it.
    position: int
    begins: dict[QueueKey, int]
    ends: dict[QueueKey, int]
    #: One past the last message of each queue.
    latest: dict[QueueKey, int]


class QueuePositions:
    """Where the messages of one queue lie in the commit log, from an offset on.

    Only a window is loaded, and it grows while it may hide an earlier message.
    """

    def __init__(self, view: IndexView, old: OldPart | None, begin: int) -> None:
        self._view = view
        self._old = old
        least = view.min_offset if old is None else old.min_offset
        #: First offset to look at, and one past the last.
        self.begin = max(begin, least)
        self.end = max(view.max_offset, self.begin)
        #: One past the last message, wherever one begins.
        self.latest = view.max_offset
        self._offsets: Int64s = np.empty(0, np.int64)
        self.positions: Int64s = np.empty(0, np.int64)
        #: Bytes of the messages, as they lie in the log.
        self.sizes: Int64s = np.empty(0, np.int64)
        self._loaded = self.begin

    def load(self, window: int) -> None:
        """Load the offsets of a window."""
        last = min(self.begin + window, self.end)
        if last <= self._loaded:
            return
        if self._old is not None:
            self._offsets, self.positions, self.sizes = self._old.positions(self.begin, last)
        else:
            units = self._view.units(self.begin, last)
            self._offsets = np.arange(self.begin, last)
            self.positions = np.ascontiguousarray(units["position"])
            self.sizes = units["size"].astype(np.int64)
        self._loaded = last

    def may_hide(self, position: int | None) -> bool:
        """Return whether messages before a position (None: any) may lie behind the window."""
        if self._loaded >= self.end:
            return False
        return position is None or not len(self.positions) or self.positions[-1] < position

    def end_before(self, position: int) -> int:
        """Return the first offset at or behind a position. Caller: has loaded up to there."""
        row = int(np.searchsorted(self.positions, position))
        return int(self._offsets[row]) if row < len(self._offsets) else self.end


def cut_queues(
    queues: Mapping[QueueKey, QueuePositions],
    begins: Mapping[QueueKey, int],
    end: int,
    limit: int,
    max_bytes: int = 0,
) -> Cut:
    """Cut queues at one position.

    At most ``limit`` messages, of at most ``max_bytes`` in all, are before it (0: any number), but
    at least one.
    """
    latest = {key: queue.latest for key, queue in queues.items()}
    position = None
    if limit and sum(queue.end - queue.begin for queue in queues.values()) > limit:
        position = _position_after(queues, limit)
    if max_bytes:
        position = _position_within(queues, position, end, max_bytes)
    if position is None:
        ends = {key: queue.end for key, queue in queues.items()}
        return Cut(end, dict(begins), ends, latest)
    ends = {key: queue.end_before(position) for key, queue in queues.items()}
    return Cut(position, dict(begins), ends, latest)


def _position_after(queues: Mapping[QueueKey, QueuePositions], limit: int) -> int | None:
    """Return the position of the first message beyond a limit, counted over all queues."""
    window = 2 * limit // len(queues) + 1024
    windows = dict.fromkeys(queues, window)
    while True:
        for key, queue in queues.items():
            queue.load(windows[key])
        loaded = np.concatenate([queue.positions for queue in queues.values()])
        # Fewer loaded than the limit: then some window is too small, and all of them grow.
        cut = int(np.partition(loaded, limit)[limit]) if len(loaded) > limit else None
        short = [key for key, queue in queues.items() if queue.may_hide(cut)]
        if not short:
            return cut
        for key in short:
            windows[key] *= 4


def _position_within(
    queues: Mapping[QueueKey, QueuePositions], position: int | None, end: int, max_bytes: int
) -> int | None:
    """Return the position of the first message beyond so many bytes, if it is before another."""
    bound = end if position is None else position
    for queue in queues.values():
        queue.load(1)
    firsts = [int(queue.positions[0]) for queue in queues.values() if len(queue.positions)]
    if not firsts or bound - min(firsts) <= max_bytes:
        # As much of the log as that holds no more messages than that.
        return position
    if position is None:
        for queue in queues.values():
            queue.load(queue.end - queue.begin)
    positions = np.concatenate([queue.positions for queue in queues.values()])
    sizes = np.concatenate([queue.sizes for queue in queues.values()])
    order = np.argsort(positions)
    order = order[positions[order] < bound]
    beyond = max(1, int(np.searchsorted(np.cumsum(sizes[order]), max_bytes, side="right")))
    return int(positions[order[beyond]]) if beyond < len(order) else position


T = TypeVar("T")


class OldPart:
    """The compaction log of one queue, beside an index view; both as they stood at one moment."""

    def __init__(self, view: IndexView, log: QueueLog) -> None:
        self._view = view
        self._log = log
        #: Everything below is in the compaction log, everything else in the commit log: nothing is
        #: skipped, nothing comes twice.
        self.seam = min(log.next_offset, view.max_offset)

    @property
    def dense_offset(self) -> int:
        """First offset that is read from the commit log."""
        return max(self.seam, self._view.min_offset)

    @property
    def min_offset(self) -> int:
        """First readable offset; the queue's end when nothing is."""
        first = self._ask(lambda: self._log.min_offset)
        return first if first < self.seam else self.dense_offset

    def read(
        self, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None
    ) -> QueueRead:
        """Read from the compaction log alone."""
        return self._ask(lambda: self._log.read(offset, max_count, max_bytes, tags))

    def store_time(self, offset: int) -> int:
        """Return when a record was stored, ms since 1970."""
        return self._ask(lambda: self._log.store_time(offset))

    def offset_at(self, timestamp: int, *, upper: bool) -> int:
        """Return an offset by store time, which is the seam when all records are older."""
        return min(self._ask(lambda: self._log.offset_at(timestamp, upper=upper)), self.seam)

    def positions(self, first: int, last: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the offsets of the records in a range, their commit-log positions and sizes."""
        rows = self._ask(lambda: self._log.units(first, min(last, self.seam)))
        offsets = np.ascontiguousarray(rows["offset"])
        places = np.ascontiguousarray(rows["log_position"])
        sizes = rows["size"].astype(np.int64)
        begin = max(first, self.dense_offset)
        if begin < last:
            dense = self._view.units(begin, last)
            offsets = np.concatenate((offsets, np.arange(begin, last)))
            places = np.concatenate((places, dense["position"]))
            sizes = np.concatenate((sizes, dense["size"]))
        return offsets, places, sizes

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except (CorruptLogError, StoreError):
            # The files of a topic that was deleted meanwhile are not damage.
            if self._view.files.gone:
                raise GoneError(f"topic {self._view.key[0]!r} was deleted") from None
            raise


class OldParts:
    """Finds the compaction log of a queue."""

    def __init__(self, logs: QueueLogs) -> None:
        self._logs = logs

    def of(self, view: IndexView) -> OldPart | None:
        """Return the old part of a queue; None for one that is not compacted, or has none yet."""
        if not view.compacted:
            return None
        try:
            return OldPart(view, self._logs.of(view))
        except OSError:
            # A full disk lets no log be begun, and reads go on: the index has all of the queue.
            if self._logs.has_begun(view):
                raise
            return None


#: With a tag filter a read looks at up to so many messages for those that match.
_FILTER_WINDOW = 16_384
#: More ranges than this are joined into one buffer when they are small.
_MAX_SLICES = 256
_SMALL_SLICE = 4096


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


class Reader:
    """All questions about stored messages; any thread may ask."""

    def __init__(
        self, log: CommitLog, catalog: QueueCatalog, verification: Verification, old_parts: OldParts
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._verification = verification
        self._old_parts = old_parts

    def bounds(self, key: QueueKey) -> Bounds:
        """Return the offsets between which a queue holds messages."""
        return looking_again(lambda: self._bounds(self._catalog.view(key)))

    def _bounds(self, view: IndexView) -> Bounds:
        old = self._old_parts.of(view)
        return Bounds(view.min_offset if old is None else old.min_offset, view.max_offset)

    def read(
        self,
        key: QueueKey,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> ReadResult:
        """Read from an offset on; see :meth:`MessageStore.read`."""
        return looking_again(
            lambda: self._read_any(self._catalog.view(key), offset, max_count, max_bytes, tags)
        )

    def _read_any(
        self,
        view: IndexView,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> ReadResult:
        old = self._old_parts.of(view)
        if old is None or offset >= view.max_offset:
            return self._read(view, offset, max_count, max_bytes, tags)
        least = old.min_offset
        if offset < old.seam:
            found = old.read(offset, max_count, max_bytes, tags)
            ended = found.status is ReadStatus.NO_MATCH and found.next_offset < old.seam
            if found.status is ReadStatus.FOUND or ended:
                end = max(view.max_offset, found.next_offset)
                return ReadResult(
                    found.status, found.slices, found.count, found.next_offset, least, end
                )
        offset = max(offset, old.dense_offset)
        if offset >= view.max_offset:
            # What was there was compacted away: the reader goes on at the end.
            return ReadResult(ReadStatus.NO_MATCH, [], 0, view.max_offset, least, view.max_offset)
        return replace(self._read(view, offset, max_count, max_bytes, tags), min_offset=least)

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
        # What lies behind the last one that can fit is not even looked up.
        most = min(max_count, max_bytes // layout.MIN_RECORD + 1)
        window = most if tags is None else max(most, _FILTER_WINDOW)
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
            self.slices(units),
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
            size = layout.record_size_at(rest, position)
            if size is not None and size <= len(rest):
                self._verification.check(position, position + size)
                return bytes(rest[:size])
        return None

    def store_time(self, key: QueueKey, offset: int) -> int:
        """Return when a message was stored, ms since 1970."""
        return looking_again(lambda: self._time_of(key, offset))

    def _time_of(self, key: QueueKey, offset: int) -> int:
        view = self._catalog.view(key)
        old = self._old_parts.of(view)
        if old is not None and offset < old.seam:
            return old.store_time(offset)
        if not view.min_offset <= offset < view.max_offset:
            raise NotFoundError(
                f"queue {key[1]} of topic {key[0]!r} holds offsets {view.min_offset} to before "
                f"{view.max_offset}, not {offset}"
            )
        return self._store_time(view, offset)

    def offset_at(self, key: QueueKey, timestamp: int, *, upper: bool) -> int:
        """Return an offset by store time; see :meth:`MessageStore.offset_at`."""
        return looking_again(lambda: self._offset_at(key, timestamp, upper=upper))

    def _offset_at(self, key: QueueKey, timestamp: int, *, upper: bool) -> int:
        view = self._catalog.view(key)
        old = self._old_parts.of(view)
        if old is None:
            return self._dense_offset_at(view, view.min_offset, timestamp, upper=upper)
        first = old.dense_offset
        if upper:
            dense = first < view.max_offset and self._store_time(view, first) <= timestamp
            if dense or old.min_offset == first:
                return self._dense_offset_at(view, first, timestamp, upper=True)
            return old.offset_at(timestamp, upper=True)
        found = old.offset_at(timestamp, upper=False)
        if found < old.seam:
            return found
        return self._dense_offset_at(view, first, timestamp, upper=False)

    def _dense_offset_at(self, view: IndexView, first: int, timestamp: int, *, upper: bool) -> int:
        low, high = first, view.max_offset
        while low < high:
            middle = (low + high) // 2
            time = self._store_time(view, middle)
            if time < timestamp or (upper and time == timestamp):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, first) if upper else low

    def cut(self, begins: Mapping[QueueKey, int], limit: int, max_bytes: int = 0) -> Cut:
        """Cut queues at one position; see :meth:`MessageStore.cut`."""
        return looking_again(lambda: self._cut(begins, limit, max_bytes))

    def _cut(self, begins: Mapping[QueueKey, int], limit: int, max_bytes: int) -> Cut:
        taken = self._catalog.view_all(begins)
        queues = {
            key: QueuePositions(view, self._old_parts.of(view), begins[key])
            for key, view in taken.views.items()
        }
        return cut_queues(queues, begins, taken.position, limit, max_bytes)

    def _store_time(self, view: IndexView, offset: int) -> int:
        unit = view.units(offset, offset + 1)
        if not unit["size"][0]:
            unit = _nearest(view, offset)
        position, size = int(unit["position"][0]), int(unit["size"][0])
        return layout.store_time_of(self._log.view(position, position + size))

    def slices(self, units: Units) -> list[memoryview]:
        """Return the checked bytes of units, adjacent ones as one slice."""
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
    """Pick what one read returns, and the offset where the next one goes on.

    A unit without a size is an offset that was lost.
    """
    chosen = np.flatnonzero(units["size"])
    if tags is not None:
        wanted = np.isin(units["tag"][chosen], np.fromiter(tags, np.int32, len(tags)))
        chosen = chosen[wanted]
    sizes = np.cumsum(units["size"][chosen], dtype=np.int64)
    # One message is returned however large it is, or a reader could never get past it.
    fitting = max(int(np.searchsorted(sizes, max_bytes, side="right")), 1)
    count = min(fitting, max(max_count, 1), len(chosen))
    seen = len(units) if count == len(chosen) else int(chosen[count])
    in_a_row = count and int(chosen[count - 1]) == count - 1
    return units[:count] if in_a_row else units[chosen[:count]], offset + seen


def _nearest(view: IndexView, offset: int) -> Units:
    """Return the unit next to a lost one: the time of what was lost is between its neighbours'."""
    for begin in range(offset, view.max_offset, _FILTER_WINDOW):
        units = view.units(begin, min(begin + _FILTER_WINDOW, view.max_offset))
        if units["size"].any():
            return units[np.flatnonzero(units["size"])[:1]]
    for end in range(offset, view.min_offset, -_FILTER_WINDOW):
        units = view.units(max(end - _FILTER_WINDOW, view.min_offset), end)
        if units["size"].any():
            return units[np.flatnonzero(units["size"])[-1:]]
    raise NotFoundError(f"all messages of queue {view.key} were lost")
