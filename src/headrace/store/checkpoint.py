"""Checkpoints: how far the indexes on disk reach, so that recovery reads only the log's end.

A checkpoint is one JSON line behind its CRC-32, replaced by rename.  All of it can be made again
from the log: a checkpoint that is damaged, missing or at odds with the files costs time only.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.store.fileops import FileOps, replace_file

if TYPE_CHECKING:
    from headrace.store.index import IndexView, QueueIndex
    from headrace.store.replication.epochs import EpochTable

__all__ = [
    "Checkpoint",
    "Checkpointer",
    "SavedQueue",
    "Snapshot",
    "read_checkpoint",
    "remove_strangers",
]

_log = logging.getLogger(__name__)


class SavedQueue(msgspec.Struct, frozen=True, array_like=True):
    """What one index has on disk."""

    topic: str
    queue_id: int
    #: Log position of the queue's first entry.
    birth: int
    #: Units on disk.
    count: int
    #: CRC-32 of each index file, up to that count.
    checksums: list[int]


class Checkpoint(msgspec.Struct, frozen=True):
    """The state of the indexes at one position of the log, which was on disk by then."""

    position: int
    file_units: int
    queues: list[SavedQueue]
    #: Number, start and mark of each epoch that begins before the position.
    epochs: list[tuple[int, int, int]] = []


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the writer hands over to be saved: immutable up to each view's end."""

    position: int
    file_units: int
    indexes: list[tuple[QueueIndex, IndexView]]
    #: Index folders of deleted topics, to be removed once no checkpoint names them.
    dropped: list[Path]
    epochs: EpochTable


def read_checkpoint(path: Path, ops: FileOps) -> Checkpoint | None:
    """Read a checkpoint; None when there is none or it is damaged."""
    try:
        content = ops.read_bytes(path)
        checksum, body = int(content[:8], 16), content[9:]
        if zlib.crc32(body) != checksum:
            raise ValueError("the checksum does not match")
        return msgspec.json.decode(body, type=Checkpoint)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is damaged (%s): the indexes are made again from the log", path, error)
        return None


def write_checkpoint(path: Path, snapshot: Snapshot, ops: FileOps) -> None:
    """Save the indexes of a snapshot, then the checkpoint that vouches for them."""
    for index, view in snapshot.indexes:
        if index.saved < view.max_offset:
            index.save(view, ops)
    queues = [
        SavedQueue(*index.key, index.birth, index.saved, index.checksums)
        for index, _ in snapshot.indexes
    ]
    epochs = [(each.number, each.start, each.mark) for each in snapshot.epochs.epochs]
    saved = Checkpoint(snapshot.position, snapshot.file_units, queues, epochs)
    body = msgspec.json.encode(saved)
    replace_file(ops, path, b"%08x\n%s" % (zlib.crc32(body), body))


def remove_strangers(root: Path, indexes: Iterable[QueueIndex], ops: FileOps) -> None:
    """Remove index folders that belong to no queue: left by deleted topics."""
    known = {index.folder for index in indexes}
    for topic in root.iterdir() if root.is_dir() else ():
        for folder in topic.iterdir() if topic.is_dir() else ():
            if folder not in known:
                ops.remove_tree(folder)
        with contextlib.suppress(OSError):
            topic.rmdir()


class Checkpointer:
    """A thread that saves snapshots, so that the writer never waits for index files."""

    def __init__(self, path: Path, ops: FileOps, position: int) -> None:
        self._path = path
        self._ops = ops
        self._snapshots: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        #: Position of the last checkpoint on disk, -1 for none.
        self.position = position
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether the next snapshot would be handled at once."""
        return self._idle.is_set()

    def submit(self, snapshot: Snapshot) -> None:
        """Hand over a snapshot. Caller: the writer thread, when idle."""
        self._idle.clear()
        self._snapshots.put(snapshot)

    def close(self) -> None:
        """Save what was handed over, then stop."""
        self._snapshots.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (snapshot := self._snapshots.get()) is not None:
            try:
                write_checkpoint(self._path, snapshot, self._ops)
                self.position = snapshot.position
                for folder in snapshot.dropped:
                    self._ops.remove_tree(folder)
            except Exception:  # noqa: BLE001 - logged; the log has everything
                _log.exception("no checkpoint at position %d", snapshot.position)
            finally:
                self._idle.set()
