"""Checkpoints: how far the indexes on disk reach, so that recovery reads only the log's end.

A checkpoint is one JSON line and the newest units of all queues, behind their CRC-32, replaced
by rename.  All of it can be made again from the log: a checkpoint that is damaged, missing or at
odds with the files costs time only.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.store.fileops import FileOps, replace_file
from headrace.store.index import UNIT, IndexView, QueueIndex, Units
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.log import CommitLog
    from headrace.store.settings import StoreSettings


logger = logging.getLogger(__name__)

#: A queue with so many units beyond its files gets them written there; fewer go together.
_OWN_FILE_UNITS = 4096
#: Bytes of such units in one checkpoint, of all queues: beyond, the largest get files.
_TOGETHER_BYTES = 32 * 1024 * 1024


class SavedQueue(msgspec.Struct, frozen=True, array_like=True):
    """What one index has on disk."""

    topic: str
    queue_id: int
    #: Log position of the queue's first entry.
    birth: int
    #: One past the last offset in files of its own.
    count: int
    #: CRC-32 of each of these files, up to that offset.
    checksums: list[int]
    #: Log position of the first unit of each.
    positions: list[int] = []
    #: First offset in these files, and the first that the log held.
    floor: int = 0
    min_offset: int = 0
    #: Units behind the line, beyond the files.
    tail: int = 0


class Checkpoint(msgspec.Struct, frozen=True):
    """The state of the indexes at one position of the log, which was on disk by then."""

    position: int
    file_units: int
    queues: list[SavedQueue]
    #: Number, start and mark of each epoch that begins before the position.
    epochs: list[tuple[int, int, int]] = []
    #: Position of the log's first byte.
    begin: int = 0
    #: Highest store time so far, ms since 1970.
    timestamp: int = 0
    #: Compacted topics, and since which position.
    compacted: dict[str, int] = {}
    #: Up to here all records of compacted topics are in their compaction logs, on disk.
    handed_on: int = 0


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint, with the units that stand behind it."""

    table: Checkpoint
    #: One array for each queue, in the table's order.
    tails: list[Units]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the writer hands over to be saved: immutable up to each view's end."""

    #: The checkpoint to be, without its queues.
    head: Checkpoint
    #: Indexes that changed since the last snapshot, and all there are.
    changed: list[tuple[QueueIndex, IndexView]]
    indexes: list[QueueIndex]
    #: Index folders of deleted topics, to be removed once no checkpoint names them.
    dropped: list[Path]
    #: Resolved when it is on disk.
    saved: list[Future[None]] = field(default_factory=list)


