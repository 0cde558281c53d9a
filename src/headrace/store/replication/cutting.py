"""Changes to a store that is not open: cut its log, or empty it."""

from __future__ import annotations

from pathlib import Path

from headrace.store.checkpoint import read_checkpoint
from headrace.store.fileops import FileOps
from headrace.store.log import CommitLog
from headrace.store.queue_logs import mark_unchecked

__all__ = ["cut_log", "empty_store"]

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
