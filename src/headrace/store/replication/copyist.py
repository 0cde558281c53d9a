"""What a follower does to its own store: append, cut, start over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.checkpoint import read_checkpoint
from headrace.store.fileops import FileOps
from headrace.store.log import CommitLog
from headrace.store.queue_logs import mark_unchecked
from headrace.store.replication.following import (
    Copied,
    CopyBytes,
    CutDone,
    LogHead,
    Restart,
    TruncateLog,
)

if TYPE_CHECKING:
    from headrace.store.store import MessageStore


# Changes to a store that is not open: cut its log, or empty it.

_DISCARDED = ".discarded"


def cut_log(path: Path, position: int, ops: FileOps | None = None) -> None:
    """Remove everything from a position on from the log of a store. Caller: has closed it.

    The store makes its indexes again when it is opened, as far as they went beyond the position.
    """
    ops = ops or FileOps()
    checkpoint = path / "checkpoint"
    saved = read_checkpoint(checkpoint, ops)
    if checkpoint.exists() and (saved is None or saved.table.position > position):
        ops.unlink(checkpoint)
        ops.sync_directory(path)
    mark_unchecked(path, ops)
    log = CommitLog(path / "log", ops, segment_size=1)
    try:
        log.cut(position)
    finally:
        log.close()


def empty_store(path: Path, begin: int, ops: FileOps | None = None) -> None:
    """Make a store an empty one whose log begins at a position. Caller: has closed it."""
    ops = ops or FileOps()
    old = path.with_name(path.name + _DISCARDED)
    ops.remove_tree(old)
    if path.exists():
        # One step: a crash leaves the old store or none, never a part of it.
        ops.rename(path, old)
        ops.sync_directory(path.parent)
    ops.make_directory(path / "log")
    log = CommitLog(path / "log", ops, segment_size=1)
    try:
        log.begin_at(begin)
    finally:
        log.close()
    ops.remove_tree(old)


logger = logging.getLogger(__name__)


class Copyist:
    """Carries out a follower's instructions on its own store, waiting for the disk.

    Parameters
    ----------
    path
        The store's folder.
    store
        The store; it is closed and opened again when its log is cut.
    open_store
        Opens the store in the folder.
    ops
        File operations, for tests.
    """

    def __init__(
        self,
        path: Path,
        store: MessageStore,
        open_store: Callable[[], MessageStore],
        ops: FileOps | None = None,
    ) -> None:
        self._path = path
        self.store = store
        self._open_store = open_store
        self._ops = ops

    def head(self, log: str) -> LogHead:
        """Say where the own log begins and ends."""
        return self.store.replication.head(log)

    def copy(self, instruction: CopyBytes, *, sync: bool) -> Copied:
        """Append bytes; raises what the store raises."""
        port = self.store.replication
        return port.copy(
            instruction.base, instruction.position, instruction.content, sync=sync
        ).result()

    def cut(self, instruction: TruncateLog, log: str) -> CutDone:
        """Remove what the primary does not have."""
        end = self.head(log).end
        logger.warning(
            "%s: the log goes up to %d, but is the primary's only up to %d: %d bytes are cut",
            self._path,
            end,
            instruction.position,
            end - instruction.position,
        )
        self.store.close()
        cut_log(self._path, instruction.position, self._ops)
        return self._reopened(log)

    def restart(self, instruction: Restart, log: str) -> CutDone:
        """Empty the store, and begin at a position."""
        held = self.head(log)
        level = logging.WARNING if held.end > held.begin else logging.INFO
        logger.log(
            level,
            "%s: starts over at position %d of the primary's log: %s",
            self._path,
            instruction.position,
            instruction.why,
        )
        self.store.close()
        empty_store(self._path, instruction.position, self._ops)
        return self._reopened(log)

    def _reopened(self, log: str) -> CutDone:
        self.store = self._open_store()
        return CutDone(self.head(log))
