"""What a store says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.compacting import CompactorStatistics
    from headrace.store.recovery import RecoveryReport
    from headrace.store.reput import ReputStatistics

__all__ = ["StoreStatistics"]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What a store holds and has done since it was opened."""

    #: Positions of the log's first byte, of the end that readers see, and of what is on disk.
    begin: int
    end: int
    synced: int
    segments: int
    queues: int
    #: Groups written, syncs, committed units, records and bytes appended since the open.
    groups: int
    syncs: int
    units: int
    appended_records: int
    appended_bytes: int
    staged_parts: int
    staged_bytes: int
    #: Position of the last checkpoint, -1 for none: recovery would begin there.
    checkpoint: int
    #: Why the store takes no more, None while it works.
    failure: str | None
    #: What opening the store found.
    recovery: RecoveryReport
    #: How far the logs of compacted topics are, and what was compacted.
    reput: ReputStatistics
    compaction: CompactorStatistics
