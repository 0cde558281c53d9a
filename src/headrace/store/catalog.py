"""The catalog: the indexes of all queues, and the one place where readers see them change."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import StoreError
from headrace.store.compaction import CompactionSettings, QueueLog, StoreClock
from headrace.store.compaction.manifest import COPY_NAME, MANIFEST_NAME
from headrace.store.entries import LogState, QueueKey, QueueState
from headrace.store.fileops import FileOps, replace_file
from headrace.store.index import (
    UNIT,
    IndexFiles,
    IndexView,
    QueueIndex,
    Units,
    folder_names,
    queue_folder,
)
from headrace.store.log import GoneError
from headrace.store.replication.following import EpochTable

# Folders of queues that are gone: deleted topics leave them behind when a crash comes between.


def remove_strangers(root: Path, indexes: Iterable[QueueIndex], ops: FileOps) -> list[QueueIndex]:
    """Remove the folders of queues that are not named, and return the queues that have one."""
    topics = _folders(root)
    if not topics:
        return []
    known = {folder_names(index.key, index.birth): index for index in indexes}
    found = []
    for topic in topics:
        for queue in _folders(root / topic):
            index = known.get((topic, queue))
            if index is None:
                ops.remove_tree(root / topic / queue)
            else:
                found.append(index)
        with contextlib.suppress(OSError):
            (root / topic).rmdir()
    return found


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []


logger = logging.getLogger(__name__)

UNCHECKED = "unchecked"
"""Name of a file that says: the commit log was cut, compaction logs may go on behind its end."""

LogKey = tuple[str, int, int]
"""Topic, queue id and birth: a topic that is made again has other logs."""

_SECRET_BYTES = 32


class QueueLogs:
    """Compaction logs by queue; any thread may ask for one.

    Parameters
    ----------
    folder
        Where the logs are, a folder for each queue.
    """

    def __init__(
        self, folder: Path, settings: CompactionSettings, ops: FileOps, clock: StoreClock
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = clock
        self._ops = ops
        self._lock = threading.Lock()
        self._opening: dict[LogKey, threading.Lock] = {}
        self._logs: dict[LogKey, QueueLog] = {}
        self._secret: bytes | None = None
        #: Called with each queue whose log was opened and lacks records; must be quick.
        self.on_behind: Callable[[QueueKey], None] = lambda _: None
        self._closed = False

    def of(self, view: IndexView) -> QueueLog:
        """Return the log of a queue as an index view names it.

        Raises
        ------
        GoneError
            The topic was deleted.
        CorruptLogError
            The log's files are damaged.
        """
        key = (*view.key, view.birth)
        log = self._logs.get(key)
        if log is not None:
            return log
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            opening = self._opening.setdefault(key, threading.Lock())
        with opening:
            log = self._logs.get(key)
            if log is None:
                log = self._open(view)
                with self._lock:
                    if view.files.gone:
                        log.delete()
                        raise GoneError(f"topic {view.key[0]!r} was deleted")
                    self._logs[key] = log
                    self._opening.pop(key, None)
                if log.next_offset < view.max_offset:
                    self.on_behind(view.key)
            return log

    def has_begun(self, view: IndexView) -> bool:
        """Return whether anything of a queue may be in its log."""
        folder = queue_folder(self.folder, view.key, view.birth)
        return any((folder / name).exists() for name in (MANIFEST_NAME, COPY_NAME))

    def opened(self) -> list[tuple[LogKey, QueueLog]]:
        """Return the logs that are open, in order."""
        with self._lock:
            return sorted(self._logs.items())

    def drop(self, dropped: Iterable[QueueIndex]) -> None:
        """Delete the logs of queues that are gone."""
        for index in dropped:
            with self._lock:
                log = self._logs.pop((*index.key, index.birth), None)
            if log is not None:
                log.delete()
            else:
                self._ops.remove_tree(queue_folder(self.folder, index.key, index.birth))

    def begin(self, catalog: QueueCatalog) -> None:
        """Clear away what no queue needs, and cut what the commit log lost.

        Caller: the opening of the store, before anything is written.
        """
        remove_strangers(self.folder, catalog.indexes(), self._ops)
        mark = self.folder / UNCHECKED
        if mark.exists():
            for view in catalog.views():
                if view.compacted:
                    self.of(view)
            self._ops.unlink(mark)

    def close(self) -> None:
        """Sync and close all."""
        with self._lock:
            self._closed = True
            logs, self._logs = list(self._logs.values()), {}
        for log in logs:
            with contextlib.suppress(StoreError):
                log.close()

    def _open(self, view: IndexView) -> QueueLog:
        folder = queue_folder(self.folder, view.key, view.birth)
        secret = self._read_secret()
        log = QueueLog.open(folder, self.settings, self._ops, secret=secret, clock=self.clock)
        try:
            _agree(log, view)
        except BaseException:
            log.close()
            raise
        return log

    def _read_secret(self) -> bytes:
        """Read the secret of the store, or make it; another one costs the key sidecars."""
        with self._lock:
            if self._secret is None:
                self._secret = secret_in(self.folder / "secret", self._ops)
            return self._secret


def mark_unchecked(store: Path, ops: FileOps) -> None:
    """Mark compaction logs for comparison with the commit log when the store is opened again.

    Caller: whoever is about to cut the log of a closed store.
    """
    folder = store / "compaction"
    if folder.is_dir():
        replace_file(ops, folder / UNCHECKED, b"")


def secret_in(path: Path, ops: FileOps) -> bytes:
    """Read the secret of a store, or make a new one."""
    with contextlib.suppress(FileNotFoundError):
        content = ops.read_bytes(path)
        secret = content[:_SECRET_BYTES]
        if content[_SECRET_BYTES:] == zlib.crc32(secret).to_bytes(4, "little"):
            return secret
        logger.warning("%s is damaged: key digests are made again", path)
    secret = secrets.token_bytes(_SECRET_BYTES)
    ops.make_directory(path.parent)
    replace_file(ops, path, secret + zlib.crc32(secret).to_bytes(4, "little"))
    return secret


def _agree(log: QueueLog, view: IndexView) -> None:
    """Cut what the commit log says otherwise: its end was taken back, or it is another's copy."""
    if log.next_offset > view.max_offset:
        logger.warning(
            "%s ends at offset %d, the queue at %d: it is cut",
            log.folder,
            log.next_offset,
            view.max_offset,
        )
        _cut(log, view.max_offset)
    low = max(view.min_offset, log.min_offset)
    if low >= log.next_offset or _agrees(log, view, log.next_offset - 1, low):
        return
    high = log.next_offset
    first = low
    # What agrees is in front of what does not: both logs only ever grow or are cut.
    while low < high:
        middle = (low + high) // 2
        if _agrees(log, view, middle, first):
            low = middle + 1
        else:
            high = middle
    logger.warning("%s is another log's from offset %d on: it is cut", log.folder, low)
    _cut(log, low)


