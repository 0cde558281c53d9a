"""Queue indexes: where each message of a queue lies in the log.

An index is derived from the log.  Its newest units are in memory; checkpoints write them to
files named by the first queue offset in them, 16 little-endian bytes a unit.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError
from headrace.store.fileops import FileOps, read_error, write_all

__all__ = ["UNIT", "IndexView", "QueueIndex", "QueueKey", "Units"]

QueueKey = tuple[str, int]
"""Topic and queue id."""

UNIT = np.dtype([("position", "<i8"), ("size", "<i4"), ("tag", "<i4")])
"""One message: its position in the log, its size, the hash of its tag."""

Units = npt.NDArray[Any]
"""An array of :data:`UNIT`."""

_SUFFIX = ".idx"
_FIRST_CAPACITY = 64


def index_folder(root: Path, key: QueueKey, birth: int) -> Path:
    """Name the folder of an index; a queue that is made again after a delete gets another."""
    topic = quote(key[0], safe="%|")[:160]
    return root / topic / f"{key[1]}-{birth}"


@dataclass(frozen=True, slots=True)
class IndexView:
    """A queue's index as it stood at one moment; safe to read while the writer goes on."""

    key: QueueKey
    folder: Path
    file_units: int
    #: First offset that the queue holds, and one past the last.
    min_offset: int
    max_offset: int
    #: Offset of the first unit in memory.
    memory_offset: int
    memory: Units

    def units(self, first: int, last: int) -> Units:
        """Give the units of the offsets from ``first`` to before ``last``."""
        if first >= self.memory_offset:
            return self.memory[first - self.memory_offset : last - self.memory_offset]
        pieces = list(self._saved(first, min(last, self.memory_offset)))
        if last > self.memory_offset:
            pieces.append(self.memory[: last - self.memory_offset])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def position(self, offset: int) -> int:
        """Give the log position of one message."""
        return int(self.units(offset, offset + 1)["position"][0])

    def _saved(self, first: int, last: int) -> Iterator[Units]:
        while first < last:
            base = first // self.file_units * self.file_units
            stop = min(last, base + self.file_units)
            path = self.folder / f"{base:020d}{_SUFFIX}"
            units = _load_units(path, first - base, stop - first)
            if len(units) < stop - first:
                raise CorruptLogError(
                    f"{path} ends before offset {stop} of queue {self.key}",
                    hint="start again: the indexes are then made again from the log",
                )
            yield units
            first = stop


def _load_units(path: Path, first: int, count: int) -> Units:
    try:
        return np.fromfile(path, UNIT, count, offset=first * UNIT.itemsize)
    except FileNotFoundError:
        raise  # the topic was deleted meanwhile: the reader looks again
    except OSError as error:
        raise read_error(path, error) from error


class QueueIndex:
    """The index of one queue.

    Only the writer thread changes it.  Units are laid down behind ``max_offset`` first, where no
    reader looks; :class:`~headrace.store.catalog.Catalog` publishes them under its lock.
    """

    __slots__ = (
        "birth",
        "checksums",
        "file_units",
        "folder",
        "key",
        "max_offset",
        "memory",
        "memory_offset",
        "min_offset",
        "next_offset",
        "saved",
    )

    def __init__(self, root: Path, key: QueueKey, birth: int, file_units: int) -> None:
        self.key = key
        #: Log position of the queue's first entry: names this life of the queue.
        self.birth = birth
        self.folder = index_folder(root, key, birth)
        self.file_units = file_units
        #: Retention will raise it; until then every queue starts at 0.
        self.min_offset = 0
        #: One past the last offset that readers see.
        self.max_offset = 0
        #: One past the last offset laid down.
        self.next_offset = 0
        self.memory_offset = 0
        self.memory: Units = np.empty(_FIRST_CAPACITY, UNIT)
        #: Units on disk, and the CRC-32 of each file so far.
        self.saved = 0
        self.checksums: list[int] = []

    def view(self) -> IndexView:
        """Take the published state. Caller: holds the catalog's lock."""
        return IndexView(
            self.key,
            self.folder,
            self.file_units,
            self.min_offset,
            self.max_offset,
            self.memory_offset,
            self.memory,
        )

    def extend(self, positions: Any, sizes: Any, tags: Any) -> None:
        """Lay down units behind the published ones. Caller: the writer thread."""
        first = self.next_offset - self.memory_offset
        last = first + len(positions)
        if last > len(self.memory):
            grown = np.empty(max(last, 2 * len(self.memory)), UNIT)
            grown[:first] = self.memory[:first]
            self.memory = grown
        target = self.memory[first:last]
        target["position"] = positions
        target["size"] = sizes
        target["tag"] = tags
        self.next_offset += len(positions)

    def add(self, position: int, size: int, tag: int) -> None:
        """Lay down one unit, as :meth:`extend` does for many. Caller: the writer thread."""
        first = self.next_offset - self.memory_offset
        if first == len(self.memory):
            self.extend([position], [size], [tag])
            return
        self.memory[first] = (position, size, tag)
        self.next_offset += 1

    def release_saved(self) -> None:
        """Drop whole files from memory. Caller: the writer thread, with the catalog's lock."""
        first = self.saved // self.file_units * self.file_units
        if first > self.memory_offset:
            used = self.memory[first - self.memory_offset : self.next_offset - self.memory_offset]
            self.memory = np.empty(max(len(used), _FIRST_CAPACITY), UNIT)
            self.memory[: len(used)] = used
            self.memory_offset = first

    def save(self, view: IndexView, ops: FileOps) -> None:
        """Write what a view holds beyond the saved units to disk. Caller: the checkpointer."""
        if self.saved == 0 and view.max_offset:
            ops.make_directory(self.folder)
        saved, checksums = self.saved, list(self.checksums)
        while saved < view.max_offset:
            base = saved // self.file_units * self.file_units
            stop = min(view.max_offset, base + self.file_units)
            content = view.units(saved, stop).tobytes()
            self._write(base, saved, content, ops)
            if saved == base:
                checksums.append(zlib.crc32(content))
            else:
                checksums[-1] = zlib.crc32(content, checksums[-1])
            saved = stop
        self.checksums, self.saved = checksums, saved

    def load(self, saved: int, checksums: list[int]) -> bool:
        """Take over what a checkpoint says is on disk; False when the files do not hold it."""
        for number, checksum in enumerate(checksums):
            base = number * self.file_units
            count = min(saved - base, self.file_units)
            try:
                content = self._path(base).read_bytes()[: count * UNIT.itemsize]
            except OSError:
                return False
            if len(content) < count * UNIT.itemsize or zlib.crc32(content) != checksum:
                return False
            if base + count == saved and count < self.file_units:
                self.memory = np.frombuffer(content, UNIT).copy()
        if len(checksums) != -(-saved // self.file_units):
            return False
        self.memory_offset = saved // self.file_units * self.file_units
        self.saved = self.next_offset = self.max_offset = saved
        self.checksums = list(checksums)
        return True

    def _path(self, base: int) -> Path:
        return self.folder / f"{base:020d}{_SUFFIX}"

    def _write(self, base: int, first: int, content: bytes, ops: FileOps) -> None:
        path = self._path(base)
        fd = ops.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            write_all(ops, fd, [content], (first - base) * UNIT.itemsize)
            ops.fdatasync(fd)
        finally:
            ops.close(fd)
        if first == base:
            ops.sync_directory(self.folder)
