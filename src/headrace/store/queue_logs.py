"""The compaction logs of a store, opened when they are first needed."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StoreError
from headrace.store.compaction import QueueLog
from headrace.store.compaction.manifest import COPY_NAME, MANIFEST_NAME
from headrace.store.fileops import FileOps, replace_file
from headrace.store.index import folder_names, queue_folder
from headrace.store.log import GoneError

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.compaction import CompactionSettings, StoreClock
    from headrace.store.index import IndexView, QueueIndex, QueueKey


# Folders of queues that are gone: deleted topics leave them behind when a crash comes between.


def remove_strangers(root: Path, indexes: Iterable[QueueIndex], ops: FileOps) -> list[QueueIndex]:
    """Remove the folders of queues that are not named; the queues that have one."""
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
        """Tell whether anything of a queue may be in its log."""
        folder = queue_folder(self.folder, view.key, view.birth)
        return any((folder / name).exists() for name in (MANIFEST_NAME, COPY_NAME))

    def opened(self) -> list[tuple[LogKey, QueueLog]]:
        """Name the logs that are open, in order."""
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
    """Have compaction logs compared with the commit log when the store is opened again.

    Caller: who is about to cut the log of a closed store.
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
    """Whether the last record up to an offset lies where the commit log has it."""
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
