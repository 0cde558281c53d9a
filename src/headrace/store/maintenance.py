"""The maintenance thread: what a store does now and then, away from readers and the writer."""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.protocol.layout import queue_of, queue_offset_of, record_starts
from headrace.protocol.records import Records, record_sizes
from headrace.protocol.stamps import tag_hashes
from headrace.store.catalog import QueueCatalog, QueueLogs, remove_strangers
from headrace.store.checkpoint import Checkpointer, Saving
from headrace.store.compaction import CompactionReport, StoreClock
from headrace.store.entries import Entry, EntryKind, QueueKey, parse_losses
from headrace.store.index import UNIT, IndexView, Units
from headrace.store.log import CommitLog, GoneError, Segment, read_state, scan
from headrace.store.recovery import RecoveryReport, recover
from headrace.store.reput import Compactor, Reput
from headrace.store.requests import discard, keep_name
from headrace.store.staging import Staging
from headrace.store.writer import OnAppend, Writer
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps
    from headrace.store.settings import StoreSettings


# Retention: the oldest segments of the commit log go when they are too old or too many.
#
# Only whole segments that are full go, oldest first, and never what somebody still needs: a reader
# with a view keeps it, compaction logs have their copy on disk, followers hold them back.


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
    """Return the position before which segments have expired, oldest first; 0 for none.

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
    """Deletes what has expired. Caller: the maintenance thread, or whoever asks for it."""

    def __init__(
        self,
        log: CommitLog,
        catalog: QueueCatalog,
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
        #: Taken out of the log, but maybe still on disk: they go first, or there would be a gap.
        self._doomed: list[Segment] = []
        #: Each returns the lowest position that a follower or the like still needs; None: no wish.
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
        """Return the segments that may go: full ones, whose successor tells the state."""
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
        limit = self._settings.retention_size
        surplus = 0 if limit is None else self._log.end - self._log.begin - limit
        age = self._settings.retention
        end = end_of_expired(sealed, now=self._clock(), age=age, surplus=max(surplus, 0))
        wanted = [position for wish in self.wishes if (position := wish()) is not None]
        return min([end, *wanted])

    def _by_disk(self, sealed: Sequence[SealedSegment]) -> int:
        """Return the position up to which a full disk lets segments go: nobody's wish counts."""
        used, total = self._ops.disk_usage(self._log.folder)
        surplus = int(used - self._settings.disk_watermark * total)
        end = end_of_expired(sealed, now=0, age=None, surplus=max(surplus, 0))
        if end:
            logger.warning(
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
                logger.info("deleted %d segments, %d bytes of the log", count, size)
        return ExpiryReport(count, size, self._log.begin, len(self._doomed))


logger = logging.getLogger(__name__)


class Maintenance:
    """Does its work again and again until it is closed; what fails is tried again later.

    Parameters
    ----------
    work
        What to do.
    interval
        Seconds between two times.
    on_failure
        Told of the error that has ended it.
    """

    def __init__(
        self, work: Callable[[], object], interval: float, *, name: str, on_failure: OnFailure
    ) -> None:
        self._work = work
        self._interval = interval
        self._wake = threading.Event()
        self._closing = False
        self._thread = watched_thread(self._run, name=name, on_failure=on_failure)
        self._thread.start()

    def wake(self) -> None:
        """Do the work soon."""
        self._wake.set()

    def close(self) -> None:
        """Finish what is being done, then stop."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            self._wake.clear()
            if self._closing:
                return
            try:
                self._work()
            except Exception:
                logger.exception("maintenance failed, it is tried again")


# Upkeep: what a store does beside reading and writing, put together.
#
# Retention of the commit log, the reput into compaction logs, and their compactions.

#: How often compactions are looked for, seconds; and how many logs are opened for that at a time.
_LOOK = 1.0
_OPENED_AT_ONCE = 100
#: How often the age of the store is saved, seconds.
_CLOCK_SAVED = 60.0


class _GivenClock(StoreClock):
    """The time as a test says it."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__()
        self._now = now

    def now(self) -> int:
        return self._now()

    def elapsed(self) -> int:
        return self._now()


def make_clock(path: Path, now: Callable[[], int] | None) -> StoreClock:
    """Go on with the store's clock, or take the one of a test."""
    return StoreClock.open(path / "clock") if now is None else _GivenClock(now)


class Upkeep:
    """Keeps a store in shape, mostly on threads of its own."""

    def __init__(
        self, path: Path, parts: StoreParts, reput: Reput, settings: StoreSettings, ops: FileOps
    ) -> None:
        self._clock_path = path / "clock"
        self._ops = ops
        self._catalog: QueueCatalog = parts.catalog
        self._writer = parts.writer
        self._logs: QueueLogs = parts.queue_logs
        self._interval = settings.maintenance_interval.total_seconds()
        self._next_expiry = time.monotonic() + self._interval
        self._clock_saved = time.monotonic()
        self._unopened: list[tuple[str, int]] | None = None
        self.reput = reput
        self.retention = Retention(
            parts.log,
            parts.catalog,
            parts.checkpointer,
            parts.writer,
            settings=settings,
            ops=ops,
            clock=parts.queue_logs.clock.now,
        )
        self.retention.hand_on = self._hand_on
        parts.writer.saving.handed_on = lambda: reput.durable
        self.compactor = Compactor(parts.queue_logs, reput)
        self._maintenance = Maintenance(
            self._tick,
            min(self._interval, _LOOK),
            name="headrace-maintenance",
            on_failure=self._writer.fail,
        )
        self.compactor.on_end = self._maintenance.wake

    def expire(self) -> ExpiryReport:
        """Delete what has expired by now."""
        return self.retention.run()

    def compact(self, topic: str | None, *, force: bool) -> list[CompactionReport]:
        """Compact all queues, or those of one topic, up to the end that readers see."""
        # Only what is on disk is handed on: a checkpoint syncs the log.
        self._writer.checkpoint().result()
        self.reput.catch_up()
        reports = []
        for view in self._catalog.views():
            if not view.compacted or topic not in (None, view.key[0]):
                continue
            if self.compactor.is_paused((*view.key, view.birth)):
                continue
            with contextlib.suppress(GoneError):
                reports.append(self._compact(view, force=force))
        return reports

    def compact_queue(self, view: IndexView) -> CompactionReport:
        """Compact one queue up to the end that readers see, its newest records included."""
        self.reput.catch_up()
        return self._compact(view, force=True)

    def _compact(self, view: IndexView, *, force: bool) -> CompactionReport:
        log = self._logs.of(view)
        if force:
            with self.reput.turn:
                log.roll()
        return self.compactor.compact((*view.key, view.birth), log, force=force)

    def close(self) -> None:
        """Stop, with everything on disk that was handed on."""
        self._maintenance.close()
        self.compactor.close()
        self.reput.close()
        if self._catalog.compacted:
            with contextlib.suppress(OSError):
                self._logs.clock.save(self._clock_path, self._ops)

    def _hand_on(self, position: int) -> int:
        return self.reput.catch_up(position) if self._catalog.compacted else position

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_expiry:
            self._next_expiry = now + self._interval
            self.retention.run()
        if self._catalog.compacted:
            self._open_some()
            self.compactor.look()
            if now - self._clock_saved >= _CLOCK_SAVED:
                self._clock_saved = now
                self._logs.clock.save(self._clock_path, self._ops)

    def _open_some(self) -> None:
        """Open logs from an earlier run, a few at a time: they may be due for compaction."""
        if self._unopened is None:
            self._unopened = [view.key for view in self._catalog.views() if view.compacted]
        batch, self._unopened = self._unopened[:_OPENED_AT_ONCE], self._unopened[_OPENED_AT_ONCE:]
        for key in batch:
            view = self._catalog.view(key)
            if view.compacted:
                with contextlib.suppress(GoneError):
                    self._logs.of(view)


# Making index units again from the log, when an index file is damaged or lost.


def remake_units(log: CommitLog, key: QueueKey, first: int, last: int, position: int) -> Units:
    """Make the units of some offsets again, from the log at a position on.

    Units of records that the log does not hold (any more) are zeros.
    """
    units = np.zeros(last - first, UNIT)
    begin = log.segment_at(max(position, log.begin)).base
    for entry, payload in scan(log, begin):
        if entry.kind is EntryKind.VOID and entry.end > position:
            _fill_losses(units, key, first, entry, payload)
        if entry.kind is not EntryKind.DATA or entry.end <= position or queue_of(payload) != key:
            continue
        offset = queue_offset_of(payload)
        if offset < last:
            _fill(units, first, entry, payload, offset)
        if offset + entry.count >= last:
            break
    return units


def _fill(units: Units, first: int, entry: Entry, payload: memoryview, offset: int) -> None:
    records = Records(payload, record_starts(payload))
    found = np.empty(entry.count, UNIT)
    found["position"] = np.asarray(records.starts) + entry.payload_position
    found["size"] = record_sizes(records)
    found["tag"] = tag_hashes(records)
    skipped = max(first - offset, 0)
    at = max(offset - first, 0)
    room = units[at : at + max(entry.count - skipped, 0)]
    room[:] = found[skipped : skipped + len(room)]


def _fill_losses(
    units: Units, key: QueueKey, first: int, entry: Entry, payload: memoryview
) -> None:
    """Put lost offsets into their places inside the fence, and no size."""
    taken = 0
    for loss in parse_losses(payload):
        if loss.is_delete:
            continue
        if (loss.topic, loss.queue_id) == key:
            for offset in range(max(loss.first, first), min(loss.end, first + len(units))):
                units["position"][offset - first] = (
                    entry.payload_position + taken + offset - loss.first
                )
        taken += loss.count


COPIED = "copied"
"""Name of the file that makes a store the copy of another."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of an open store; the writer has yet to be started."""

    log: CommitLog
    catalog: QueueCatalog
    staging: Staging
    checkpointer: Checkpointer
    writer: Writer
    queue_logs: QueueLogs
    recovery: RecoveryReport


def open_parts(
    path: Path,
    settings: StoreSettings,
    ops: FileOps,
    *,
    on_append: OnAppend | None,
    clock: Callable[[], int] | None,
) -> StoreParts:
    """Recover what a folder holds. Caller: has the folder's lock."""
    for name in ("log", "index", "staging"):
        ops.make_directory(path / name)
    discard(path / "log", ops)
    segment_size, reserve = settings.segment_size, settings.min_free_space
    log = CommitLog(path / "log", ops, segment_size=segment_size, min_free_space=reserve)
    catalog = QueueCatalog(path / "index", settings.index_file_units, partial(remake_units, log))
    file_units, marks = settings.index_file_units, settings.unit_marks
    checkpoint = path / "checkpoint"
    try:
        keep_name(log, ops)
        report = recover(
            log,
            catalog,
            checkpoint,
            ops,
            file_units=file_units,
            unit_marks=marks,
            certain_to=read_mark(path / COPIED),
        )
        staging = Staging(path / "staging", ops, settings)
    except BaseException:
        log.close()
        raise
    for index in remove_strangers(catalog.folder, catalog.indexes(), ops):
        if index.files.floor:
            index.files.remove_expired()
    store_clock = make_clock(path, clock)
    queue_logs = QueueLogs(path / "compaction", settings.compaction, ops, store_clock)
    try:
        queue_logs.begin(catalog)
    except BaseException:
        log.close()
        raise
    checkpointer = Checkpointer(checkpoint, ops, -1 if report.rebuilt else report.checked_from)
    writer = Writer(
        log,
        catalog,
        staging,
        Saving(log, catalog, checkpointer, settings),
        settings=settings,
        ops=ops,
        clock=store_clock.now,
        on_append=on_append,
    )
    writer.last_timestamp = report.timestamp
    checkpointer.on_failure = writer.fail
    return StoreParts(log, catalog, staging, checkpointer, writer, queue_logs, report)


#: The log was on disk up to here, and a CRC-32 of that.
_MARK = struct.Struct("<qI")


def read_mark(path: Path) -> int | None:
    """Read how far a copied log was on disk for certain; None when the log is not a copy."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _MARK.size:
        return 0
    position, checksum = _MARK.unpack_from(content)
    return int(position) if zlib.crc32(content[:8]) == checksum else 0
