"""Recovery: what a store does when it is opened.

Every entry since the last checkpoint is checked and indexed.  A torn tail is cut, a unit without
its end is cut at its beginning, and nothing else is: damage in the middle is an error.  What is
left is written again and synced before it counts: that it can be read does not say that it is on
the disk.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, HeadraceError
from headrace.protocol.layout import (
    fills_its_size,
    queue_of,
    queue_offset_of,
    record_size_at,
    record_starts,
    store_time_of,
)
from headrace.protocol.records import Records
from headrace.protocol.stamps import tag_hashes
from headrace.store.checkpoint import LoadedCheckpoint, read_checkpoint
from headrace.store.entries import (
    NO_UNIT,
    UNTAGGED,
    Entry,
    EntryKind,
    LogState,
    QueueKey,
    QueueState,
    decode_state,
    parse_losses,
)
from headrace.store.log import CommitLog, Segment, scan, witness_behind
from headrace.store.replication.following import EpochTable

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.fileops import FileOps
    from headrace.store.index import QueueIndex


# Replaying the log: every entry checked against what the ones before it say, and indexed.

_FIRST = np.zeros(1, np.int64)
#: Stretches to any number of records.
_NO_TAGS = np.zeros(1, np.int32)


@dataclass(slots=True)
class Replay:
    """Indexes the entries of the log, in order."""

    log: CommitLog
    catalog: QueueCatalog
    unit_marks: bool = True
    #: In the copy of another log: what lies behind was maybe never on this disk.
    certain_to: int | None = None
    #: Queues that got records.
    arrived: set[QueueKey] = field(default_factory=set)
    #: Index folders of topics that were deleted.
    dropped: list[Path] = field(default_factory=list)
    #: Highest store time so far, ms since 1970.
    timestamp: int = 0
    #: Position of the BEGIN of the unit that is being read.
    _unit: int = NO_UNIT
    #: Records of it so far; None when some of it is behind a fence.
    _unit_records: int | None = 0
    #: Where the first entry of that unit stands: its BEGIN, or what is left behind a fence.
    _unit_from: int = 0
    #: Whether a fence came last: what it replaced may have begun or ended a unit.
    _in_doubt: bool = False
    #: Whether there was any fence: births of queues may then differ from what they were.
    _fenced: bool = False
    _touched: dict[QueueKey, QueueIndex] = field(default_factory=dict)

    def reset(self) -> set[QueueIndex]:
        """Forget an unfinished unit, and return the queues that it touched."""
        touched, self._touched = set(self._touched.values()), {}
        self._unit, self._unit_records, self._in_doubt = NO_UNIT, 0, False
        return touched

    def touched(self) -> set[QueueKey]:
        """Return the queues that an unfinished unit has got records for."""
        return set(self._touched)

    def begin_at_state(self, entry: Entry, payload: memoryview) -> None:
        """Start from a STATE entry: nothing before it is needed."""
        state = self._state(entry, payload)
        self.catalog.restore(state, entry.end)
        self.timestamp = state.timestamp
        if self.unit_marks:
            self._unit, self._unit_records = state.unit, state.unit_records
            self._unit_from = state.unit

    def run(self, start: int) -> int:
        """Index the entries from a position on, and return one past the last byte that may stay."""
        position = start
        for entry, payload in scan(self.log, start):
            self.handle(entry, payload)
            position = entry.end
        if position < self.log.end:
            self._refuse_damage(position)
        if self._unit != NO_UNIT and not self._in_doubt:
            position = self._unit_from
            if position < self.log.begin:
                raise self._lost_unit()
            self.catalog.retract(self._touched.values())
        else:
            self.catalog.publish(self._touched.values(), position)
        return position

    def handle(self, entry: Entry, payload: memoryview) -> None:
        """Take in one intact entry."""
        kind = entry.kind
        if kind is EntryKind.VOID:
            self._pass_fence(entry, payload)
            return
        if self._in_doubt:
            self._leave_fence(entry)
        inside = self._unit != NO_UNIT
        if kind is EntryKind.DATA:
            self._index(entry, payload)
        elif kind is EntryKind.BEGIN:
            self._check(entry, "begins inside another unit", holds=not inside)
            if self.unit_marks:
                self._unit, self._unit_from, self._unit_records = entry.position, entry.position, 0
        elif kind is EntryKind.END:
            whole = self._unit == entry.unit and self._unit_records in (entry.count, None)
            self._check(entry, "ends a unit that is not whole", holds=whole or not self.unit_marks)
            self._unit = NO_UNIT
        elif kind is EntryKind.STATE:
            self._take_state(entry, payload)
        else:
            self._check(entry, "stands inside a unit", holds=not inside)
            self._note(entry, payload)
        if self._unit == NO_UNIT:
            self.catalog.publish(self._touched.values(), entry.end)
            self._touched = {}

    def _note(self, entry: Entry, payload: memoryview) -> None:
        """Take in what is said of topics or leaders."""
        if entry.kind is EntryKind.DROP_TOPIC:
            dropped = self.catalog.drop_topic(str(payload, "utf-8"), entry.end)
            self.dropped += [index.folder for index in dropped]
        elif entry.kind is EntryKind.COMPACT_TOPIC:
            self.catalog.compact_topic(str(payload, "utf-8"), entry.end)
        else:
            self.catalog.epochs = EpochTable.unpack(payload)

    def _index(self, entry: Entry, payload: memoryview) -> None:
        mine = entry.unit == self._unit or not self.unit_marks
        self._check(entry, "belongs to another unit", holds=mine)
        try:
            records = Records(payload, _starts(entry, payload))
            key = queue_of(payload)
            if not fills_its_size(payload):
                raise CorruptLogError("the parts of the first one do not fill it")
        except (HeadraceError, ValueError, IndexError) as error:
            raise self._corrupt(entry, f"holds malformed records ({error})") from error
        index = self.catalog.index_to_extend(key, entry.position)
        fits = len(records.starts) == entry.count and queue_offset_of(payload) == index.next_offset
        self._check(entry, f"does not follow offset {index.next_offset} of {key}", holds=fits)
        tags = _NO_TAGS if entry.flags & UNTAGGED else tag_hashes(records)
        if entry.count == 1:
            index.add(entry.payload_position, len(payload), int(tags[0]))
        else:
            starts = np.asarray(records.starts) + entry.payload_position
            sizes = np.diff(records.starts, append=entry.payload_size)
            index.extend(starts, sizes, tags)
        self.timestamp = max(self.timestamp, store_time_of(payload))
        self._touched[key] = index
        self.arrived.add(key)
        if self._unit_records is not None:
            self._unit_records += entry.count

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
            birth = entry.position if loss.birth < 0 else loss.birth
            index = self.catalog.index_to_extend(key, birth)
            self._check(
                entry, f"fences other offsets of {key}", holds=loss.first == index.next_offset
            )
            # Positions that rise like those of records, or a cut in between would make no headway.
            places = entry.payload_position + taken + np.arange(loss.count)
            index.extend(places, np.zeros(loss.count, np.int32), np.zeros(loss.count, np.int32))
            self._touched[key] = index
            taken += loss.count
        self._in_doubt = self._fenced = True

    def _leave_fence(self, entry: Entry) -> None:
        """Determine from the first entry behind a fence which unit goes on, if any."""
        self._in_doubt = False
        within = (EntryKind.DATA, EntryKind.END, EntryKind.STATE)
        unit = entry.unit if entry.kind in within else NO_UNIT
        if unit != self._unit or unit == NO_UNIT:
            # The one before it had ended: nothing else is written inside a unit.
            self.catalog.publish(self._touched.values(), entry.position)
            self._touched = {}
            self._unit, self._unit_from = unit, entry.position
        self._unit_records = None

    def _state(self, entry: Entry, payload: memoryview) -> LogState:
        try:
            return decode_state(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._corrupt(entry, f"is no state ({error})") from error

    def _take_state(self, entry: Entry, payload: memoryview) -> None:
        """Hold what a STATE says against what was read; begin with it where nothing was."""
        if entry.position == self.log.begin and not len(self.catalog):
            self.begin_at_state(entry, payload)
            return
        state = self._state(entry, payload)
        mine = self.catalog.state(0, NO_UNIT, 0)
        agree = sorted(mine.queues, key=_key) == sorted(state.queues, key=_key)
        agree = self._fenced or (agree and mine.compacted == state.compacted)
        self._check(entry, "does not say what the entries before it do", holds=agree)
        self.timestamp = max(self.timestamp, state.timestamp)

    def _check(self, entry: Entry, complaint: str, *, holds: bool) -> None:
        if not holds:
            raise self._corrupt(entry, complaint)

    def _corrupt(self, entry: Entry, complaint: str) -> CorruptLogError:
        segment = self.log.segment_at(entry.position)
        return CorruptLogError(
            f"{segment.path}: the entry at byte {entry.position - segment.base} {complaint}",
            hint="the file was changed by something else; put it back from a copy",
        )

    def _lost_unit(self) -> CorruptLogError:
        return CorruptLogError(
            f"{self.log.segments[0].path}: the log begins inside a unit (at position {self._unit})"
            f" and ends before the unit does",
            hint="put the log back from a copy of this folder",
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


def _starts(entry: Entry, payload: memoryview) -> npt.NDArray[np.int64]:
    # Most entries of a log of single sends hold one record, and arrays cost more than a look.
    alone = entry.count == 1 and record_size_at(payload, entry.payload_position) == len(payload)
    return _FIRST if alone else record_starts(payload)


def _key(queue: QueueState) -> QueueKey:
    return queue.topic, queue.queue_id


logger = logging.getLogger(__name__)


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
    catalog: QueueCatalog,
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
        logger.warning("%s does not fit the log: indexes are made again", checkpoint_path)
        start, replay = None, Replay(log, catalog, unit_marks, certain_to)
        end = _from_the_log_alone(replay)
    if start is None:
        # It must not come back when the log has grown past its position with other entries.
        _forget(checkpoint_path, ops)
    cut = log.end - end
    if cut:
        logger.warning("cut %d bytes of an unfinished write at position %d", cut, end)
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
    log: CommitLog, catalog: QueueCatalog, checkpoint: LoadedCheckpoint | None, file_units: int
) -> int | None:
    """Take the indexes of a checkpoint, and return its position, or None when it is of no use."""
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


def _raise_minimums(log: CommitLog, catalog: QueueCatalog) -> None:
    """Make queues begin where the log does: a crash may have come between it and a checkpoint."""
    begin, minimums = log.begin, {}
    for view in catalog.views():
        held = view.max_offset - view.min_offset
        if held and begin and view.position(view.min_offset) < begin:
            offset = view.first_from(begin, view.min_offset, view.max_offset)
            minimums[view.key] = (view.birth, offset)
    catalog.raise_minimums(minimums)
