"""Reading compacted topics: the old part from the compaction log, the rest from the commit log.

The seam is the compaction log's next offset.  Everything below it is read there, everything from
it on is in the dense index: nothing is skipped, nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headrace.errors import CorruptLogError, StoreError
from headrace.store.segments import GoneError

if TYPE_CHECKING:
    from headrace.store.compaction import QueueLog
    from headrace.store.compaction.reports import QueueRead
    from headrace.store.cuts import Int64s
    from headrace.store.index import IndexView
    from headrace.store.queue_logs import QueueLogs

__all__ = ["OldPart", "OldParts"]

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
        """Give the old part of a queue; None for one that is not compacted, or has none yet."""
        if not view.compacted:
            return None
        try:
            return OldPart(view, self._logs.of(view))
        except OSError:
            # A full disk lets no log be begun, and reads go on: the index has all of the queue.
            if self._logs.has_begun(view):
                raise
            return None
