"""The catalog: the indexes of all queues, and the one place where readers see them change."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.store.index import UNIT, IndexView, QueueIndex, QueueKey
from headrace.store.replication.epochs import EpochTable

__all__ = ["Catalog", "CatalogView"]


@dataclass(frozen=True, slots=True)
class CatalogView:
    """Several queues as they stood at one position of the log."""

    position: int
    views: dict[QueueKey, IndexView]


class Catalog:
    """All queues of a store.

    The writer lays units down out of sight, then publishes a whole group under the lock: a
    reader sees all of a group or nothing of it, in every queue, and never less than before.
    """

    def __init__(self, folder: Path, file_units: int) -> None:
        self.folder = folder
        self._file_units = file_units
        self._lock = threading.Lock()
        self._queues: dict[QueueKey, QueueIndex] = {}
        #: Queues that get their first message from the group now being written.
        self._unborn: dict[QueueKey, QueueIndex] = {}
        self._position = 0
        #: Who wrote which part of the log, up to its end.
        self.epochs = EpochTable()

    @property
    def position(self) -> int:
        """One past the last byte of the log that readers see."""
        return self._position

    def queues(self) -> list[QueueKey]:
        """Name all queues that hold or held messages, in order."""
        with self._lock:
            return sorted(self._queues)

    def view(self, key: QueueKey) -> IndexView:
        """Take one queue as it is now; an unknown queue is an empty one."""
        with self._lock:
            index = self._queues.get(key)
            if index is not None:
                return index.view()
        return self._empty(key)

    def view_all(self, keys: Iterable[QueueKey]) -> CatalogView:
        """Take several queues at one position of the log."""
        with self._lock:
            position = self._position
            found = {key: index.view() for key in keys if (index := self._queues.get(key))}
        return CatalogView(position, {key: found.get(key) or self._empty(key) for key in keys})

    def index_to_extend(self, key: QueueKey, position: int) -> QueueIndex:
        """Find the index of a queue, or make one. Caller: the writer thread."""
        index = self._queues.get(key) or self._unborn.get(key)
        if index is None:
            index = QueueIndex(self.folder, key, position, self._file_units)
            self._unborn[key] = index
        return index

    def publish(self, touched: Collection[QueueIndex], position: int) -> None:
        """Show readers what was laid down, up to a position. Caller: the writer thread."""
        with self._lock:
            if self._unborn:
                self._queues.update(self._unborn)
                self._unborn = {}
            for index in touched:
                index.max_offset = index.next_offset
            self._position = position

    def retract(self, touched: Collection[QueueIndex]) -> None:
        """Forget what was laid down since the last publish. Caller: the writer thread."""
        self._unborn = {}
        for index in touched:
            index.next_offset = index.max_offset

    def drop_topic(self, topic: str, position: int) -> list[QueueIndex]:
        """Remove the queues of a topic from sight. Caller: the writer thread."""
        with self._lock:
            dropped = [index for key, index in self._queues.items() if key[0] == topic]
            for index in dropped:
                del self._queues[index.key]
            self._position = position
        return dropped

    def indexes(self) -> list[tuple[QueueIndex, IndexView]]:
        """Take every index with its view, and free what is saved. Caller: the writer thread."""
        with self._lock:
            for index in self._queues.values():
                index.release_saved()
            return [(index, index.view()) for index in self._queues.values()]

    def adopt(self, indexes: Iterable[QueueIndex], position: int) -> None:
        """Start from the indexes of a checkpoint. Caller: recovery."""
        with self._lock:
            self._queues = {index.key: index for index in indexes}
            self._unborn = {}
            self._position = position

    def _empty(self, key: QueueKey) -> IndexView:
        return IndexView(key, self.folder, self._file_units, 0, 0, 0, np.empty(0, UNIT))
