"""Retention: the oldest segments of the commit log go when they are too old or too many.

Only whole segments that are full go, oldest first, and never what somebody still needs: a reader
with a view keeps it, compaction logs have their copy on disk, followers hold them back.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.store.segments import GoneError, Segment
from headrace.store.state import read_state

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.checkpoint import Checkpointer
    from headrace.store.fileops import FileOps
    from headrace.store.log import CommitLog
    from headrace.store.settings import StoreSettings
    from headrace.store.writer import Writer

__all__ = ["ExpiryReport", "Retention", "SealedSegment", "end_of_expired"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A full segment, as retention looks at it."""

    end: int
    size: int
    #: Highest store time in it, ms since 1970.
    newest: int


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What one run of retention deleted."""

    #: Files and bytes that are gone.
    segments: int = 0
    bytes: int = 0
    #: Position of the log's first byte now.
    begin: int = 0
    #: Files that could not be deleted yet.
    waiting: int = 0


def end_of_expired(
    sealed: Sequence[SealedSegment],
    *,
    now: int,
    age: timedelta | None,
    surplus: int,
) -> int:
    """Position before which segments have expired, oldest first; 0 for none.

    Parameters
    ----------
    now
        The time, ms since 1970.
    age
        Segments whose newest record is older go; None keeps them.
    surplus
        Segments go until so many bytes are gone.

    Examples
    --------
    >>> sealed = [SealedSegment(100, 100, 5_000), SealedSegment(200, 100, 9_000)]
    >>> end_of_expired(sealed, now=10_000, age=timedelta(seconds=3), surplus=0)
    100
    >>> end_of_expired(sealed, now=10_000, age=None, surplus=101)
    200
    """
    end = freed = 0
    oldest = None if age is None else now - int(age.total_seconds() * 1000)
    for segment in sealed:
        if freed >= surplus and (oldest is None or segment.newest >= oldest):
            break
        end = segment.end
        freed += segment.size
    return end


class Retention:
    """Deletes what has expired. Caller: the maintenance thread, or who asks for it."""

    def __init__(
        self,
        log: CommitLog,
        catalog: Catalog,
        checkpointer: Checkpointer,
        writer: Writer,
        *,
        settings: StoreSettings,
        ops: FileOps,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._writer = writer
        self._settings = settings
        self._ops = ops
        self._clock = clock
        self._lock = threading.Lock()
        #: Newest store time of sealed segments, by first position.
        self._newest: dict[int, int] = {}
        #: Taken out of the log, but maybe still on disk: they go first, or there were a gap.
        self._doomed: list[Segment] = []
        #: Each gives the lowest position that somebody (a follower) still needs, None for no wish.
        self.wishes: list[Callable[[], int | None]] = []
        #: Brings compaction logs up to a position, and says how far they are on disk.
        self.hand_on: Callable[[int], int] = lambda position: position

    def run(self) -> ExpiryReport:
        """Delete what has expired by now.

        Raises
        ------
        OSError
            When a file cannot be deleted; it is tried again, before any other.
        """
        with self._lock:
            sealed = self._sealed()
            end = max(self._by_rules(sealed), self._by_disk(sealed))
            if end:
                end = self._possible(end)
            if end:
                self._raise_minimums(end)
                self._doomed += self._writer.detach(end)
            return self._remove()

    def _sealed(self) -> list[SealedSegment]:
        """Look at the segments that may go: full ones, whose successor tells the state."""
        segments = self._log.segments
        sealed = []
        for segment, after in itertools.pairwise(segments):
            newest = self._newest_in(segment, after)
            sealed.append(SealedSegment(segment.end, segment.size, newest))
        return sealed

    def _newest_in(self, segment: Segment, after: Segment) -> int:
        known = self._newest.get(segment.base)
        if known is not None:
            return known
        state = read_state(after)
        if state is None:
            # It may be about to be written: what stands in for it is not kept.
            return int(segment.path.stat().st_mtime * 1000)
        self._newest[segment.base] = state.timestamp
        return state.timestamp

    def _by_rules(self, sealed: Sequence[SealedSegment]) -> int:
        limit = self._settings.retention_bytes
        surplus = 0 if limit is None else self._log.end - self._log.begin - limit
        age = self._settings.retention
        end = end_of_expired(sealed, now=self._clock(), age=age, surplus=max(surplus, 0))
        wanted = [position for wish in self.wishes if (position := wish()) is not None]
        return min([end, *wanted])

    def _by_disk(self, sealed: Sequence[SealedSegment]) -> int:
        """A full disk stops everybody: then nobody's wish counts."""
        used, total = self._ops.disk_usage(self._log.folder)
        surplus = int(used - self._settings.disk_watermark * total)
        end = end_of_expired(sealed, now=0, age=None, surplus=max(surplus, 0))
        if end:
            _logger.warning(
                "the disk is %.1f%% full (disk_watermark: %.1f%%): messages before position %d of "
                "the log are deleted before their time",
                100 * used / total,
                100 * self._settings.disk_watermark,
                end,
            )
        return end

    def _possible(self, end: int) -> int:
        """Leave what is still needed: the position before which whole segments may go."""
        if self._checkpointer.position < end:
            self._writer.checkpoint().result()
        handed_on = self.hand_on(end)
        limit = min(end, handed_on, self._checkpointer.position, self._log.synced)
        possible = 0
        segments = self._log.segments
        for segment, after in itertools.pairwise(segments):
            if segment.end > limit:
                break
            # Without its successor's STATE, nobody could tell later where queues go on.
            if read_state(after) is not None and self._log.synced > after.base:
                possible = segment.end
        return possible

    def _raise_minimums(self, begin: int) -> None:
        minimums = {}
        for view in self._catalog.views():
            try:
                offset = view.first_from(begin, view.min_offset, view.max_offset)
            except GoneError:
                continue
            minimums[view.key] = (view.birth, offset)
        self._catalog.raise_minimums(minimums)

    def _remove(self) -> ExpiryReport:
        count = size = 0
        try:
            while self._doomed:
                segment = self._doomed[0]
                self._log.remove([segment])
                del self._doomed[0]
                self._newest.pop(segment.base, None)
                count, size = count + 1, size + segment.size
        finally:
            if count:
                _logger.info("deleted %d segments, %d bytes of the log", count, size)
        return ExpiryReport(count, size, self._log.begin, len(self._doomed))
