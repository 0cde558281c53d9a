"""Replaying the log: every entry checked against what the ones before it say, and indexed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, HeadraceError
from headrace.protocol.columns import Records, record_starts, tag_hashes
from headrace.store.entries import NO_UNIT, UNTAGGED, Entry, EntryKind
from headrace.store.fences import parse_losses
from headrace.store.record import (
    fills_its_size,
    queue_of,
    queue_offset_of,
    record_size_at,
    store_time_of,
)
from headrace.store.replication.epochs import EpochTable
from headrace.store.scanner import scan, witness_behind
from headrace.store.state import decode_state

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.index import QueueIndex, QueueKey
    from headrace.store.log import CommitLog
    from headrace.store.state import LogState, QueueState

__all__ = ["Replay"]

_FIRST = np.zeros(1, np.int64)
#: Stretches to any number of records.
_NO_TAGS = np.zeros(1, np.int32)


@dataclass(slots=True)
class Replay:
    """Indexes the entries of the log, in order."""

    log: CommitLog
    catalog: Catalog
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
        """Forget an unfinished unit; the queues that it touched."""
        touched, self._touched = set(self._touched.values()), {}
        self._unit, self._unit_records, self._in_doubt = NO_UNIT, 0, False
        return touched

    def touched(self) -> set[QueueKey]:
        """Give the queues that an unfinished unit has got records for."""
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
        """Index the entries from a position on; one past the last byte that may stay."""
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
        """Find out from the first entry behind a fence which unit goes on, if any."""
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
