"""The log of one queue of a compacted topic."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, InvalidParameterError, StoreError, StoreFailedError
from headrace.store.compaction import reading
from headrace.store.compaction.data_file import DataFile, DerivedFileError
from headrace.store.compaction.data_writer import DataWriter
from headrace.store.compaction.digests import KeyDigest
from headrace.store.compaction.manifest import FileMeta, Manifest, publish
from headrace.store.compaction.naming import make_name
from headrace.store.compaction.open_files import OpenFiles
from headrace.store.compaction.recovery import Recovered, paths_of, recover, remove_files
from headrace.store.compaction.reports import QueueLogStatistics, QueueRead
from headrace.store.compaction.units import IndexRows, Rows, describe
from headrace.store.compaction.view import Part, View
from headrace.store.fileops import write_error

if TYPE_CHECKING:
    from headrace.protocol.columns import Records
    from headrace.store.compaction.clock import StoreClock
    from headrace.store.compaction.settings import CompactionSettings
    from headrace.store.fileops import FileOps

__all__ = ["QueueLog"]

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: Logs of one process that hold files open for writing at the same time.
_open_files = OpenFiles(256)


class QueueLog:
    r"""Records of one queue, the latest of each key for ever.

    Any thread reads.  One thread appends, syncs, rolls and truncates.  One thread at a time
    compacts, also while others append and read.

    Examples
    --------
    >>> import tempfile
    >>> from headrace.protocol.columns import encode_records, stamp_records
    >>> from headrace.store import FileOps
    >>> from headrace.store.compaction import CompactionSettings, StoreClock
    >>> log = QueueLog.open(
    ...     Path(tempfile.mkdtemp()), CompactionSettings(), FileOps(), secret=b"s", clock=StoreClock()
    ... )
    >>> records = encode_records("t", 0, [b"old", b"new"], b"KEYS\\x01k\\x02")
    >>> stamp_records(records, 0, 0, 0, ("127.0.0.1", 0))
    >>> log.append(records)
    >>> log.read(0, max_count=10, max_bytes=1000, tags=None).count
    2
    >>> log.close()
    """

    def __init__(
        self,
        folder: Path,
        settings: CompactionSettings,
        ops: FileOps,
        clock: StoreClock,
        digest: KeyDigest,
        found: Recovered,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._ops = ops
        self._clock = clock
        self._digest = digest
        self._view = found.view
        self._writer = found.writer
        self._generation = found.generation
        self._is_born = found.is_born
        self._durable = found.view.log_end
        self._failure: StoreFailedError | None = None
        self._closed = False
        self._garbage: list[Path] = []
        #: Guards the view and the small fields; held for moments only.
        self._lock = threading.Lock()
        #: Held by who writes to the active file.
        self._append_lock = threading.RLock()
        #: Held while a manifest is published.
        self._publish_lock = threading.Lock()
        #: Held by a compaction, and by what must not meet one.
        self._work_lock = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: CompactionSettings,
        ops: FileOps,
        *,
        secret: bytes,
        clock: StoreClock,
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
        return cls(folder, settings, ops, clock, digest, recover(folder, ops, digest))

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._folder

    @property
    def next_offset(self) -> int:
        """One past the highest offset that was ever appended; never moves back by compaction."""
        return self._view.log_end

    @property
    def min_offset(self) -> int:
        """First readable offset; ``next_offset`` when nothing is readable."""
        return self._view.min_offset

    @property
    def durable_offset(self) -> int:
        """Everything below is on disk."""
        return self._durable

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
        if not len(records):
            return
        rows = describe(records, self._digest)
        if positions is not None:
            rows.index["log_position"] = positions
        self._check_order(rows)
        payload = memoryview(records.data)
        with self._append_lock:
            self._require_usable()
            if not self._is_born:
                self._make_folder()
            starts = [*records.starts.tolist(), len(payload)]
            first = 0
            while first < len(rows):
                last = first + self._fitting(rows.index["size"][first:])
                if last == first:
                    self.roll()
                    continue
                self._write(payload[starts[first] : starts[last]], rows.part(first, last))
                first = last
        _open_files.use(self)

    def sync(self) -> None:
        """Put everything on the disk, and close the files until the next append.

        Raises
        ------
        StoreFailedError
            The sync failed: what the disk holds is unknown, and the log takes nothing more.
        """
        with self._append_lock:
            self._require_usable()
            self._sync()
        _open_files.drop(self)

    def rest(self) -> None:
        """Do as :meth:`sync`, but keep an error for the next call of the owner."""
        with self._append_lock, contextlib.suppress(StoreError):
            if self._failure is None and not self._closed:
                self._sync()

    def roll(self) -> None:
        """Close the active file, if it holds anything: it can then be compacted.

        Raises
        ------
        StoreError
            The file could not be closed; it stays active.
        """
        with self._append_lock:
            self._require_usable()
            view = self._view
            meta = view.active.meta
            if not meta.count:
                return
            self._sync(rows=True)
            name = self._new_name(view.log_end)
            fresh = FileMeta(name)
            active = Part(fresh, DataFile(self._folder, fresh, self._ops, good_from=0))

            def rolled(view: View) -> View:
                return View((*view.closed, view.active), active, view.log_end, view.clean_until)

            self._publish(rolled)
            self._writer = DataWriter(self._folder, fresh, self._digest.mark, self._ops)

    def read(
        self, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None = None
    ) -> QueueRead:
        """Read from an offset on; one that is gone means the next larger one.

        At least one record is given when there is any, however large.

        Raises
        ------
        CorruptLogError
            The first record to give is damaged; names the file and the place.
        """
        return self._ask(lambda view: reading.read(view, offset, max_count, max_bytes, tags))

    def units(self, first_offset: int, last_offset: int) -> IndexRows:
        """Give the index rows of the offsets from the first to before the last."""
        return self._ask(lambda view: reading.units(view, first_offset, last_offset))

    def store_time(self, offset: int) -> int:
        """Tell when a record was stored, ms since 1970.

        Raises
        ------
        NotFoundError
            The log does not hold the offset.
        """
        return self._ask(lambda view: reading.store_time(view, offset))

    def offset_at(self, timestamp: int, *, upper: bool) -> int:
        """Find a record by its store time, as :meth:`MessageStore.offset_at` does."""
        return self._ask(lambda view: reading.offset_at(view, timestamp, upper=upper))

    def statistics(self) -> QueueLogStatistics:
        """Count what the log holds."""
        view = self._view
        metas = [part.meta for part in view.parts]
        return QueueLogStatistics(
            files=len(metas),
            records=sum(meta.count for meta in metas),
            bytes=sum(meta.size for meta in metas),
            keyless=sum(meta.keyless for meta in metas),
            tombstones=sum(meta.tombstones for meta in metas),
            clean_until=view.clean_until,
        )

    def close(self) -> None:
        """Sync and close; views given out stay valid."""
        with self._work_lock, self._append_lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._failure is None:
                    self._sync()
            finally:
                _open_files.drop(self)
                with contextlib.suppress(OSError):
                    self._writer.release()

    def delete(self) -> None:
        """Close, and remove all files; views given out stay valid."""
        with self._work_lock, self._append_lock:
            self._closed = True
            _open_files.drop(self)
            with contextlib.suppress(OSError):
                self._writer.release()
            self._ops.remove_tree(self._folder)

    def _ask(self, question: Callable[[View], _Answer]) -> _Answer:
        """Answer from the present view; again when its files were replaced meanwhile."""
        while True:
            view = self._view
            try:
                return question(view)
            except DerivedFileError as error:
                self._rederive(view, error)
            except FileNotFoundError as error:
                if view is self._view:
                    raise CorruptLogError(
                        f"{error.filename or error} is missing",
                        hint="put the file back from a copy, or restore the queue from a replica",
                    ) from error

    def _check_order(self, rows: Rows) -> None:
        offsets = rows.index["offset"]
        if int(offsets[0]) < self.next_offset or bool((np.diff(offsets) <= 0).any()):
            raise InvalidParameterError(
                f"records with offsets {int(offsets[0])} to {int(offsets[-1])} cannot be appended "
                f"to {self._folder}: the next offset is {self.next_offset}, and offsets rise"
            )

    def _fitting(self, sizes: npt.NDArray[np.int32]) -> int:
        """How many of the records the active file takes; one that is too large has its own."""
        used = self._view.active.meta.size
        left = self._settings.file_size - used
        count = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, "right"))
        return max(count, 0 if used else 1)

    def _write(self, payload: memoryview, rows: Rows) -> None:
        self._writer.write(payload, rows)
        meta = self._writer.meta
        with self._lock:
            view = self._view
            part = Part(meta, view.active.file)
            self._view = View(view.closed, part, meta.last + 1, view.clean_until)

    def _sync(self, *, rows: bool = False) -> None:
        end = self._view.log_end
        try:
            self._writer.sync(rows=rows)
        except StoreFailedError as error:
            self._failure = error
            with contextlib.suppress(OSError):
                self._writer.release()
            raise
        if self._durable < end:
            self._durable = end
            with contextlib.suppress(OSError):
                self._writer.note()
        self._writer.release()

    def _make_folder(self) -> None:
        try:
            self._ops.make_directory(self._folder)
        except OSError as error:
            raise write_error(self._ops, self._folder, error) from error
        self._publish(lambda view: view)
        self._is_born = True

    def _new_name(self, base: int) -> str:
        with self._lock:
            self._generation += 1
            return make_name(base, self._generation)

    def _publish(self, change: Callable[[View], View]) -> None:
        """Make a changed view the valid one, on disk and for readers; all or nothing.

        Only the active part and the log's end may change meanwhile: ``change`` must take both from
        the view that it is given.
        """
        with self._publish_lock:
            self._require_usable()
            try:
                error = publish(self._folder, self._manifest(change(self._view)), self._ops)
            except OSError as refused:
                path = self._folder / "MANIFEST"
                raise write_error(self._ops, path, refused) from refused
            if error is not None:
                self._failure = StoreFailedError(
                    f"could not sync {self._folder}: {error.strerror or error}",
                    hint="check the disk, then start again: one of two complete states is kept",
                )
                raise self._failure from error
            with self._lock:
                self._view = change(self._view)

    def _manifest(self, view: View) -> Manifest:
        return Manifest(
            active=view.active.meta.name,
            digest=self._digest.algorithm,
            mark=self._digest.mark.hex(),
            files=tuple(part.meta for part in view.closed),
            log_end=view.log_end,
            clean_until=view.clean_until,
            generation=self._generation,
        )

    def _remove(self, metas: list[FileMeta]) -> None:
        """Remove files that no manifest names any longer. Affects: what was left before."""
        paths = [path for meta in metas for path in paths_of(self._folder, meta)]
        self._garbage = remove_files(self._garbage + paths, self._ops)

    def _rederive(self, view: View, cause: DerivedFileError) -> None:
        raise NotImplementedError

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise StoreFailedError(self._failure.message, hint=self._failure.hint)
        if self._closed:
            raise StoreError(f"the compaction log in {self._folder} is closed")
