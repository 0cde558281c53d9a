"""The files of a queue's log: the view that readers have, and how it is replaced."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from headrace import errors
from headrace.protocol.layout import MIN_RECORD, store_time_of
from headrace.store.compaction.data_file import (
    INDEX,
    DataFile,
    DataWriter,
    DerivedFileError,
    FileView,
    IndexRows,
    RowWriter,
    UnitRows,
    View,
    make_name,
)
from headrace.store.compaction.manifest import (
    MANIFEST_NAME,
    FileMeta,
    Manifest,
    QueueRead,
    ReadStatus,
    publish,
)
from headrace.store.compaction.offset_map import KeyDigest, describe
from headrace.store.compaction.recovery import Recovered, damage_at, derive, paths_of, remove_files
from headrace.store.fileops import FileOps, write_error

if TYPE_CHECKING:
    from headrace.protocol.records import Records


# A bound on the files that logs hold open for writing, over all queues.


class FileOwner(Protocol):
    """Who holds files open and can do without."""

    def rest(self) -> None:
        """Sync what is written and close the files; must not raise."""


class OpenFiles:
    """Knows who has files open, and asks the one that was idle longest to close them.

    Files are not closed right after a write: an error of the disk is told to a descriptor that
    was open when the bytes were written, so they stay open until they are synced.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._owners: dict[FileOwner, None] = {}

    def use(self, owner: FileOwner) -> None:
        """Take note of a write. Caller: holds no lock of its own."""
        with self._lock:
            self._owners.pop(owner, None)
            self._owners[owner] = None
            idle = None
            if len(self._owners) > self._limit:
                idle = next(iter(self._owners))
                del self._owners[idle]
        if idle is not None:
            idle.rest()

    def drop(self, owner: FileOwner) -> None:
        """Take note that an owner has closed its files."""
        with self._lock:
            self._owners.pop(owner, None)

    def __len__(self) -> int:
        return len(self._owners)


# The appending side of a queue's log.

#: Logs of one process that hold files open for writing at the same time.
_open_files = OpenFiles(256)


class FileAppender:
    """Writes to the active file, and closes it when it is full.

    Caller: one thread, but for :meth:`rest`.
    """

    def __init__(self, files: LogFiles, writer: DataWriter, file_size: int) -> None:
        self._files = files
        self._writer = writer
        self._file_size = file_size
        #: Everything below is on disk.
        self.durable = files.view.log_end
        #: Held by whoever writes to the active file.
        self.lock = threading.RLock()

    def append(self, records: Records, positions: npt.NDArray[np.int64] | None) -> None:
        """Append records; see :meth:`QueueLog.append`."""
        rows = describe(records, self._files.digest)
        if positions is not None:
            rows.index["log_position"] = positions
        self._check_order(rows)
        payload = memoryview(records.data)
        starts = [*records.starts.tolist(), len(payload)]
        with self.lock:
            self._files.require_usable()
            self._files.make_folder()
            first = 0
            while first < len(rows):
                last = first + self._fitting(rows.index["size"][first:])
                if last == first:
                    self.roll()
                    continue
                self._writer.write(payload[starts[first] : starts[last]], rows.part(first, last))
                self._files.extend(self._writer.meta)
                first = last
        _open_files.use(self)

    def sync(self) -> None:
        """Put everything on the disk, and close the files until the next append."""
        with self.lock:
            self._files.require_usable()
            self._sync()
        _open_files.drop(self)

    def rest(self) -> None:
        """Do as :meth:`sync`, but keep an error for the next call of the owner."""
        with self.lock, contextlib.suppress(errors.StoreError):
            if not (self._files.has_failed or self._files.is_closed):
                self._sync()

    def roll(self) -> None:
        """Close the active file, if it holds anything."""
        with self.lock:
            self._files.require_usable()
            view = self._files.view
            if not view.active.meta.count:
                return
            self._sync(rows=True)
            fresh = self.fresh(view.log_end)

            def rolled(view: View) -> View:
                return View((*view.closed, view.active), fresh, view.log_end, view.clean_until)

            self._files.publish(rolled)
            self.begin(fresh)

    def fresh(self, base: int) -> FileView:
        """Describe a new active file."""
        files = self._files
        meta = FileMeta(make_name(base, files.new_number()))
        return FileView(meta, DataFile(files.folder, meta, files.ops, good_from=0))

    def begin(self, part: FileView) -> None:
        """Go on with a new active file that was published."""
        files = self._files
        self._writer = DataWriter(files.folder, part.meta, files.digest.mark, files.ops)
        self.durable = files.view.log_end

    def close(self, *, sync: bool) -> None:
        """Close the files, synced or not."""
        try:
            if sync and not self._files.has_failed:
                self._sync()
        finally:
            _open_files.drop(self)
            with contextlib.suppress(OSError):
                self._writer.release()

    def _check_order(self, rows: UnitRows) -> None:
        offsets = rows.index["offset"]
        next_offset = self._files.view.log_end
        if int(offsets[0]) < next_offset or bool((np.diff(offsets) <= 0).any()):
            raise errors.InvalidParameterError(
                f"records with offsets {int(offsets[0])} to {int(offsets[-1])} cannot be appended "
                f"to {self._files.folder}: the next offset is {next_offset}, and offsets rise"
            )

    def _fitting(self, sizes: npt.NDArray[np.int32]) -> int:
        """Return how many records the active file takes; one that is too large has its own."""
        used = self._files.view.active.meta.size
        left = self._file_size - used
        count = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, "right"))
        return max(count, 0 if used else 1)

    def _sync(self, *, rows: bool = False) -> None:
        end = self._files.view.log_end
        try:
            self._writer.sync(rows=rows)
        except errors.StoreFailedError as error:
            with contextlib.suppress(OSError):
                self._writer.release()
            raise self._files.fail(error) from error.__cause__
        if self.durable < end:
            self.durable = end
            # The note only saves the next start some work.
            with contextlib.suppress(OSError):
                self._writer.note()
        self._writer.release()


