"""Reading one data file and its derived files.

Mappings hold no descriptor, and live as long as a view of them does: also when the file is
compacted away.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptLogError, StoreFailedError
from headrace.store.compaction.manifest import FileMeta, encode_checked
from headrace.store.entries import HEADER_SIZE, NO_UNIT, EntryKind, Verification, pack_header
from headrace.store.fileops import Buffer, FileOps, read_all, read_error, write_all, write_error

# Names of the files of a queue's log.


def make_name(base: int, generation: int) -> str:
    """Return the name of a file: its first offset, and the generation that makes it unique.

    >>> make_name(12, 3)
    '00000000000000000012-3'
    """
    return f"{base:020d}-{generation}"


def data_path(folder: Path, name: str) -> Path:
    """Path of a data file.

    >>> data_path(Path("q"), "0-1").name
    '0-1.data'
    """
    return folder / f"{name}.data"


def index_path(folder: Path, meta: FileMeta) -> Path:
    """Path of a file's index."""
    return folder / f"{meta.name}.{meta.derived}.index"


def keys_path(folder: Path, meta: FileMeta) -> Path:
    """Path of a file's key sidecar."""
    return folder / f"{meta.name}.{meta.derived}.keys"


def synced_path(folder: Path, name: str) -> Path:
    """Path of the note that tells how far the active file was synced.

    >>> synced_path(Path("q"), "0-1").name
    '0-1.synced'
    """
    return folder / f"{name}.synced"


# Writing the derived files of one data file: index and key sidecar.

#: Magic, version, mark of digest and secret.
_HEADER = struct.Struct("<4sHxx8s")
_VERSION = 1
ROW_HEADER_SIZE = _HEADER.size
INDEX_HEADER = b"HRCI"
KEYS_HEADER = b"HRCK"


def row_header(magic: bytes, mark: bytes) -> bytes:
    """Make the head of a derived file.

    >>> len(row_header(KEYS_HEADER, b"12345678"))
    16
    """
    return _HEADER.pack(magic, _VERSION, mark)


class RowWriter:
    """Appends rows to an index and a key sidecar, and keeps what the manifest says of them.

    Caller: one thread.
    """

    def __init__(self, folder: Path, meta: FileMeta, mark: bytes, ops: FileOps) -> None:
        self._folder = folder
        self._ops = ops
        self._heads = row_header(INDEX_HEADER, mark), row_header(KEYS_HEADER, mark)
        self._fds: tuple[int, int] | None = None
        if meta.count == 0:
            crcs = [zlib.crc32(head) for head in self._heads]
            meta = msgspec.structs.replace(meta, index_crc=crcs[0], keys_crc=crcs[1])
        #: What is written so far.
        self.meta = meta

    @property
    def is_open(self) -> bool:
        """Whether it holds descriptors."""
        return self._fds is not None

    def write(self, rows: UnitRows, size: int) -> None:
        """Append rows of records that end at a size of the data file."""
        if not len(rows):
            return
        meta = self.meta
        fds = self._fds or self._open()
        index, keys = rows.index.tobytes(), rows.keys.tobytes()
        heads = self._heads if meta.count == 0 else (b"", b"")
        contents = ((heads[0], index, INDEX.itemsize), (heads[1], keys, KEY.itemsize))
        for fd, (head, content, row_size) in zip(fds, contents, strict=True):
            at = 0 if head else ROW_HEADER_SIZE + meta.count * row_size
            write_all(self._ops, fd, [head, content] if head else [content], at)
        self.meta = _extended(meta, rows, size, (index, keys))

    def sync(self) -> None:
        """Put the rows on the disk."""
        for fd in self._fds or ():
            self._ops.fdatasync(fd)

    def close(self) -> None:
        """Close the files; the next write opens them again."""
        fds, self._fds = self._fds, None
        for fd in fds or ():
            self._ops.close(fd)

    def _open(self) -> tuple[int, int]:
        flags = os.O_WRONLY | os.O_CREAT
        index = self._ops.open(index_path(self._folder, self.meta), flags)
        try:
            keys = self._ops.open(keys_path(self._folder, self.meta), flags)
        except BaseException:
            self._ops.close(index)
            raise
        self._fds = index, keys
        return self._fds


def _extended(meta: FileMeta, rows: UnitRows, size: int, contents: tuple[bytes, bytes]) -> FileMeta:
    met = rows.index["met"]
    deletes = met[met != NOT_A_TOMBSTONE]
    earliest = meta.met
    if len(deletes):
        here = int(deletes.min())
        earliest = here if meta.met == NOT_A_TOMBSTONE else min(meta.met, here)
    oldest, newest = int(rows.stored.min()), int(rows.stored.max())
    return msgspec.structs.replace(
        meta,
        first=meta.first if meta.count else int(rows.index["offset"][0]),
        last=int(rows.index["offset"][-1]),
        count=meta.count + len(rows),
        size=size,
        index_crc=zlib.crc32(contents[0], meta.index_crc),
        keys_crc=zlib.crc32(contents[1], meta.keys_crc),
        keyless=meta.keyless + rows.keyless,
        tombstones=meta.tombstones + len(deletes),
        met=earliest,
        oldest=min(meta.oldest, oldest) if meta.count else oldest,
        newest=max(meta.newest, newest) if meta.count else newest,
    )


