"""Queue indexes: where each message of a queue lies in the log.

An index is derived from the log.  Its newest units are in memory; checkpoints save them, many
of one queue in files of its own, few of many queues together.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError
from headrace.store.fileops import FileOps, read_error, write_all
from headrace.store.log import GoneError

if TYPE_CHECKING:
    from headrace.store.entries import QueueKey

# Index files: the part of a queue's index that is on disk, checked when it is first read.
#
# A file is named by the first queue offset that it may hold and has 16 little-endian bytes a unit.
# What does not match its checksum is made again from the log.

UNIT = np.dtype([("position", "<i8"), ("size", "<i4"), ("tag", "<i4")])
"""One message: its position in the log, its size, the hash of its tag."""

Units = npt.NDArray[Any]
"""An array of :data:`UNIT`."""

Repair = Callable[[int, int, int], "Units | None"]
"""Makes the units from one offset to before another again, from a log position on."""

_SUFFIX = ".idx"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    crc: int
    #: Log position of its first unit.
    position: int


class IndexFiles:
    """The files of one index, from ``floor`` to before ``saved``.

    The checkpointer appends; any thread reads.
    """

    __slots__ = (
        "_files",
        "_lock",
        "_names",
        "_root",
        "_trusted",
        "file_units",
        "floor",
        "gone",
        "saved",
    )

    def __init__(self, root: Path, names: tuple[str, str], file_units: int, floor: int = 0) -> None:
        self._root = root
        self._names = names
        self.file_units = file_units
        #: First offset that the files hold.
        self.floor = floor
        self.saved = floor
        #: Whether the topic was deleted: what is not found then is not damage.
        self.gone = False
        self._files: dict[int, _File] = {}
        #: Files that this process wrote or checked.
        self._trusted: set[int] = set()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._root.joinpath(*self._names)

    def path(self, base: int) -> Path:
        """Return the path of the file that begins with an offset."""
        return self.folder / f"{base:020d}{_SUFFIX}"

    def read(self, first: int, last: int, repair: Repair | None) -> list[Units]:
        """Return the units of the offsets from ``first`` to before ``last``.

        Raises
        ------
        CorruptLogError
            A file is damaged, and the log does not hold what was in it.
        GoneError
            The topic was deleted meanwhile.
        """
        pieces = []
        while first < last:
            base = first // self.file_units * self.file_units
            stop = min(last, base + self.file_units)
            if base not in self._trusted:
                self._check(base, first, repair)
            units = self._load(base, first, stop)
            if len(units) < stop - first:
                if self.gone:
                    raise GoneError(f"{self.folder} belongs to a deleted topic")
                raise CorruptLogError(
                    f"{self.path(base)} ends before offset {stop}",
                    hint="start again: the file is then made again from the log",
                )
            pieces.append(units)
            first = stop
        return pieces

    def append(self, units: Units, ops: FileOps) -> None:
        """Write units behind the saved ones, on disk on return. Caller: the checkpointer."""
        if not self._files:
            ops.make_directory(self.folder)
        first, last = self.saved, self.saved + len(units)
        written: dict[int, _File] = {}
        with self._lock:
            for base in range(first // self.file_units * self.file_units, last, self.file_units):
                at, stop = max(base, first), min(last, base + self.file_units)
                written[base] = self._write(base, at, units[at - first : stop - first], ops)
            self._trusted |= written.keys() - self._files.keys()
            self._files |= written
            self.saved = last

    def table(self) -> tuple[list[int], list[int]]:
        """Checksums and first positions of the files, in order, for a checkpoint."""
        files = [self._files[base] for base in sorted(self._files)]
        return [file.crc for file in files], [file.position for file in files]

    def adopt(self, saved: int, checksums: list[int], positions: list[int]) -> bool:
        """Take over what a checkpoint says is on disk; return False when that cannot be."""
        begin = saved if saved == self.floor else self.floor // self.file_units * self.file_units
        bases = range(begin, saved, self.file_units)
        if len(bases) != len(checksums) or (bases and not self.folder.is_dir()):
            return False
        places = positions if len(positions) == len(checksums) else [0] * len(checksums)
        for base, crc, position in zip(bases, checksums, places, strict=True):
            self._files[base] = _File(crc, position)
        self.saved = saved
        return True

    def forget_below(self, offset: int) -> list[Path]:
        """Drop files that end at or before an offset, and return the paths to remove."""
        end = min(offset, self.saved)
        doomed = sorted(base for base in self._files if base + self.file_units <= end)
        with self._lock:
            for base in doomed:
                del self._files[base]
                self._trusted.discard(base)
        if doomed:
            self.floor = doomed[-1] + self.file_units
        return [self.path(base) for base in doomed]

    def remove_expired(self) -> None:
        """Remove files below the first offset, which a crash left behind. Caller: recovery."""
        for path in self.folder.glob("*" + _SUFFIX):
            if path.stem.isdigit() and int(path.stem) + self.file_units <= self.floor:
                path.unlink(missing_ok=True)

    def _write(self, base: int, first: int, units: Units, ops: FileOps) -> _File:
        content = units.tobytes()
        fd = ops.open(self.path(base), os.O_WRONLY | os.O_CREAT)
        try:
            write_all(ops, fd, [content], (first - base) * UNIT.itemsize)
            ops.fdatasync(fd)
        finally:
            ops.close(fd)
        known = self._files.get(base)
        if known is None:
            ops.sync_directory(self.folder)
            return _File(zlib.crc32(content), int(units["position"][0]))
        return _File(zlib.crc32(content, known.crc), known.position)

    def _load(self, base: int, first: int, stop: int) -> Units:
        try:
            where = (first - base) * UNIT.itemsize
            return np.fromfile(self.path(base), UNIT, stop - first, offset=where)
        except FileNotFoundError:
            if self.gone or base not in self._files:
                raise GoneError(f"{self.path(base)} was deleted") from None
            return np.empty(0, UNIT)
        except OSError as error:
            raise read_error(self.path(base), error) from error

    def _check(self, base: int, wanted: int, repair: Repair | None) -> None:
        """Hold a file against its checksum; make it again when it does not match."""
        with self._lock:
            known = self._files.get(base)
            if known is None:
                raise GoneError(f"{self.path(base)} was deleted")
            if base in self._trusted:
                return
            first, stop = max(base, self.floor), min(base + self.file_units, self.saved)
            units = self._load(base, first, stop)
            if len(units) < stop - first or zlib.crc32(units.tobytes()) != known.crc:
                self._repair(known, base, first, stop, wanted, repair)
            self._trusted.add(base)

    def _repair(
        self,
        known: _File,
        base: int,
        first: int,
        stop: int,
        wanted: int,
        repair: Repair | None,
    ) -> None:
        path = self.path(base)
        logger.warning("%s is damaged: it is made again from the log", path)
        units = repair(first, stop, known.position) if repair is not None else None
        if self.gone or units is None or not units["position"][wanted - first]:
            raise CorruptLogError(
                f"{path} does not match its checksum, and the log does not hold what was in it",
                hint="put the file, or the log, back from a copy of this folder",
            )
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek((first - base) * UNIT.itemsize)
            file.write(units.tobytes())
        self._files[base] = _File(zlib.crc32(units.tobytes()), known.position)


# What the writer keeps count of, over its life and within one group.


@dataclass(slots=True)
class WriterCounters:
    """What the writer has done since the store was opened."""

    groups: int = 0
    syncs: int = 0
    units: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class WriteGroup:
    """What is being written, and how to undo it."""

    begin: int
    timestamp: int
    touched: set[QueueIndex] = field(default_factory=set)
    records: int = 0
    units: int = 0


_FIRST_CAPACITY = 64
_NOTHING: Units = np.empty(0, UNIT)


def queue_folder(root: Path, key: QueueKey, birth: int) -> Path:
    """Return the folder of a queue; one that is made again after a delete gets another."""
    return root.joinpath(*folder_names(key, birth))


def folder_names(key: QueueKey, birth: int) -> tuple[str, str]:
    """Return the names of a topic's folder and of a queue's folder in it.

    >>> folder_names(("%RETRY%g", 3), 500)
    ('%RETRY%g', '3-500')
    """
    return _quoted(key[0]), f"{key[1]}-{birth}"


@lru_cache(4096)
def _quoted(topic: str) -> str:
    return quote(topic, safe="%|")[:160]


@dataclass(frozen=True, slots=True)
class IndexView:
    """A queue's index as it stood at one moment; safe to read while the writer goes on."""

    key: QueueKey
    birth: int
    #: Whether the topic is compacted: then older records are in its compaction log.
    compacted: bool
    files: IndexFiles
    repair: Repair | None
    #: First offset that the log holds, and one past the last.
    min_offset: int
    max_offset: int
    #: Offset of the first unit in memory.
    memory_offset: int
    memory: Units

    def units(self, first: int, last: int) -> Units:
        """Return the units of the offsets from ``first`` to before ``last``.

        Raises
        ------
        GoneError
            They were deleted since the view was taken.
        """
        if first >= self.memory_offset:
            return self.memory[first - self.memory_offset : last - self.memory_offset]
        pieces = self.files.read(first, min(last, self.memory_offset), self.repair)
        if last > self.memory_offset:
            pieces.append(self.memory[: last - self.memory_offset])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def position(self, offset: int) -> int:
        """Return the log position of one message."""
        return int(self.units(offset, offset + 1)["position"][0])

    def first_from(self, position: int, first: int, last: int) -> int:
        """Return the first offset of a range whose message lies at or behind a position."""
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if self.position(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low


class QueueIndex:
    """The index of one queue.

    Only the writer thread changes it.  Units are laid down behind ``max_offset`` first, where no
    reader looks; :class:`~headrace.store.catalog.QueueCatalog` publishes them under its lock.
    """

    __slots__ = (
        "birth",
        "compacted",
        "files",
        "key",
        "max_offset",
        "memory",
        "memory_offset",
        "min_offset",
        "next_offset",
        "repair",
    )

    def __init__(
        self, root: Path, key: QueueKey, birth: int, file_units: int, *, first_offset: int = 0
    ) -> None:
        self.key = key
        #: Log position of the queue's first entry: names this life of the queue.
        self.birth = birth
        self.compacted = False
        self.repair: Repair | None = None
        self.files = IndexFiles(root, folder_names(key, birth), file_units, first_offset)
        #: First offset that the log holds; retention raises it.
        self.min_offset = first_offset
        #: One past the last offset that readers see.
        self.max_offset = first_offset
        #: One past the last offset laid down.
        self.next_offset = first_offset
        self.memory_offset = first_offset
        self.memory: Units = _NOTHING

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.files.folder

    def view(self) -> IndexView:
        """Take the published state. Caller: holds the catalog's lock."""
        return IndexView(
            self.key,
            self.birth,
            self.compacted,
            self.files,
            self.repair,
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
            grown = np.empty(max(last, 2 * len(self.memory), _FIRST_CAPACITY), UNIT)
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

    def release(self, keep: int) -> None:
        """Keep no more than so many units in memory that are in files.

        Caller: the writer thread, with the catalog's lock.
        """
        first = self.files.saved - keep
        # Not for every unit: what stays is copied.
        if first - self.memory_offset >= max(keep, 1):
            used = self.memory[first - self.memory_offset : self.next_offset - self.memory_offset]
            self.memory = np.empty(max(len(used), _FIRST_CAPACITY), UNIT)
            self.memory[: len(used)] = used
            self.memory_offset = first

    def load(self, tail: Units, min_offset: int) -> None:
        """Go on from saved units: those in files, and these. Caller: recovery."""
        # It has no room: the first new unit makes a larger one, so this is never written to.
        self.memory = tail
        self.memory_offset = self.files.saved
        self.next_offset = self.max_offset = self.files.saved + len(tail)
        self.min_offset = min(max(min_offset, self.files.floor), self.max_offset)
