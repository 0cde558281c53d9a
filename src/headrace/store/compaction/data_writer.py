"""Writing one data file with its derived files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import StoreFailedError
from headrace.store.compaction.manifest import FileMeta, encode_checked
from headrace.store.compaction.naming import data_path, synced_path
from headrace.store.compaction.row_writer import RowWriter
from headrace.store.entries import HEADER_SIZE, NO_UNIT, EntryKind, pack_header
from headrace.store.fileops import Buffer, write_all, write_error

if TYPE_CHECKING:
    from headrace.store.compaction.units import Rows
    from headrace.store.fileops import FileOps

__all__ = ["ENTRY_BYTES", "SYNCED_SLOT", "DataWriter"]

#: Records are put into entries of about this size: what a cold read has to check at once.
ENTRY_BYTES = 256 * 1024
#: Two notes of how far the file was synced are written in turn, each in a place of this size.
SYNCED_SLOT = 512


class DataWriter:
    """Appends records as checked entries, and their rows to the derived files.

    It holds three descriptors from a write to the next :meth:`release`.
    Caller: one thread at a time.
    """

    def __init__(
        self, folder: Path, meta: FileMeta, mark: bytes, ops: FileOps, *, is_new: bool = True
    ) -> None:
        self._folder = folder
        self._path = data_path(folder, meta.name)
        self._ops = ops
        self._rows = RowWriter(folder, meta, mark, ops)
        self._fd: int | None = None
        #: Whether the names of the files may not be on the disk yet.
        self._unnamed = is_new
        self._synced = meta.size
        self._notes = 0

    @property
    def meta(self) -> FileMeta:
        """What is written so far."""
        return self._rows.meta

    @property
    def is_open(self) -> bool:
        """Whether it holds descriptors."""
        return self._fd is not None or self._rows.is_open

    def write(self, payload: memoryview, rows: Rows) -> None:
        """Append records; ``at`` of the rows is made to count from the file's first byte.

        Raises
        ------
        StoreError
            Nothing was appended.
        """
        meta = self.meta
        buffers, places = self._entries(payload, rows, meta.size)
        rows.index["at"] = places
        try:
            if self._fd is None:
                self._fd = self._ops.open(self._path, os.O_RDWR | os.O_CREAT)
            write_all(self._ops, self._fd, buffers, meta.size)
            self._rows.write(rows, meta.size + sum(map(len, buffers)))
        except OSError as error:
            raise write_error(self._ops, self._path, error) from error

    def sync(self, *, rows: bool = False) -> None:
        """Put the data on the disk, and the rows when asked to; they can be made again.

        Raises
        ------
        StoreFailedError
            What the disk holds is now unknown.
        """
        if self._fd is not None and self._synced < self.meta.size:
            try:
                self._ops.fdatasync(self._fd)
                if rows:
                    self._rows.sync()
                if self._unnamed:
                    self._ops.sync_directory(self._folder)
            except OSError as error:
                raise StoreFailedError(
                    f"could not sync {self._path}: {error.strerror or error}",
                    hint="check the disk, then start again: recovery keeps what reached it",
                ) from error
            self._unnamed = False
            self._synced = self.meta.size

    def note(self) -> None:
        """Leave a note of what is synced: recovery then reads only what comes after it."""
        content = encode_checked(self.meta).ljust(SYNCED_SLOT, b"\0")
        fd = self._ops.open(synced_path(self._folder, self.meta.name), os.O_WRONLY | os.O_CREAT)
        try:
            write_all(self._ops, fd, [content], self._notes % 2 * SYNCED_SLOT)
        finally:
            self._ops.close(fd)
        self._notes += 1

    def release(self) -> None:
        """Give back the descriptors; the next write opens the files again.

        Caller: has synced, or gives the file up.
        """
        fd, self._fd = self._fd, None
        try:
            self._rows.close()
        finally:
            if fd is not None:
                self._ops.close(fd)

    def _entries(
        self, payload: memoryview, rows: Rows, position: int
    ) -> tuple[list[Buffer], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Frame records, and tell where each will lie."""
        ends = np.cumsum(rows.index["size"], dtype=np.int64)
        buffers: list[Buffer] = []
        cuts: list[int] = []
        first = begin = 0
        while first < len(ends):
            last = max(int(np.searchsorted(ends, begin + ENTRY_BYTES, "right")), first + 1)
            end = int(ends[last - 1])
            piece = payload[begin:end]
            buffers += (self._header(position, piece, last - first), piece)
            position += HEADER_SIZE + len(piece)
            first, begin = last, end
            cuts.append(last)
        entry = np.searchsorted(cuts, np.arange(len(ends)), "right") + 1
        at = self.meta.size + ends - rows.index["size"] + HEADER_SIZE * entry
        return buffers, at

    def _header(self, position: int, payload: memoryview, count: int) -> bytes:
        return pack_header(
            EntryKind.DATA, position, payload, count, synced=self._synced, unit=NO_UNIT
        )
