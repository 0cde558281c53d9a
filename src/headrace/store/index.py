"""Queue indexes: where each message of a queue lies in the log.

An index is derived from the log.  Its newest units are in memory; checkpoints save them, many
of one queue in files of its own, few of many queues together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from headrace.store.index_files import UNIT, IndexFiles, Repair, Units

__all__ = ["UNIT", "IndexView", "QueueIndex", "QueueKey", "Units", "folder_names", "queue_folder"]

QueueKey = tuple[str, int]
"""Topic and queue id."""

_FIRST_CAPACITY = 64
_NOTHING: Units = np.empty(0, UNIT)


def queue_folder(root: Path, key: QueueKey, birth: int) -> Path:
    """Name the folder of a queue; one that is made again after a delete gets another."""
    return root.joinpath(*folder_names(key, birth))


def folder_names(key: QueueKey, birth: int) -> tuple[str, str]:
    """Name the folder of a topic, and in it the folder of a queue.

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
        """Give the units of the offsets from ``first`` to before ``last``.

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
        """Give the log position of one message."""
        return int(self.units(offset, offset + 1)["position"][0])

    def first_from(self, position: int, first: int, last: int) -> int:
        """Find the first offset of a range whose message lies at or behind a position."""
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
    reader looks; :class:`~headrace.store.catalog.Catalog` publishes them under its lock.
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