# Reading a view: byte ranges of the records from an offset on, found without decoding any.

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
    """Return the index rows of the offsets from ``first`` to before ``last``."""
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
    """Return when a record was stored, ms since 1970.

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
    raise errors.NotFoundError(f"the compaction log does not hold offset {offset}")


def offset_at(view: View, timestamp: int, *, upper: bool) -> int:
    """Return an offset by store time: the first that is not older, or the last that is not newer.

    It is the log's end when all are older, and the first offset when all are newer.
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
) -> tuple[FileView, int]:
    number = int(np.searchsorted(bases, row, "right")) - 1
    return view.parts[number], row - int(bases[number])


def _store_time(part: FileView, row: int) -> int:
    unit = part.file.index(part.meta)[row]
    at = int(unit["at"])
    return store_time_of(part.file.checked(at, at + int(unit["size"])))


def _rows_from(view: View, offset: int, window: int) -> Iterator[tuple[FileView, IndexRows]]:
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
    """Pick rows, and return how many were looked at before the read was full."""
    chosen = np.arange(len(rows))
    if tags is not None:
        chosen = np.flatnonzero(np.isin(rows["tag"], np.fromiter(tags, np.int32, len(tags))))
    sizes = np.cumsum(rows["size"][chosen], dtype=np.int64)
    # One record is returned however large it is, or a reader could never get past it.
    fitting = max(int(np.searchsorted(sizes, max_bytes, side="right")), int(is_first))
    count = min(fitting, max_count, len(chosen))
    seen = len(rows) if count == len(chosen) else int(chosen[count])
    return chosen[:count], seen


def _slices(part: FileView, rows: IndexRows, *, may_stop: bool) -> tuple[list[memoryview], int]:
    """Return the bytes of rows in front of the first damage, and how many rows these are."""
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
        except errors.CorruptLogError:
            if slices or may_stop:
                return slices, first
            raise
    return slices, len(rows)


def _nothing(status: ReadStatus, view: View, next_offset: int) -> QueueRead:
    return QueueRead(status, [], 0, next_offset, view.min_offset, view.log_end)


_Answer = TypeVar("_Answer")


