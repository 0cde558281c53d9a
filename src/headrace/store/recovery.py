"""Recovery: what a store does when it is opened.

Every entry since the last checkpoint is checked and indexed.  A torn tail is cut, a unit without
its end is cut at its beginning, and nothing else is: damage in the middle is an error.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import CorruptLogError, HeadraceError
from headrace.protocol.columns import Records, record_sizes, record_starts, tag_hashes
from headrace.store.checkpoint import Checkpoint, read_checkpoint
from headrace.store.entries import NO_UNIT, Entry, EntryKind
from headrace.store.fences import parse_losses
from headrace.store.index import QueueIndex, QueueKey
from headrace.store.record import queue_of, queue_offset_of
from headrace.store.replication.epochs import Epoch, EpochTable
from headrace.store.scanner import scan, witness_behind

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.fileops import FileOps
    from headrace.store.log import CommitLog

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
    try:
        end = Replay(log, catalog, unit_marks, certain_to).run(
            log.begin if start is None else start
        )
    except CorruptLogError:
        if start is None:
            raise
        # The checkpoint may belong to another log: then the log alone tells the truth.
        _logger.warning("%s does not fit the log: indexes are made again", checkpoint_path)
        start = _adopt(log, catalog, None, file_units)
        end = Replay(log, catalog, unit_marks, certain_to).run(log.begin)
    if start is None:
        # It must not come back when the log has grown past its position with other entries.
        _forget(checkpoint_path, ops)
    cut = log.end - end
    if cut:
        _logger.warning("cut %d bytes of an unfinished write at position %d", cut, end)
        log.cut(end)
    log.sync()
    first = log.begin if start is None else start
    seconds = time.perf_counter() - started
    return RecoveryReport(first, end - first, cut, start is None, seconds)


def _forget(checkpoint_path: Path, ops: FileOps) -> None:
    if checkpoint_path.exists():
        ops.unlink(checkpoint_path)
        ops.sync_directory(checkpoint_path.parent)


def _adopt(
    log: CommitLog, catalog: Catalog, checkpoint: Checkpoint | None, file_units: int
) -> int | None:
    """Take the indexes of a checkpoint; its position, or None when it is of no use."""
    if checkpoint is not None and checkpoint.file_units == file_units:
        indexes = []
        for saved in checkpoint.queues:
            key = (saved.topic, saved.queue_id)
            index = QueueIndex(catalog.folder, key, saved.birth, file_units)
            if not index.load(saved.count, saved.checksums):
                break
            indexes.append(index)
        else:
            if log.begin <= checkpoint.position <= log.end:
                catalog.adopt(indexes, checkpoint.position)
                catalog.epochs = EpochTable(tuple(Epoch(*row) for row in checkpoint.epochs))
                return checkpoint.position
    catalog.adopt((), log.begin)
    catalog.epochs = EpochTable()
    return None


@dataclass(slots=True)
class Replay:
    """Turns entries of the log into what the catalog holds."""

    log: CommitLog
    catalog: Catalog
    unit_marks: bool
    certain_to: int | None = None
    #: Queues that got records.
    arrived: set[QueueKey] = field(default_factory=set)
    #: Index folders of topics that were deleted.
    dropped: list[Path] = field(default_factory=list)
    #: Position of the BEGIN of the unit that is being read.
    _unit: int = NO_UNIT
    #: Records of it so far; None when some of it is behind a fence.
    _unit_records: int | None = 0
    #: Whether a fence came last: what it replaced may have begun or ended a unit.
    _in_doubt: bool = False
    #: Where the first entry of that unit stands: its BEGIN, or what is left behind a fence.
    _unit_from: int = 0
    _touched: dict[QueueKey, QueueIndex] = field(default_factory=dict)

    def reset(self) -> set[QueueIndex]:
        """Forget an unfinished unit; the queues that it touched."""
        touched, self._touched = set(self._touched.values()), {}
        self._unit, self._unit_records, self._in_doubt = NO_UNIT, 0, False
        return touched

    def run(self, start: int) -> int:
        """Index the entries from a position on; one past the last byte that may stay."""
        position = start
        for entry, payload in scan(self.log, start):
            self.handle(entry, payload)
            position = entry.end
        if position < self.log.end:
            self._refuse_damage(position)
        if self._unit != NO_UNIT and not self._in_doubt:
            position = self._unit_from
            self.catalog.retract(self._touched.values())
        else:
            self.catalog.publish(self._touched.values(), position)
        return position

    def handle(self, entry: Entry, payload: memoryview) -> None:
        """Take the next entry."""
        if self._in_doubt and entry.kind is not EntryKind.VOID:
            self._leave_fence(entry)
        if entry.kind is EntryKind.VOID:
            self._pass_fence(entry, payload)
            return
        if entry.kind is EntryKind.DATA:
            self._index(entry, payload)
        elif entry.kind is EntryKind.EPOCH:
            self._check(entry, "begins an epoch inside a unit", holds=self._unit == NO_UNIT)
            self.catalog.epochs = EpochTable.unpack(payload)
        elif not self.unit_marks and entry.kind is not EntryKind.DROP_TOPIC:
            return
        elif entry.kind is EntryKind.BEGIN:
            self._check(entry, "begins inside another unit", holds=self._unit == NO_UNIT)
            self._unit, self._unit_from, self._unit_records = entry.position, entry.position, 0
            return
        elif entry.kind is EntryKind.END:
            whole = self._unit == entry.unit and self._unit_records in (entry.count, None)
            self._check(entry, "ends a unit that is not whole", holds=whole)
            self._unit = NO_UNIT
        else:
            self._check(entry, "drops a topic inside a unit", holds=self._unit == NO_UNIT)
            dropped = self.catalog.drop_topic(str(payload, "utf-8"), entry.end)
            self.dropped += [index.folder for index in dropped]
        if self._unit == NO_UNIT:
            self.catalog.publish(self._touched.values(), entry.end)
            self._touched = {}

    def _pass_fence(self, entry: Entry, payload: memoryview) -> None:
        """Take the offsets that were lost out of use; readers go on behind them."""
        taken = 0
        for loss in parse_losses(payload):
            if loss.is_delete:
                self.catalog.publish(self._touched.values(), entry.position)
                self.catalog.drop_topic(loss.topic, entry.position)
                self._touched = {}
                continue
            key = (loss.topic, loss.queue_id)
            index = self.catalog.index_to_extend(key, entry.position)
            self._check(
                entry, f"fences other offsets of {key}", holds=loss.first == index.next_offset
            )
            # Positions that rise like those of records, or a cut in between would make no headway.
            places = entry.payload_position + taken + np.arange(loss.count)
            index.extend(places, np.zeros(loss.count, np.int32), np.zeros(loss.count, np.int32))
            self._touched[key] = index
            taken += loss.count
        self._in_doubt = True

    def _leave_fence(self, entry: Entry) -> None:
        """Find out from the first entry behind a fence which unit goes on, if any."""
        self._in_doubt = False
        unit = entry.unit if entry.kind in (EntryKind.DATA, EntryKind.END) else NO_UNIT
        if unit != self._unit or unit == NO_UNIT:
            # The one before it had ended: nothing else is written inside a unit.
            self.catalog.publish(self._touched.values(), entry.position)
            self._touched = {}
            self._unit, self._unit_from = unit, entry.position
        self._unit_records = None

    def _index(self, entry: Entry, payload: memoryview) -> None:
        mine = entry.unit == self._unit or not self.unit_marks
        self._check(entry, "belongs to another unit", holds=mine)
        try:
            records = Records(payload, record_starts(payload))
            key = queue_of(payload)
        except (HeadraceError, ValueError, IndexError) as error:
            raise self._corrupt(entry, f"holds malformed records ({error})") from error
        index = self.catalog.index_to_extend(key, entry.position)
        fits = len(records.starts) == entry.count and queue_offset_of(payload) == index.next_offset
        self._check(entry, f"does not follow offset {index.next_offset} of {key}", holds=fits)
        starts = np.asarray(records.starts) + entry.payload_position
        index.extend(starts, record_sizes(records), tag_hashes(records))
        self._touched[key] = index
        self.arrived.add(key)
        if self._unit_records is not None:
            self._unit_records += entry.count

    def _check(self, entry: Entry, complaint: str, *, holds: bool) -> None:
        if not holds:
            raise self._corrupt(entry, complaint)

    def _corrupt(self, entry: Entry, complaint: str) -> CorruptLogError:
        segment = self.log.segment_at(entry.position)
        return CorruptLogError(
            f"{segment.path}: the entry at byte {entry.position - segment.base} {complaint}",
            hint="the file was changed by something else; put it back from a copy",
        )

    def _refuse_damage(self, position: int) -> None:
        """Raise unless what lies behind a position can be the rest of an unfinished write."""
        if self.certain_to is not None and position >= self.certain_to:
            return
        witness = witness_behind(self.log, position)
        if witness is None:
            return
        segment = self.log.segment_at(position)
        raise CorruptLogError(
            f"{segment.path}: the entry at byte {position - segment.base} does not match its "
            f"checksum, but was once on disk (a later entry at position {witness.position} says "
            f"so): this is damage, not an unfinished write",
            hint="nothing was cut; put the file back from a copy of this folder",
        )
