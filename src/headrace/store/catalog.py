"""The catalog: the indexes of all queues, and the one place where readers see them change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.store.index import UNIT, IndexFiles, IndexView, QueueIndex, QueueKey, Units
from headrace.store.replication.following import EpochTable
from headrace.store.state import LogState, QueueState

Remake = Callable[[QueueKey, int, int, int], "Units | None"]
"""Makes units of a queue again, from one offset to before another, from a log position on."""

#: Saved units that all queues together keep in memory, and each at least.
_KEPT_UNITS = 4 * 1024 * 1024
_KEPT_AT_LEAST = 64


@dataclass(frozen=True, slots=True)
class CatalogView:
    """Several queues as they stood at one position of the log."""

    position: int
    views: dict[QueueKey, IndexView]


class QueueCatalog:
    """All queues of a store.

    The writer lays units down out of sight, then publishes a whole group under the lock: a
    reader sees all of a group or nothing of it, in every queue, and never less than before.
    """

    def __init__(self, folder: Path, file_units: int, remake: Remake | None = None) -> None:
        self.folder = folder
        self.file_units = file_units
        self._remake = remake
        self._lock = threading.Lock()
        self._queues: dict[QueueKey, QueueIndex] = {}
        #: Queues that get their first message from the group now being written.
        self._unborn: dict[QueueKey, QueueIndex] = {}
        self._position = 0
        self._compacted: dict[str, int] = {}
        #: Who wrote which part of the log, up to its end.
        self.epochs = EpochTable()
        #: Queues that changed since the last snapshot.
        self._changed: set[QueueIndex] = set()
        #: Compacted queues with new records, and those that were deleted, since the last look.
        self._news: set[QueueKey] = set()
        self._gone: list[QueueIndex] = []
        #: Called after there is such news; must be quick.
        self.on_compacted: Callable[[], None] = lambda: None

    @property
    def position(self) -> int:
        """One past the last byte of the log that readers see."""
        return self._position

    @property
    def compacted(self) -> Mapping[str, int]:
        """Topics that are compacted, and since which position of the log."""
        return self._compacted

    def queues(self) -> list[QueueKey]:
        """Name all queues that hold or held messages, in order."""
        with self._lock:
            return sorted(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def view(self, key: QueueKey) -> IndexView:
        """Take one queue as it is now; an unknown queue is an empty one."""
        with self._lock:
            index = self._queues.get(key)
            if index is not None:
                return index.view()
        return self._empty(key)

    def views(self) -> list[IndexView]:
        """Take every queue as it is now."""
        with self._lock:
            return [index.view() for index in self._queues.values()]

    def view_all(self, keys: Iterable[QueueKey]) -> CatalogView:
        """Take several queues at one position of the log."""
        with self._lock:
            position = self._position
            found = {key: index.view() for key in keys if (index := self._queues.get(key))}
        return CatalogView(position, {key: found.get(key) or self._empty(key) for key in keys})

    def next_offset(self, key: QueueKey) -> int:
        """Return the offset of a queue's next record. Caller: the writer thread."""
        index = self._queues.get(key) or self._unborn.get(key)
        return 0 if index is None else index.next_offset

    def index_to_extend(self, key: QueueKey, position: int) -> QueueIndex:
        """Find the index of a queue, or make one. Caller: the writer thread."""
        index = self._queues.get(key) or self._unborn.get(key)
        if index is None:
            index = self.make_index(key, position)
            self._unborn[key] = index
        return index

    def make_index(self, key: QueueKey, birth: int, first_offset: int = 0) -> QueueIndex:
        """Make an index that belongs to no catalog yet."""
        index = QueueIndex(self.folder, key, birth, self.file_units, first_offset=first_offset)
        index.compacted = key[0] in self._compacted
        if (remake := self._remake) is not None:
            index.repair = lambda first, last, position: remake(
                key, first, last, max(position, birth)
            )
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
            self._changed.update(touched)
            if self._compacted:
                self._news.update(index.key for index in touched if index.compacted)
        if self._news:
            self.on_compacted()

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
                index.files.gone = True
                del self._queues[index.key]
            self._gone += [index for index in dropped if index.compacted]
            self._changed.difference_update(dropped)
            self._compacted = {each: at for each, at in self._compacted.items() if each != topic}
            self._position = position
        if self._gone:
            self.on_compacted()
        return dropped

    def compact_topic(self, topic: str, position: int) -> None:
        """Note that a topic is compacted. Caller: the writer thread."""
        with self._lock:
            self._compacted = {**self._compacted, topic: position}
            mine = [index for key, index in self._queues.items() if key[0] == topic]
            for index in mine:
                index.compacted = True
            self._changed.update(mine)
            self._news.update(index.key for index in mine)
            self._position = position
        self.on_compacted()

    def take_news(self) -> tuple[int, set[QueueKey], list[QueueIndex]]:
        """Take the position that readers see, and the compacted queues with news until there.

        The third is those that were deleted. Caller: the reput.
        """
        with self._lock:
            news, self._news = self._news, set()
            gone, self._gone = self._gone, []
            return self._position, news, gone

    def raise_minimums(self, minimums: Mapping[QueueKey, tuple[int, int]]) -> None:
        """Move first offsets up: birth and offset by queue. Caller: retention."""
        with self._lock:
            for key, (birth, offset) in minimums.items():
                index = self._queues.get(key)
                if index is not None and index.birth == birth and offset > index.min_offset:
                    index.min_offset = offset
                    self._changed.add(index)

    def snapshot(self) -> tuple[list[tuple[QueueIndex, IndexView]], list[QueueIndex]]:
        """Take the indexes that changed since the last call, and name all there are.

        Frees what is in files, too. Caller: the writer thread.
        """
        with self._lock:
            keep = max(_KEPT_UNITS // max(len(self._queues), 1), _KEPT_AT_LEAST)
            keep = min(keep, self.file_units)
            for index in self._changed:
                index.release(keep)
            changed = [(index, index.view()) for index in self._changed]
            self._changed = set()
            return changed, list(self._queues.values())

    def indexes(self) -> list[QueueIndex]:
        """Name every index."""
        with self._lock:
            return list(self._queues.values())

    def state(self, timestamp: int, unit: int, unit_records: int) -> LogState:
        """Tell how everything stands, what is laid down included. Caller: the writer thread."""
        queues = [
            QueueState(*index.key, index.birth, index.next_offset)
            for known in (self._queues, self._unborn)
            for index in known.values()
        ]
        rows = self.epochs.rows()
        return LogState(timestamp, queues, dict(self._compacted), rows, unit, unit_records)

    def restore(self, state: LogState, position: int) -> None:
        """Start from a STATE entry: queues go on where it says. Caller: recovery."""
        self._compacted = dict(state.compacted)
        self.epochs = EpochTable.of_rows(state.epochs)
        indexes = [
            self.make_index((each.topic, each.queue_id), each.birth, each.next_offset)
            for each in state.queues
        ]
        self.adopt(indexes, position, self._compacted)

    def adopt(
        self,
        indexes: Iterable[QueueIndex],
        position: int,
        compacted: Mapping[str, int] | None = None,
    ) -> None:
        """Start from the indexes of a checkpoint. Caller: recovery."""
        with self._lock:
            self._queues = {index.key: index for index in indexes}
            self._unborn = {}
            self._position = position
            self._compacted = dict(compacted or {})
            for index in self._queues.values():
                index.compacted = index.key[0] in self._compacted
            self._changed = set(self._queues.values())

    def _empty(self, key: QueueKey) -> IndexView:
        nothing = np.empty(0, UNIT)
        files = IndexFiles(self.folder, ("", ""), self.file_units)
        return IndexView(
            key,
            birth=-1,
            compacted=False,
            files=files,
            repair=None,
            min_offset=0,
            max_offset=0,
            memory_offset=0,
            memory=nothing,
        )
