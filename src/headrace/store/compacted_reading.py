"""Reading compacted topics: the old part from the compaction log, the rest from the commit log.

The seam is the compaction log's next offset.  Everything below it is read there, everything from
it on is in the dense index: nothing is skipped, nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, StoreError
from headrace.store.log import GoneError

if TYPE_CHECKING:
    from headrace.store.compaction import QueueLog
    from headrace.store.compaction.reports import QueueRead
    from headrace.store.index import IndexView, QueueKey
    from headrace.store.queue_logs import QueueLogs


# Cuts: several queues, each up to its last message before one position of the commit log.

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
        """Look at the offsets of a window."""
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
        """Whether messages before a position (None: any) may lie behind the window."""
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
    """Find the position of the first message beyond a limit, counted over all queues."""
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
    """Find the position of the first message beyond so many bytes, if it is before another."""
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
        #: Everything below is in the compaction log, everything else in the commit log.
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
        """Tell when a record was stored, ms since 1970."""
        return self._ask(lambda: self._log.store_time(offset))

    def offset_at(self, timestamp: int, *, upper: bool) -> int:
        """Find a record by its store time; the seam when all are older."""
        return min(self._ask(lambda: self._log.offset_at(timestamp, upper=upper)), self.seam)

    def positions(self, first: int, last: int) -> tuple[Int64s, Int64s, Int64s]:
        """Offsets of the records from one to before another, their commit-log positions, sizes."""
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
            # The files of a topic that was deleted meanwhile are no damage.
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
