"""The log of one queue of a compacted topic."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from headrace.store.compaction import compactor, log_files, manifest
from headrace.store.compaction.data_file import DerivedFileError, FileView, IndexRows, View
from headrace.store.compaction.log_files import FileAppender, LogFiles
from headrace.store.compaction.offset_map import Candidate, Horizon, KeyDigest, Rounds
from headrace.store.compaction.recovery import Recovered, inspect_files, recover

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.records import Records
    from headrace.store.fileops import FileOps


# Truncation: the log as it was before an offset, in files of its own.
#
# A file is never shortened in place: a reader may have it mapped.


def truncated(files: LogFiles, offset: int, fresh: FileView, place: compactor.OutputPlace) -> None:
    """Publish the view of a log that ends before an offset.

    Caller: has stopped appends and compactions.

    Parameters
    ----------
    fresh
        The active file to go on with.
    """
    view = files.view
    outputs = compactor.NewFiles(place, lambda index: index["met"])
    try:
        kept = [part for part in view.closed if part.meta.last < offset]
        for part in view.parts:
            meta = part.meta
            if meta.first < offset and (part is view.active or meta.last >= offset):
                kept += outputs.rewrite((_before(part, offset),))
        clean_until = min(view.clean_until, offset)
        files.publish(lambda _: View(tuple(kept), fresh, offset, clean_until))
    except Exception:
        if not files.has_failed:
            outputs.discard()
        raise


def _before(part: FileView, offset: int) -> Candidate:
    """Mark the records from an offset on."""
    candidate = Candidate(part)
    gone = np.zeros(part.meta.count, np.bool_)
    gone[part.file.row_of(part.meta, offset) :] = True
    candidate.drop(0, gone)
    return candidate


_Answer = TypeVar("_Answer")

_MS = timedelta(milliseconds=1)


class QueueLog:
    r"""Records of one queue, the latest of each key for ever.

    Any thread reads.  One thread appends, syncs, rolls and truncates.  One thread at a time
    compacts, also while others append and read.

    Examples
    --------
    >>> import tempfile
    >>> from headrace.protocol.records import encode_records
    >>> from headrace.protocol.stamps import stamp_records
    >>> from headrace.store import FileOps
    >>> from headrace.store.compaction import CompactionSettings, StoreClock
    >>> folder = Path(tempfile.mkdtemp())
    >>> settings, clock = CompactionSettings(), StoreClock()
    >>> log = QueueLog.open(folder, settings, FileOps(), secret=b"secret", clock=clock)
    >>> records = encode_records("t", 0, [b"old", b"new"], b"KEYS\x01k\x02")
    >>> stamp_records(records, 0, 0, 0, ("127.0.0.1", 0))
    >>> log.append(records)
    >>> log.roll()
    >>> log.compact(force=True).records_out
    1
    >>> log.read(0, max_count=10, max_bytes=1000).next_offset
    2
    >>> log.close()
    """

    def __init__(
        self,
        files: LogFiles,
        settings: compactor.CompactionSettings,
        clock: compactor.StoreClock,
        found: Recovered,
    ) -> None:
        self._files = files
        self._settings = settings
        self._clock = clock
        self._appender = FileAppender(files, found.writer, settings.file_size)
        #: Held by a compaction, and by what must not meet one.
        self._work_lock = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: compactor.CompactionSettings,
        ops: FileOps,
        *,
        secret: bytes,
        clock: compactor.StoreClock,
    ) -> Self:
        """Open the log in a folder, or a new one; recovers what a crash left behind.

        A new log makes its folder with its first record.

        Parameters
        ----------
        secret
            Keys the digests; the same at every start, or all sidecars are made again.

        Raises
        ------
        CorruptLogError
            Bytes that were once on disk are damaged; nothing was changed.
        """
        digest = KeyDigest(settings.digest, secret)
        found = recover(folder, ops, digest)
        return cls(LogFiles(folder, ops, digest, found), settings, clock, found)

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._files.folder

    @property
    def next_offset(self) -> int:
        """One past the highest offset that was ever appended; compaction never moves it back."""
        return self._files.view.log_end

    @property
    def min_offset(self) -> int:
        """First readable offset; ``next_offset`` when nothing is readable."""
        return self._files.view.min_offset

    @property
    def durable_offset(self) -> int:
        """Everything below is on disk."""
        return self._appender.durable

    def append(self, records: Records, positions: npt.NDArray[np.int64] | None = None) -> None:
        """Append stamped records of this queue.

        Their offsets must rise and begin at ``next_offset`` or behind it; gaps are allowed.
        When an error comes, ``next_offset`` tells what was appended.

        Parameters
        ----------
        positions
            Where the records lie in the commit log; by default, where they say.

        Raises
        ------
        InvalidParameterError
            The offsets do not rise.
        StoreError
            The disk did not take the records; see its subclasses.
        """
        if len(records):
            self._appender.append(records, positions)

    def sync(self) -> None:
        """Put everything on the disk, and close the files until the next append.

        Raises
        ------
        StoreFailedError
            The sync failed: what the disk holds is unknown, and the log takes nothing more.
        """
        self._appender.sync()

    def roll(self) -> None:
        """Close the active file, if it holds anything: it can then be compacted.

        Raises
        ------
        StoreError
            The file could not be closed; it stays active.
        """
        self._appender.roll()

    def truncate(self, offset: int) -> None:
        """Remove everything from an offset on, for good: the log's end moves back to it.

        Waits for a running compaction.  A key whose latest record is removed has none then: what
        may be truncated must not be compacted (``below`` of :meth:`compact`).

        Raises
        ------
        StoreError
            Nothing was removed.
        """
        with self._work_lock, self._appender.lock:
            self._files.require_usable()
            view = self._files.view
            if offset >= view.log_end:
                return
            self._appender.sync()
            fresh = self._appender.fresh(offset)
            self._retry(lambda: truncated(self._files, offset, fresh, self._place(None)))
            self._appender.begin(fresh)
            self._remove_replaced((*view.closed, view.active))

    def read(
        self, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None = None
    ) -> manifest.QueueRead:
        """Read from an offset on; one that is gone means the next larger one.

        At least one record is returned when there is any, however large.

        Raises
        ------
        CorruptLogError
            The first record to return is damaged; names the file and the place.
        """
        return self._files.ask(
            lambda view: log_files.read(view, offset, max_count, max_bytes, tags)
        )

    def units(self, first_offset: int, last_offset: int) -> IndexRows:
        """Return the index rows of the offsets from the first to before the last."""
        return self._files.ask(lambda view: log_files.units(view, first_offset, last_offset))

    def store_time(self, offset: int) -> int:
        """Return when a record was stored, ms since 1970.

        Raises
        ------
        NotFoundError
            The log does not hold the offset.
        """
        return self._files.ask(lambda view: log_files.store_time(view, offset))

    def offset_at(self, timestamp: int, *, upper: bool) -> int:
        """Return an offset by store time, as :meth:`MessageStore.offset_at` does."""
        return self._files.ask(lambda view: log_files.offset_at(view, timestamp, upper=upper))

    def dirt(self) -> manifest.Dirt:
        """Return how much of the closed files no compaction has covered."""
        return self._files.ask(lambda view: compactor.dirt_of(view.closed, view.clean_until))

    def active_since(self) -> int | None:
        """Return the store time of the oldest record of the active file, or None if it is empty."""
        meta = self._files.view.active.meta
        return meta.oldest if meta.count else None

    def is_due(self) -> bool:
        """Return whether :meth:`compact` without ``force`` would do anything."""
        return self._files.ask(lambda view: compactor.is_due(view, self._settings, self._clock))

    def compact(
        self,
        *,
        force: bool = False,
        max_rounds: int | None = None,
        map_capacity: int | None = None,
        throttle: Callable[[int], None] | None = None,
        below: int | None = None,
    ) -> manifest.CompactionReport:
        """Keep only the latest record of each key in the closed files.

        Parameters
        ----------
        force
            Whatever the ratio and the lags are.
        max_rounds
            Offset maps to fill at most; the next compaction goes on from there.
        map_capacity
            Keys that one offset map holds at most, below what ``map_bytes`` allows.
        throttle
            Called with bytes that were read or written; may wait.
        below
            Files with an offset from here on are left alone.

        Raises
        ------
        CorruptLogError
            A record to copy is damaged; names the file and the place.  Nothing was changed.
        StoreError
            The disk did not take the new files.  Nothing was changed.
        """
        with self._work_lock:
            self._files.require_usable()
            if not force and not self.is_due():
                return manifest.CompactionReport.nothing()
            rounds = Rounds(self._settings.map_bytes, map_capacity, max_rounds)
            retention = self._settings.tombstone_retention // _MS
            horizon = Horizon(self._clock.elapsed(), retention)
            place = self._place(throttle)
            return self._retry(
                lambda: self._compact(rounds, horizon, place, force=force, below=below)
            )

    def verify(self) -> list[manifest.Damage]:
        """Read everything, and return what is damaged by file and place."""
        while True:
            view = self._files.view
            damage = inspect_files(self.folder, [part.meta for part in view.parts], self._files.ops)
            # A file that was compacted away meanwhile is not missing.
            if not damage or view.closed == self._files.view.closed:
                return damage

    def statistics(self) -> manifest.QueueLogStatistics:
        """Count what the log holds."""
        view = self._files.view
        metas = [part.meta for part in view.parts]
        return manifest.QueueLogStatistics(
            files=len(metas),
            records=sum(meta.count for meta in metas),
            bytes=sum(meta.size for meta in metas),
            keyless=sum(meta.keyless for meta in metas),
            tombstones=sum(meta.tombstones for meta in metas),
            clean_until=view.clean_until,
        )

    def release(self) -> None:
        """Drop mappings of an idle log; the next read maps again."""
        for part in self._files.view.parts:
            part.file.forget()

    def close(self) -> None:
        """Stop a running compaction, sync and close; views given out stay valid."""
        was_closed, self._files.is_closed = self._files.is_closed, True
        with self._work_lock, self._appender.lock:
            if not was_closed:
                self._appender.close(sync=True)

    def delete(self) -> None:
        """Close, and remove all files; views given out stay valid."""
        self._files.is_closed = True
        with self._work_lock, self._appender.lock:
            self._appender.close(sync=False)
            self._files.ops.remove_tree(self.folder)

    def _compact(
        self,
        rounds: Rounds,
        horizon: Horizon,
        place: compactor.OutputPlace,
        *,
        force: bool,
        below: int | None,
    ) -> manifest.CompactionReport:
        view = self._files.view
        parts = compactor.candidates_of(
            view, self._clock.now(), self._settings, force=force, below=below
        )

        def publish(made: list[FileView], clean_until: int) -> None:
            def swapped(view: View) -> View:
                # Derived files may have been made again meanwhile for a part that stays.
                current = {part.meta.name: part for part in view.closed}
                stays = {id(part) for part in parts}
                new = [current[p.meta.name] if id(p) in stays else p for p in made]
                closed = (*new, *view.closed[len(parts) :])
                return View(closed, view.active, view.log_end, clean_until)

            self._files.publish(swapped)
            self._remove_replaced(parts)

        return compactor.Compaction(parts, view.clean_until, rounds, horizon, place).run(publish)

    def _place(self, throttle: Callable[[int], None] | None) -> compactor.OutputPlace:
        rate = self._settings.bytes_per_second
        if throttle is None and rate is not None:
            throttle = compactor.RateLimit(rate)

        def check(count: int) -> None:
            self._files.require_usable()
            if throttle is not None:
                throttle(count)

        return compactor.OutputPlace(
            self.folder,
            self._files.ops,
            self._files.digest.mark,
            self._settings.file_size,
            self._files.new_number,
            check,
        )

    def _retry(self, work: Callable[[], _Answer]) -> _Answer:
        """Do work that needs derived files; make those again that are damaged."""
        while True:
            try:
                return work()
            except DerivedFileError as error:
                self._files.derive_again(error)

    def _remove_replaced(self, parts: tuple[FileView, ...]) -> None:
        """Remove the files of parts that the view no longer has."""
        view = self._files.view
        left = {part.meta.name: part.meta.derived for part in (*view.closed, view.active)}
        gone = [part.meta for part in parts if part.meta.name not in left]
        restamped = [
            part.meta
            for part in parts
            if left.get(part.meta.name, part.meta.derived) != part.meta.derived
        ]
        self._files.remove(gone, restamped)
        for part in parts:
            if part.meta.name not in left:
                # The disk has the space back with the last reader, not with the next collection.
                part.file.forget()
