"""The file of the keys of one full segment: sorted entries in blocks, each with a checksum.

It is derived from the segment.  A file that is missing, torn, damaged or of other bytes than the
segment's is made anew.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.store.fileops import FileOps, read_all, replace_file
from headrace.store.keys.collecting import ENTRY, Entries

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DamagedSidecarError", "Sidecar", "Subject", "write_sidecar"]

_MAGIC = b"HRKX"
_VERSION = 1
_BLOCK = 2048
#: First hash and checksum of each block.
_DIRECTORY = np.dtype([("first", "<u8"), ("crc", "<u4")])
#: Magic, version, reserved, base and end of the segment, its fingerprint, entries, directory's CRC.
_TAIL = struct.Struct("<4sHHqqIQI")
_CRC = struct.Struct("<I")
_TAIL_SIZE = _TAIL.size + _CRC.size


class DamagedSidecarError(Exception):
    """The file does not hold what was written; it is made anew."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The bytes that a file is about."""

    base: int
    end: int
    #: Checksum of the segment's last bytes: after a cut others may stand at the same place.
    fingerprint: int


def write_sidecar(path: Path, subject: Subject, entries: Entries, ops: FileOps) -> None:
    """Write the file in one step; entries must be sorted."""
    pieces: list[bytes] = []
    directory = np.empty(-(-len(entries) // _BLOCK), _DIRECTORY)
    for number in range(len(directory)):
        block = entries[number * _BLOCK : (number + 1) * _BLOCK]
        content = block.tobytes()
        directory[number] = (block["hash"][0], zlib.crc32(content))
        pieces.append(content)
    listed = directory.tobytes()
    tail = _TAIL.pack(
        _MAGIC,
        _VERSION,
        0,
        subject.base,
        subject.end,
        subject.fingerprint,
        len(entries),
        zlib.crc32(listed),
    )
    pieces += [listed, tail, _CRC.pack(zlib.crc32(tail))]
    replace_file(ops, path, b"".join(pieces))


class Sidecar:
    """An open file of keys; only its directory is in memory.

    Raises
    ------
    DamagedSidecarError
        It is not whole, or of other bytes than the segment's.
    OSError
        It cannot be read.
    """

    def __init__(self, path: Path, subject: Subject, ops: FileOps) -> None:
        self._path = path
        self._ops = ops
        fd = self._open()
        try:
            self._count, self._directory = self._load(fd, path.stat(), subject)
        finally:
            ops.close(fd)

    def _open(self) -> int:
        return self._ops.open(self._path, os.O_RDONLY)

    def _load(
        self, fd: int, status: os.stat_result, subject: Subject
    ) -> tuple[int, npt.NDArray[np.void]]:
        tail_at = status.st_size - _TAIL_SIZE
        tail = read_all(self._ops, fd, _TAIL_SIZE, tail_at) if tail_at >= 0 else bytearray()
        if len(tail) < _TAIL_SIZE or zlib.crc32(tail[: _TAIL.size]) != _crc_at(tail, _TAIL.size):
            raise DamagedSidecarError(f"{self._path} has no intact end")
        magic, version, _, base, end, fingerprint, count, crc = _TAIL.unpack_from(tail)
        if (magic, version) != (_MAGIC, _VERSION) or Subject(base, end, fingerprint) != subject:
            raise DamagedSidecarError(f"{self._path} is not about its segment")
        size = -(-count // _BLOCK) * _DIRECTORY.itemsize
        listed = read_all(self._ops, fd, size, tail_at - size)
        if count * ENTRY.itemsize + size != tail_at or zlib.crc32(listed) != crc:
            raise DamagedSidecarError(f"{self._path} has a damaged directory")
        return int(count), np.frombuffer(bytes(listed), _DIRECTORY)

    def __len__(self) -> int:
        return self._count

    def find(self, hash_: np.uint64) -> npt.NDArray[np.int64]:
        """Give the positions of records with a word of this hash, in any order.

        Raises
        ------
        DamagedSidecarError
            A block that is needed does not hold what was written.
        """
        firsts = self._directory["first"]
        # An equal first hash may also end the block before.
        number = max(int(np.searchsorted(firsts, hash_)) - 1, 0)
        last = int(np.searchsorted(firsts, hash_, side="right"))
        if number >= last:
            return np.empty(0, np.int64)
        fd = self._open()
        try:
            blocks = [self._block(fd, each) for each in range(number, last)]
        finally:
            self._ops.close(fd)
        entries = np.concatenate(blocks)
        low, high = (
            np.searchsorted(entries["hash"], hash_, side=side) for side in ("left", "right")
        )
        found: npt.NDArray[np.int64] = entries["position"][low:high].astype(np.int64)
        return found

    def _block(self, fd: int, number: int) -> Entries:
        first = number * _BLOCK
        size = min(_BLOCK, self._count - first) * ENTRY.itemsize
        content = read_all(self._ops, fd, size, first * ENTRY.itemsize)
        if len(content) < size or zlib.crc32(content) != int(self._directory["crc"][number]):
            raise DamagedSidecarError(f"{self._path} is damaged in block {number}")
        return np.frombuffer(bytes(content), ENTRY)


def _crc_at(content: bytearray, at: int) -> int:
    return int(_CRC.unpack_from(content, at)[0])