# Writing one data file with its derived files.

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

    def write(self, payload: memoryview, rows: UnitRows) -> None:
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
        """Close the descriptors; the next write opens the files again.

        Caller: has synced, or gives the file up.
        """
        fd, self._fd = self._fd, None
        try:
            self._rows.close()
        finally:
            if fd is not None:
                self._ops.close(fd)

    def _entries(
        self, payload: memoryview, rows: UnitRows, position: int
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
        #: Rows whose checksum need not be checked: those of a file that this process wrote.
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
        """Return the file of a position."""
        del position
        return self

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes without a copy, unchecked."""
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
        """Return bytes without a copy; each is checked before it is given for the first time.

        Raises
        ------
        CorruptLogError
            Names the file and the entry's first byte.
        """
        view = self.view(start, end)
        self._verification.check(start, end)
        return view

    def index(self, meta: FileMeta) -> IndexRows:
        """Return the index, as far as ``meta`` tells.

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
        """Yield the key rows from one on, in chunks with the number of their first row.

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
        """Return the first row at or behind a queue offset."""
        if offset <= meta.first:
            return 0
        # Not searchsorted: it would copy the whole column for one look-up.
        return bisect_left(self.index(meta)["offset"], offset)

    def forget(self) -> None:
        """Drop the mappings; views given out stay valid, the next read maps again."""
        self._data = self._index = _NOTHING

    def key_rows(self, meta: FileMeta, mark: bytes, first: int, last: int) -> KeyRows:
        """Return the key rows from one to before another."""
        for _, rows in self.key_chunks(meta, mark, first, last - first):
            return rows
        return np.empty(0, KEY)

    def with_derived(self, meta: FileMeta) -> DataFile:
        """Return the same file with derived files that this process made anew."""
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


INDEX = np.dtype(
    [
        ("offset", "<i8"),
        ("log_position", "<i8"),
        ("at", "<i8"),
        ("met", "<i8"),
        ("size", "<i4"),
        ("tag", "<i4"),
    ]
)
"""Queue offset, place in the commit log, place in the data file, when a compaction first met this
delete (ms of the store's age), size, hash of the tag."""

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<i8")])
"""The digest's 16 bytes as two numbers, queue offset.  A record without a key has zeros."""

NOT_A_TOMBSTONE = -2

IndexRows = npt.NDArray[Any]
"""An array of :data:`INDEX`."""

KeyRows = npt.NDArray[Any]
"""An array of :data:`KEY`."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitRows:
    """The rows of some records."""

    index: IndexRows
    keys: KeyRows
    #: Store times, ms since 1970.
    stored: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def part(self, first: int, last: int) -> UnitRows:
        """Return the rows of some of the records."""
        return UnitRows(self.index[first:last], self.keys[first:last], self.stored[first:last])

    @property
    def keyless(self) -> int:
        """How many records have no key.

        >>> UnitRows(np.zeros(2, INDEX), np.zeros(2, KEY), np.zeros(2, np.int64)).keyless
        2
        """
        return int(np.count_nonzero((self.keys["high"] == 0) & (self.keys["low"] == 0)))

    @property
    def tombstones(self) -> int:
        """How many records are deletes.

        >>> UnitRows(np.zeros(2, INDEX), np.zeros(2, KEY), np.zeros(2, np.int64)).tombstones
        2
        """
        return int(np.count_nonzero(self.index["met"] != NOT_A_TOMBSTONE))


# A queue's log as it stood at one moment: what readers hold while the files change.


@dataclass(frozen=True, slots=True, eq=False)
class FileView:
    """A file, as far as this view reaches into it."""

    meta: FileMeta
    file: DataFile


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The files of a log in the order of their offsets; never changed."""

    #: Closed files, none of them empty.
    closed: tuple[FileView, ...]
    #: The file that is appended to.
    active: FileView
    #: The next offset.
    log_end: int
    clean_until: int
    #: Parts that hold records, and the last offset of each.
    parts: tuple[FileView, ...] = field(init=False)
    lasts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.closed + ((self.active,) if self.active.meta.count else ())
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "lasts", tuple(part.meta.last for part in parts))

    @property
    def min_offset(self) -> int:
        """First readable offset, or the log's end."""
        return self.parts[0].meta.first if self.parts else self.log_end

    def first_part(self, offset: int) -> int:
        """Return the first part that holds something at or behind an offset."""
        return bisect_left(self.lasts, offset)
