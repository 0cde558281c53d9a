"""Reading one data file and its derived files.

Mappings hold no descriptor, and live as long as a view of them does: also when the file is
compacted away.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptLogError
from headrace.store.compaction.naming import data_path, index_path, keys_path
from headrace.store.compaction.row_writer import (
    INDEX_HEADER,
    KEYS_HEADER,
    ROW_HEADER_SIZE,
    row_header,
)
from headrace.store.compaction.units import INDEX, KEY, IndexRows, KeyRows
from headrace.store.fileops import read_all, read_error
from headrace.store.verification import Verification

if TYPE_CHECKING:
    from headrace.store.compaction.manifest import FileMeta
    from headrace.store.fileops import FileOps

__all__ = ["DataFile", "DerivedFileError"]

_NOTHING = memoryview(b"")
#: Rows of a key sidecar in memory at a time.
_KEY_ROWS = 16_384
_CHECK_BYTES = 1024 * 1024


class DerivedFileError(Exception):
    """An index or a key sidecar is missing or damaged: it has to be made again.

    Parameters
    ----------
    file
        Whose derived files these are.
    """

    def __init__(self, file: DataFile, message: str) -> None:
        super().__init__(message)
        self.file = file
        #: Of the data file.
        self.name = file.path.stem


class DataFile:
    """One file of a queue's log, for any number of readers.

    Parameters
    ----------
    meta
        What the manifest says of it, or has said when it was opened.
    good_from
        Everything from here on was checked or written by this process.
    """

    def __init__(self, folder: Path, meta: FileMeta, ops: FileOps, *, good_from: int) -> None:
        self.folder = folder
        self.path = data_path(folder, meta.name)
        self._ops = ops
        self._index_path = index_path(folder, meta)
        self._keys_path = keys_path(folder, meta)
        self._data = _NOTHING
        self._index = _NOTHING
        #: Rows whose checksum need not be looked at: those of a file that this process wrote.
        self._trusted = good_from == 0
        self._keys_checked = self._trusted
        self._size = meta.size
        self._verification = Verification(self, good_from)

    # What Verification asks of a log and its segments: here they are one.

    @property
    def base(self) -> int:
        """Position of the first byte."""
        return 0

    @property
    def end(self) -> int:
        """One past the last byte that is known."""
        return max(len(self._data), self._size)

    def segment_at(self, position: int) -> DataFile:
        """Find the file of a position."""
        del position
        return self

    def view(self, start: int, end: int) -> memoryview:
        """Give bytes without a copy, unchecked."""
        mapping = self._data
        if end > len(mapping):
            mapping = _map(self.path)
            if end > len(mapping):
                raise CorruptLogError(
                    f"{self.path} ends at byte {len(mapping)}, {end} bytes belong to the log",
                    hint="put the file back from a copy, or restore the queue from a replica",
                )
            self._data = mapping
        return mapping[start:end]

    def checked(self, start: int, end: int) -> memoryview:
        """Give bytes without a copy; each is checked before it is given for the first time.

        Raises
        ------
        CorruptLogError
            Names the file and the entry's first byte.
        """
        view = self.view(start, end)
        self._verification.check(start, end)
        return view

    def index(self, meta: FileMeta) -> IndexRows:
        """Give the index, as far as ``meta`` tells.

        Raises
        ------
        DerivedFileError
            It is missing or damaged.
        """
        size = ROW_HEADER_SIZE + meta.count * INDEX.itemsize
        mapping = self._index
        if len(mapping) < size:
            mapping = self._map_index(size)
            if not self._trusted:
                if zlib.crc32(mapping[:size]) != meta.index_crc:
                    raise self._derived_error(f"{self._index_path} does not match its checksum")
                if bytes(mapping[:4]) != INDEX_HEADER:
                    raise self._derived_error(f"{self._index_path} is no index")
            self._index = mapping
        return np.frombuffer(mapping, INDEX, meta.count, ROW_HEADER_SIZE)

    def key_chunks(
        self, meta: FileMeta, mark: bytes, first: int = 0, rows: int = _KEY_ROWS
    ) -> Iterator[tuple[int, KeyRows]]:
        """Give the key rows from one on, in chunks with the number of their first row.

        Raises
        ------
        DerivedFileError
            The sidecar is missing, damaged, or made with another digest or secret.
        """
        fd = self._open_keys(meta, mark)
        try:
            for at in range(first, meta.count, rows):
                count = min(rows, meta.count - at)
                offset = ROW_HEADER_SIZE + at * KEY.itemsize
                content = read_all(self._ops, fd, count * KEY.itemsize, offset)
                if len(content) < count * KEY.itemsize:
                    raise self._derived_error(f"{self._keys_path} is too short")
                yield at, np.frombuffer(content, KEY)
        except OSError as error:
            raise read_error(self._keys_path, error) from error
        finally:
            self._ops.close(fd)

    def trust(self) -> None:
        """Take note that this process made the derived files."""
        self._trusted = self._keys_checked = True

    def row_of(self, meta: FileMeta, offset: int) -> int:
        """Find the first row at or behind a queue offset."""
        if offset <= meta.first:
            return 0
        # Not searchsorted: it would copy the whole column for one look-up.
        return bisect_left(self.index(meta)["offset"], offset)

    def forget(self) -> None:
        """Drop the mappings; views given out stay valid, the next read maps again."""
        self._data = self._index = _NOTHING

    def key_rows(self, meta: FileMeta, mark: bytes, first: int, last: int) -> KeyRows:
        """Give the key rows from one to before another."""
        for _, rows in self.key_chunks(meta, mark, first, last - first):
            return rows
        return np.empty(0, KEY)

    def with_derived(self, meta: FileMeta) -> DataFile:
        """Give the same file with derived files that this process made anew."""
        other = DataFile(self.folder, meta, self._ops, good_from=meta.size)
        other._data, other._verification = self._data, self._verification
        other.trust()
        return other

    def _derived_error(self, message: str) -> DerivedFileError:
        return DerivedFileError(self, message)

    def _map_index(self, size: int) -> memoryview:
        try:
            mapping = _map(self._index_path)
        except FileNotFoundError as error:
            raise self._derived_error(f"{self._index_path} is missing") from error
        if len(mapping) < size:
            raise self._derived_error(f"{self._index_path} is too short")
        return mapping

    def _open_keys(self, meta: FileMeta, mark: bytes) -> int:
        try:
            fd = self._ops.open(self._keys_path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise self._derived_error(f"{self._keys_path} is missing") from error
        except OSError as error:
            raise read_error(self._keys_path, error) from error
        try:
            if not self._keys_checked:
                self._check_keys(fd, meta, mark)
                self._keys_checked = True
        except BaseException:
            self._ops.close(fd)
            raise
        return fd

    def _check_keys(self, fd: int, meta: FileMeta, mark: bytes) -> None:
        left = ROW_HEADER_SIZE + meta.count * KEY.itemsize
        at = crc = 0
        while left:
            content = read_all(self._ops, fd, min(left, _CHECK_BYTES), at)
            if not content:
                raise self._derived_error(f"{self._keys_path} is too short")
            if at == 0 and content[:ROW_HEADER_SIZE] != row_header(KEYS_HEADER, mark):
                raise self._derived_error(f"{self._keys_path} was made with another digest")
            crc = zlib.crc32(content, crc)
            at += len(content)
            left -= len(content)
        if crc != meta.keys_crc:
            raise self._derived_error(f"{self._keys_path} does not match its checksum")


def _map(path: Path) -> memoryview:
    """Map a file; the descriptor is closed at once, the mapping goes with its last view."""
    with pa.memory_map(str(path)) as file:
        return memoryview(file.read_buffer())
