"""Recovery: what a store does when it is opened.

Every entry since the last checkpoint is checked and indexed.  A torn tail is cut, a unit without
its end is cut at its beginning, and nothing else is: damage in the middle is an error.  What is
left is written again and synced before it counts: that it can be read does not say that it is on
the disk.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptLogError
from headrace.store.checkpoint import LoadedCheckpoint, read_checkpoint
from headrace.store.entries import EntryKind
from headrace.store.replay import Replay
from headrace.store.replication.epochs import EpochTable
from headrace.store.scanner import scan

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.fileops import FileOps
    from headrace.store.log import CommitLog
    from headrace.store.segments import Segment

__all__ = ["RecoveryReport", "Replay", "recover"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening the store found and did."""

    #: Position from which entries were checked; what lies before was vouched for.
    checked_from: int
    #: Bytes checked and indexed.
    checked_bytes: int
    #: Bytes of a torn tail or an unfinished unit that were cut.
    cut_bytes: int
    #: Whether the indexes were made again from the whole log, for want of a checkpoint.
    rebuilt: bool
    #: Time that it took, seconds.
    seconds: float
    #: Highest store time in the log, ms since 1970.
    timestamp: int = 0
    #: Up to here compaction logs had all records of their queues, by the checkpoint.
    handed_on: int = 0


def recover(
    log: CommitLog,
    catalog: Catalog,
    checkpoint_path: Path,
    ops: FileOps,
    *,
    file_units: int,
    unit_marks: bool,
    certain_to: int | None = None,
) -> RecoveryReport:
    """Bring log and indexes to the same, whole state.

    Parameters
    ----------
    certain_to
        In the copy of another log: what lies behind was maybe never on this disk, whatever its
        entries say, as they speak of the other's.

    Raises
    ------
    CorruptLogError
        When bytes that were on disk before are now damaged.
    """
    started = time.perf_counter()
    checkpoint = read_checkpoint(checkpoint_path, ops)
    start = _adopt(log, catalog, checkpoint, file_units)
    replay = Replay(log, catalog, unit_marks, certain_to)
    try:
        if start is not None and checkpoint is not None:
            replay.timestamp = checkpoint.table.timestamp
        end = _from_the_log_alone(replay) if start is None else replay.run(start)
    except CorruptLogError:
        if start is None:
            raise
        # The checkpoint may belong to another log: then the log alone tells the truth.
        _logger.warning("%s does not fit the log: indexes are made again", checkpoint_path)
        start, replay = None, Replay(log, catalog, unit_marks, certain_to)
        end = _from_the_log_alone(replay)
    if start is None:
        # It must not come back when the log has grown past its position with other entries.
        _forget(checkpoint_path, ops)
    cut = log.end - end
    if cut:
        _logger.warning("cut %d bytes of an unfinished write at position %d", cut, end)
        log.cut(end)
    log.settle(log.begin if start is None else start)
    if start is None or checkpoint is None or checkpoint.table.begin != log.begin:
        _raise_minimums(log, catalog)
    first = log.begin if start is None else start
    handed_on = checkpoint.table.handed_on if start is not None and checkpoint is not None else 0
    seconds = time.perf_counter() - started
    return RecoveryReport(
        first, end - first, cut, start is None, seconds, replay.timestamp, min(handed_on, end)
    )


def _forget(checkpoint_path: Path, ops: FileOps) -> None:
    if checkpoint_path.exists():
        ops.unlink(checkpoint_path)
        ops.sync_directory(checkpoint_path.parent)


def _adopt(
    log: CommitLog, catalog: Catalog, checkpoint: LoadedCheckpoint | None, file_units: int
) -> int | None:
    """Take the indexes of a checkpoint; its position, or None when it is of no use."""
    if checkpoint is None or checkpoint.table.file_units != file_units:
        return None
    table = checkpoint.table
    if not log.begin <= table.position <= log.end:
        return None
    indexes = []
    for saved, tail in zip(table.queues, checkpoint.tails, strict=True):
        key = (saved.topic, saved.queue_id)
        index = catalog.make_index(key, saved.birth, saved.floor)
        if not index.files.adopt(saved.count, saved.checksums, saved.positions):
            return None
        index.load(tail, saved.min_offset)
        indexes.append(index)
    catalog.adopt(indexes, table.position, table.compacted)
    catalog.epochs = EpochTable.of_rows(table.epochs)
    return table.position


def _from_the_log_alone(replay: Replay) -> int:
    """Index the whole log, from its first byte or from the first segment that tells its state."""
    log = replay.log
    replay.catalog.adopt((), log.begin)
    replay.catalog.epochs = EpochTable()
    for number, segment in enumerate(log.segments):
        if segment.base in (0, log.end):
            return replay.run(segment.base)
        first = next(scan(log, segment.base), None)
        if first is None or first[0].position != segment.base:
            raise _no_state(segment, "its first entry is damaged")
        if first[0].kind is EntryKind.STATE:
            if number:
                # Retention was stopped half way through segments that do not tell their state.
                log.remove(log.detach(segment.base))
            replay.begin_at_state(*first)
            return replay.run(first[0].end)
    raise _no_state(log.segments[0], "no segment tells how the queues stood at its start")


def _no_state(segment: Segment, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"{segment.path}: what the log holds of the queues cannot be told: {why}",
        hint="put the file, or the checkpoint, back from a copy of this folder",
    )


def _raise_minimums(log: CommitLog, catalog: Catalog) -> None:
    """Let queues begin where the log does: a crash may have come between it and a checkpoint."""
    begin, minimums = log.begin, {}
    for view in catalog.views():
        held = view.max_offset - view.min_offset
        if held and begin and view.position(view.min_offset) < begin:
            offset = view.first_from(begin, view.min_offset, view.max_offset)
            minimums[view.key] = (view.birth, offset)
    catalog.raise_minimums(minimums)