def read_checkpoint(path: Path, ops: FileOps) -> LoadedCheckpoint | None:
    """Read a checkpoint; None when there is none or it is damaged."""
    try:
        content = ops.read_bytes(path)
        checksum, body = int(content[:8], 16), content[9:]
        if zlib.crc32(body) != checksum:
            raise ValueError("the checksum does not match")
        line, _, units = body.partition(b"\n")
        table = msgspec.json.decode(line, type=Checkpoint)
        return LoadedCheckpoint(table, _split(table, np.frombuffer(units, UNIT)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged (%s): the indexes are made again from the log", path, error)
        return None


def _split(table: Checkpoint, units: Units) -> list[Units]:
    ends = np.cumsum([saved.tail for saved in table.queues], dtype=np.int64)
    if len(units) != (ends[-1] if len(ends) else 0):
        raise ValueError(f"{len(units)} units do not fit the table")
    return np.split(units, ends[:-1]) if len(ends) else []


class _Table:
    """What each checkpoint repeats of the one before: rows and units of all queues."""

    def __init__(self) -> None:
        self._changed: dict[QueueIndex, IndexView] = {}
        self._rows: dict[QueueIndex, tuple[SavedQueue, bytes]] = {}
        #: Files that no row names any more.
        self._doomed: list[Path] = []

    def save(self, path: Path, snapshot: Snapshot, ops: FileOps) -> None:
        """Save what changed, then the checkpoint that vouches for it."""
        self._changed |= dict(snapshot.changed)
        self._changed = {
            index: view for index, view in self._changed.items() if not index.files.gone
        }
        own_limit = min(_OWN_FILE_UNITS, snapshot.head.file_units)
        for index, view in self._changed.items():
            if view.max_offset - index.files.saved >= own_limit:
                _write_file(index, view, ops)
        self._make_rows(snapshot.indexes)
        self._spill(ops)
        rows = [self._rows[index] for index in snapshot.indexes]
        table = msgspec.structs.replace(snapshot.head, queues=[row for row, _ in rows])
        line = msgspec.json.encode(table) + b"\n"
        body = b"".join([line, *(units for _, units in rows)])
        replace_file(ops, path, b"%08x\n%s" % (zlib.crc32(body), body))
        self._changed = {}
        doomed, self._doomed = self._doomed, []
        for file in doomed:
            with contextlib.suppress(OSError):
                ops.unlink(file)

    def _make_rows(self, indexes: list[QueueIndex]) -> None:
        for index, view in self._changed.items():
            if view.min_offset > index.files.floor:
                self._doomed += index.files.forget_below(view.min_offset)
            self._rows[index] = _row(index, view)
        if len(self._rows) > len(indexes):
            known = set(indexes)
            self._rows = {index: row for index, row in self._rows.items() if index in known}

    def _spill(self, ops: FileOps) -> None:
        """Write the largest tails to files when all of them together are too large."""
        total = sum(len(units) for _, units in self._rows.values())
        if total <= _TOGETHER_BYTES:
            return
        by_size = sorted(self._rows.items(), key=lambda item: -len(item[1][1]))
        for index, (row, units) in by_size:
            if total <= _TOGETHER_BYTES // 2:
                return
            index.files.append(np.frombuffer(units, UNIT), ops)
            total -= len(units)
            self._rows[index] = (_saved(index, row.min_offset, 0), b"")


def _write_file(index: QueueIndex, view: IndexView, ops: FileOps) -> None:
    units = view.units(max(index.files.saved, view.memory_offset), view.max_offset)
    index.files.append(units, ops)


def _row(index: QueueIndex, view: IndexView) -> tuple[SavedQueue, bytes]:
    units = view.units(min(index.files.saved, view.max_offset), view.max_offset)
    return _saved(index, view.min_offset, len(units)), units.tobytes()


def _saved(index: QueueIndex, min_offset: int, tail: int) -> SavedQueue:
    files = index.files
    checksums, positions = files.table()
    return SavedQueue(
        *index.key, index.birth, files.saved, checksums, positions, files.floor, min_offset, tail
    )


class Checkpointer:
    """A thread that saves snapshots, so that the writer never waits for index files."""

    def __init__(self, path: Path, ops: FileOps, position: int) -> None:
        self._path = path
        self._ops = ops
        self._table = _Table()
        self._snapshots: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        #: Position of the last checkpoint on disk, -1 for none.
        self.position = position
        #: Called after each checkpoint that was saved.
        self.on_saved: Callable[[], None] | None = None
        #: Told of the error that has ended the thread.
        self.on_failure: OnFailure = lambda _error: None
        self._lost = False
        #: Who waits for what was handed over.
        self._waiting: set[Future[None]] = set()
        self._thread = watched_thread(self._run, name="headrace-checkpoint", on_failure=self._end)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether the next snapshot would be handled at once."""
        return self._idle.is_set()

    def submit(self, snapshot: Snapshot) -> None:
        """Hand over a snapshot. Caller: the writer thread, when idle."""
        self._idle.clear()
        self._waiting.update(snapshot.saved)
        self._snapshots.put(snapshot)
        if self._lost:
            self._answer(list(self._waiting))

    def close(self) -> None:
        """Save what was handed over, then stop."""
        self._snapshots.put(None)
        self._thread.join()

    def _end(self, error: BaseException) -> None:
        self._lost = True
        self.on_failure(error)
        self._answer(list(self._waiting))

    def _answer(self, waiting: list[Future[None]]) -> None:
        """Release those who wait for what is saved, or never will be."""
        for saved in waiting:
            if not saved.done():
                saved.set_result(None)
            self._waiting.discard(saved)

    def _run(self) -> None:
        while (snapshot := self._snapshots.get()) is not None:
            try:
                self._table.save(self._path, snapshot, self._ops)
                self.position = snapshot.head.position
                for folder in snapshot.dropped:
                    self._ops.remove_tree(folder)
            except Exception:
                logger.exception("no checkpoint at position %d", snapshot.head.position)
            finally:
                self._idle.set()
                self._answer(snapshot.saved)


# When checkpoints are due, and what is in them.

#: How soon to look again for a checkpointer that is still busy, seconds.
_BUSY_WAIT = 0.05


class Saving:
    """Hands snapshots to the checkpointer in time. Caller: has the writer's turn."""

    def __init__(
        self,
        log: CommitLog,
        catalog: QueueCatalog,
        checkpointer: Checkpointer,
        settings: StoreSettings,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._settings = settings
        self._position = checkpointer.position
        self._time = time.monotonic()
        #: Index folders of deleted topics.
        self.dropped: list[Path] = []
        #: Who waits for a checkpoint.
        self.wanted: list[Future[None]] = []
        #: Returns up to where compaction logs have all records of their queues, on disk.
        self.handed_on: Callable[[], int] = lambda: 0

    @property
    def is_dirty(self) -> bool:
        """Whether readers see more than the last checkpoint holds."""
        return self._position < self._catalog.position

    def due(self) -> float:
        """Return when the next checkpoint is due, by the monotonic clock."""
        due = self._time + self._settings.checkpoint_interval.total_seconds()
        return due if self._checkpointer.is_idle else max(due, time.monotonic() + _BUSY_WAIT)

    def before_change(self) -> None:
        """Start the interval when what was saved is about to become old."""
        if not self.is_dirty:
            self._time = time.monotonic()

    def is_due(self, *, final: bool) -> bool:
        """Return whether to save now."""
        written = self._catalog.position - self._position
        soon = written >= self._settings.checkpoint_bytes and self._checkpointer.is_idle
        by_time = self.is_dirty and (final or soon or self.due() <= time.monotonic())
        return by_time or bool(self.wanted)

    def save(self, timestamp: int) -> None:
        """Submit a checkpoint of everything; the log must be on disk up to what readers see."""
        head = Checkpoint(
            self._catalog.position,
            self._settings.index_file_units,
            [],
            begin=self._log.begin,
            timestamp=timestamp,
            compacted=dict(self._catalog.compacted),
            epochs=self._catalog.epochs.rows(),
            handed_on=self.handed_on(),
        )
        changed, indexes = self._catalog.snapshot()
        snapshot = Snapshot(head, changed, indexes, self.dropped, self.wanted)
        self._checkpointer.submit(snapshot)
        # Until it is handed over they wait here, whatever happens.
        self.dropped, self.wanted = [], []
        self._position = head.position
        self._time = time.monotonic()

    def give_up(self) -> None:
        """Release those who wait for a checkpoint that never comes."""
        for future in self.wanted:
            if not future.done():
                future.set_result(None)
        self.wanted = []
