"""Writing entries: what callers ask for, as entries of the log and units of the indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.failpoints import failpoint
from headrace.protocol.columns import record_sizes, stamp_records
from headrace.store.beside import Outlook
from headrace.store.entries import HEADER_SIZE, NO_UNIT, UNTAGGED, EntryKind
from headrace.store.requests import AppendResult, UnitResult
from headrace.store.state import encode_state
from headrace.store.unit import Piece, UnitPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.store.beside import SideUnit
    from headrace.store.catalog import Catalog
    from headrace.store.counters import Group
    from headrace.store.fileops import FileOps
    from headrace.store.index import QueueKey
    from headrace.store.log import CommitLog
    from headrace.store.requests import AppendRequest, UnitRequest
    from headrace.store.staging import Staging

__all__ = ["EntryWriter"]


class EntryWriter:
    """Adds entries to the log, out of sight of readers. Caller: who has the writer's turn."""

    def __init__(
        self,
        log: CommitLog,
        catalog: Catalog,
        staging: Staging,
        ops: FileOps,
        *,
        unit_marks: bool,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._staging = staging
        self._ops = ops
        self._unit_marks = unit_marks
        #: The unit that is being written: where it begins, and its group.
        self._open_unit: tuple[int, Group] | None = None
        #: Host and port that records name as the place where they are stored.
        self.store_host = ("127.0.0.1", 0)
        #: Highest store time so far, ms since 1970.
        self.timestamp = 0
        log.state = self._state

    def appends(self, group: Group, request: AppendRequest) -> list[AppendResult]:
        """Write records of some queues."""
        results = []
        for append in request.appends:
            offset, position = self._write(group, Piece.of(append), NO_UNIT)
            results.append(AppendResult(offset, position, group.timestamp))
        return results

    def unit(self, group: Group, request: UnitRequest) -> UnitResult:
        """Write staged parts and some more records as one unit."""
        runs = [run for key in request.keys for run in self._staging.runs(key)]
        plan = UnitPlan(runs, request.extra, self._ops)
        unit = self._mark(EntryKind.BEGIN, 0, NO_UNIT)
        self._open_unit = unit, group
        try:
            first_offsets = self._write_pieces(group, plan, unit)
            self._mark(EntryKind.END, group.records, unit)
        finally:
            self._open_unit = None
        group.units += 1
        return UnitResult(self._log.end, first_offsets)

    def outlook(self, keys: Iterable[QueueKey]) -> Outlook:
        """Tell what a unit that is written beside the log must follow."""
        state = encode_state(self._catalog.state(self.timestamp, NO_UNIT, 0))
        return Outlook(
            end=self._log.end,
            synced=self._log.synced,
            timestamp=self.timestamp,
            store_host=self.store_host,
            state_size=len(state),
            offsets={key: self._catalog.next_offset(key) for key in keys},
        )

    def join(self, group: Group, side: SideUnit) -> UnitResult | None:
        """Take a unit that was written beside the log into it; None when it no longer fits."""
        offsets = side.first_offsets
        if any(self._catalog.next_offset(key) != first for key, first in offsets.items()):
            return None
        if not side.lets_begin(self._catalog.state(self.timestamp, NO_UNIT, 0)):
            return None
        if not self._log.reach(side.segment.base):
            return None
        failpoint("store.unit.reached")
        self._log.join(side.segment)
        failpoint("store.unit.joined")
        for piece in side.pieces:
            index = self._catalog.index_to_extend(piece.key, piece.position)
            index.extend(piece.positions, piece.sizes, piece.tags)
            group.touched.add(index)
        group.records += side.records
        group.units += 1
        return UnitResult(self._log.end, dict(offsets))

    def name(self, kind: EntryKind, topic: str) -> None:
        """Write an entry that names a topic."""
        name = topic.encode()
        self._log.place(len(name))
        self._log.add(kind, name)

    def _write_pieces(self, group: Group, plan: UnitPlan, unit: int) -> dict[QueueKey, int]:
        """Write the records of a unit; the first offset in each queue."""
        first_offsets: dict[QueueKey, int] = {}
        for number, piece in enumerate(plan):
            if number == len(plan) // 2:
                self._log.flush()
                failpoint("store.unit.middle")
            offset, _ = self._write(group, piece, unit)
            first_offsets.setdefault(piece.key, offset)
        self._log.flush()
        failpoint("store.unit.end")
        return first_offsets

    def _state(self) -> tuple[bytes, int]:
        """Make the STATE of a new segment, and tell which unit is being written."""
        unit, group = self._open_unit or (NO_UNIT, None)
        records = group.records if group is not None else 0
        return encode_state(self._catalog.state(self.timestamp, unit, records)), unit

    def _mark(self, kind: EntryKind, count: int, unit: int) -> int:
        """Write the begin or the end of a unit; the unit's number."""
        if not self._unit_marks:
            return NO_UNIT
        position = self._log.place(0) - HEADER_SIZE
        self._log.add(kind, b"", count, unit)
        return position

    def _write(self, group: Group, piece: Piece, unit: int) -> tuple[int, int]:
        """Stamp a piece and add it as an entry; its first offset and its position."""
        records = piece.records
        payload, count = records.data, len(records.starts)
        position = self._log.place(len(payload))
        index = self._catalog.index_to_extend(piece.key, position - HEADER_SIZE)
        offset = index.next_offset
        stamp_records(records, offset, position, group.timestamp, self.store_host)
        group.touched.add(index)
        group.records += count
        flags = 0 if piece.tags.any() else UNTAGGED
        self._log.add(EntryKind.DATA, payload, count, unit, flags)
        if count == 1:
            index.add(position, len(payload), int(piece.tags[0]))
        else:
            index.extend(np.add(records.starts, position), record_sizes(records), piece.tags)
        return offset, position