def _cut(log: QueueLog, offset: int) -> None:
    """Cut a log; one that was compacted beyond the cut has lost what the cut part replaced."""
    log.truncate(0 if log.statistics().clean_until > offset else offset)


def _agrees(log: QueueLog, view: IndexView, offset: int, first: int) -> bool:
    """Return whether the last record up to an offset lies where the commit log has it."""
    step = 1
    while True:
        begin = max(offset + 1 - step, first)
        rows = log.units(begin, offset + 1)
        if len(rows):
            found = int(rows["offset"][-1])
            [unit] = view.units(found, found + 1)
            if unit["size"]:
                return bool(unit["position"] == rows["log_position"][-1])
            # Behind a fence: the commit log has lost it, which says nothing against it.
            offset, step = found - 1, 1
            if offset < first:
                return True
            continue
        if begin == first:
            return True
        step *= 8


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
        """Return all queues that hold or held messages, in order."""
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
        """Return the index of a queue, made if there is none. Caller: the writer thread."""
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
        """Return the indexes that changed since the last call, and all that there are.

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
        """Return every index."""
        with self._lock:
            return list(self._queues.values())

    def state(self, timestamp: int, unit: int, unit_records: int) -> LogState:
        """Return how everything stands, what is laid down included. Caller: the writer thread."""
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
