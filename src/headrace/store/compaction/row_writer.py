"""Writing the derived files of one data file: index and key sidecar."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.store.compaction.naming import index_path, keys_path
from headrace.store.compaction.units import INDEX, KEY, NOT_A_TOMBSTONE, Rows
from headrace.store.fileops import write_all

if TYPE_CHECKING:
    from headrace.store.compaction.manifest import FileMeta
    from headrace.store.fileops import FileOps

__all__ = ["INDEX_HEADER", "KEYS_HEADER", "ROW_HEADER_SIZE", "RowWriter", "row_header"]

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

    def write(self, rows: Rows, size: int) -> None:
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


def _extended(meta: FileMeta, rows: Rows, size: int, contents: tuple[bytes, bytes]) -> FileMeta:
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
