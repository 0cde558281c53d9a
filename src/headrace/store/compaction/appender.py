"""The appending side of a queue's log."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidParameterError, StoreError, StoreFailedError
from headrace.store.compaction.data_file import DataFile
from headrace.store.compaction.data_writer import DataWriter
from headrace.store.compaction.manifest import FileMeta
from headrace.store.compaction.naming import make_name
from headrace.store.compaction.open_files import OpenFiles
from headrace.store.compaction.units import Rows, describe
from headrace.store.compaction.view import Part, View

if TYPE_CHECKING:
    from headrace.protocol.columns import Records
    from headrace.store.compaction.log_files import LogFiles

__all__ = ["Appender"]

#: Logs of one process that hold files open for writing at the same time.
_open_files = OpenFiles(256)


class Appender:
    """Writes to the active file, and closes it when it is full.

    Caller: one thread, but for :meth:`rest`.
    """

    def __init__(self, files: LogFiles, writer: DataWriter, file_size: int) -> None:
        self._files = files
        self._writer = writer
        self._file_size = file_size
        #: Everything below is on disk.
        self.durable = files.view.log_end
        #: Held by who writes to the active file.
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
        with self.lock, contextlib.suppress(StoreError):
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

    def fresh(self, base: int) -> Part:
        """Describe a new active file."""
        files = self._files
        meta = FileMeta(make_name(base, files.new_number()))
        return Part(meta, DataFile(files.folder, meta, files.ops, good_from=0))

    def begin(self, part: Part) -> None:
        """Go on with a new active file that was published."""
        files = self._files
        self._writer = DataWriter(files.folder, part.meta, files.digest.mark, files.ops)
        self.durable = files.view.log_end

    def close(self, *, sync: bool) -> None:
        """Give the files back, synced or not."""
        try:
            if sync and not self._files.has_failed:
                self._sync()
        finally:
            _open_files.drop(self)
            with contextlib.suppress(OSError):
                self._writer.release()

    def _check_order(self, rows: Rows) -> None:
        offsets = rows.index["offset"]
        next_offset = self._files.view.log_end
        if int(offsets[0]) < next_offset or bool((np.diff(offsets) <= 0).any()):
            raise InvalidParameterError(
                f"records with offsets {int(offsets[0])} to {int(offsets[-1])} cannot be appended "
                f"to {self._files.folder}: the next offset is {next_offset}, and offsets rise"
            )

    def _fitting(self, sizes: npt.NDArray[np.int32]) -> int:
        """How many of the records the active file takes; one that is too large has its own."""
        used = self._files.view.active.meta.size
        left = self._file_size - used
        count = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, "right"))
        return max(count, 0 if used else 1)

    def _sync(self, *, rows: bool = False) -> None:
        end = self._files.view.log_end
        try:
            self._writer.sync(rows=rows)
        except StoreFailedError as error:
            with contextlib.suppress(OSError):
                self._writer.release()
            raise self._files.fail(error) from error.__cause__
        if self.durable < end:
            self.durable = end
            # The note only saves the next start some work.
            with contextlib.suppress(OSError):
                self._writer.note()
        self._writer.release()