class LogFiles:
    """The view of a queue's log; any thread may ask it."""

    def __init__(self, folder: Path, ops: FileOps, digest: KeyDigest, found: Recovered) -> None:
        self.folder = folder
        self.ops = ops
        self.digest = digest
        self.is_closed = False
        self._view = found.view
        self._generation = found.generation
        self._is_born = found.is_born
        self._failure: errors.StoreFailedError | None = None
        self._garbage: list[Path] = []
        #: Guards the view and the small fields; held for moments only.
        self._lock = threading.Lock()
        #: Held while a manifest is published.
        self._publish_lock = threading.Lock()
        #: Held while derived files are made again.
        self._derive_lock = threading.Lock()

    @property
    def view(self) -> View:
        """The log as it stands now."""
        return self._view

    @property
    def has_failed(self) -> bool:
        """Whether a sync failed, so that nothing more is written."""
        return self._failure is not None

    def require_usable(self) -> None:
        """Refuse to go on with a log that has failed or is closed."""
        if self._failure is not None:
            raise errors.StoreFailedError(self._failure.message, hint=self._failure.hint)
        if self.is_closed:
            raise errors.StoreError(f"the compaction log in {self.folder} is closed")

    def fail(self, error: errors.StoreFailedError) -> errors.StoreFailedError:
        """Take note that it is not known what the disk holds."""
        self._failure = error
        return error

    def new_number(self) -> int:
        """Return a number that no file of the folder has."""
        with self._lock:
            self._generation += 1
            return self._generation

    def make_folder(self) -> None:
        """Make folder and manifest of a new log."""
        if self._is_born:
            return
        try:
            self.ops.make_directory(self.folder)
        except OSError as error:
            raise write_error(self.ops, self.folder, error) from error
        self.publish(lambda view: view)
        self._is_born = True

    def extend(self, meta: FileMeta) -> None:
        """Show what was appended to the active file. Caller: the appender."""
        with self._lock:
            view = self._view
            part = FileView(meta, view.active.file)
            self._view = View(view.closed, part, meta.last + 1, view.clean_until)

    def publish(self, change: Callable[[View], View]) -> None:
        """Make a changed view the valid one, on disk and for readers; all or nothing.

        The active part and the log's end may change meanwhile: ``change`` takes both from the view
        that it is given, unless its caller has stopped appends.

        Raises
        ------
        StoreError
            Nothing was changed.
        StoreFailedError
            It is not known which view a power cut would leave; the files of both are kept.
        """
        with self._publish_lock:
            self.require_usable()
            manifest = self._manifest(change(self._view))
            try:
                error = publish(self.folder, manifest, self.ops)
            except OSError as refused:
                raise write_error(self.ops, self.folder / MANIFEST_NAME, refused) from refused
            if error is not None:
                failure = errors.StoreFailedError(
                    f"could not sync {self.folder}: {error.strerror or error}",
                    hint="check the disk, then start again: one of two complete states is kept",
                )
                raise self.fail(failure) from error
            with self._lock:
                self._view = change(self._view)

    def remove(self, gone: list[FileMeta], derived_anew: list[FileMeta]) -> None:
        """Remove files that no manifest names any longer, and what could not be removed before."""
        paths = [path for meta in gone for path in paths_of(self.folder, meta)]
        paths += [path for meta in derived_anew for path in paths_of(self.folder, meta)[1:3]]
        self._remove(paths)

    def ask(self, question: Callable[[View], _Answer]) -> _Answer:
        """Answer from the present view, and again if its files were replaced meanwhile."""
        while True:
            view = self._view
            try:
                return question(view)
            except DerivedFileError as error:
                self.derive_again(error)
            except FileNotFoundError as error:
                if view is self._view:
                    raise errors.CorruptLogError(
                        f"{error.filename or error} is missing",
                        hint="put the file back from a copy, or restore the queue from a replica",
                    ) from error

    def derive_again(self, cause: DerivedFileError) -> None:
        """Make index and key sidecar of a closed file again from its data.

        When its deletes were met is then not known: they are met anew.
        """
        with self._derive_lock:
            part = next((p for p in self._view.closed if p.meta.name == cause.name), None)
            if part is None:
                if self._view.active.meta.name != cause.name:
                    return
                raise errors.CorruptLogError(
                    str(cause), hint="start again: it is then made again from the data"
                ) from cause
            if part.file is not cause.file:
                return
            remade = self._derived(part)
            self._replace(part.meta.name, remade)
            self._remove(paths_of(self.folder, part.meta)[1:3])

    def _derived(self, part: FileView) -> FileView:
        meta = msgspec.structs.replace(FileMeta(part.meta.name), derived=self.new_number())
        writer = RowWriter(self.folder, meta, self.digest.mark, self.ops)
        path = part.file.path
        try:
            end = derive(path, part.meta.size, writer, self.digest, self.ops)
            writer.sync()
        except OSError as error:
            raise write_error(self.ops, path, error) from error
        finally:
            writer.close()
        if end < part.meta.size:
            remove_files(paths_of(self.folder, meta)[1:3], self.ops)
            raise damage_at(path, end)
        return FileView(writer.meta, part.file.with_derived(writer.meta))

    def _replace(self, name: str, remade: FileView) -> None:
        def changed(view: View) -> View:
            closed = tuple(remade if part.meta.name == name else part for part in view.closed)
            return View(closed, view.active, view.log_end, view.clean_until)

        self.publish(changed)

    def _remove(self, paths: list[Path]) -> None:
        with self._lock:
            paths, self._garbage = self._garbage + paths, []
        left = remove_files(paths, self.ops)
        with self._lock:
            self._garbage += left

    def _manifest(self, view: View) -> Manifest:
        active = view.active.meta
        # Not the end of what is appended: a power cut may take the active file's newest records,
        # and an end beyond them would keep those who append from doing it again.
        log_end = active.first if active.count else view.log_end
        return Manifest(
            active=active.name,
            digest=self.digest.algorithm,
            mark=self.digest.mark.hex(),
            files=tuple(part.meta for part in view.closed),
            log_end=log_end,
            clean_until=view.clean_until,
            generation=self._generation,
        )
