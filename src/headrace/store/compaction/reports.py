"""What a compaction log tells: reads, dirt, reports, damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.reading import ReadStatus


@dataclass(frozen=True, slots=True)
class QueueRead:
    """Stored records of one queue; the slices stay valid when their file is compacted away."""

    #: ``FOUND``, ``NO_MATCH``, ``AT_END`` or ``BEYOND``.
    status: ReadStatus
    slices: list[memoryview]
    count: int
    #: Where the next read goes on.
    next_offset: int
    #: First readable offset, and one past the last offset ever given.
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Dirt:
    """How much of the closed files no compaction has covered."""

    clean_bytes: int
    dirty_bytes: int
    #: Store time of the oldest uncompacted closed record, ms since 1970.
    oldest_dirty: int | None

    @property
    def ratio(self) -> float:
        """Share of the closed bytes that is dirty.

        >>> Dirt(100, 300, None).ratio
        0.75
        """
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What one compaction did."""

    #: Offset maps that were filled, one after the other.
    rounds: int
    #: Records and bytes of the closed files, before and after.
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    #: Bytes that were written: files that lose nothing are not.
    bytes_written: int
    #: Deletes that were removed because their retention was over.
    tombstones_dropped: int
    #: Memory of the offset map, and the keys that it held in all rounds together.
    map_bytes: int
    map_keys: int
    seconds: float

    @classmethod
    def nothing(cls) -> CompactionReport:
        """Report that there was nothing to do.

        >>> CompactionReport.nothing().rounds
        0
        """
        return cls(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what was written."""

    path: Path
    #: Where in the file.
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLogStatistics:
    """A queue's log at one moment."""

    files: int
    records: int
    bytes: int
    #: Records without a key: kept, because nothing can supersede them.
    keyless: int
    tombstones: int
    #: Everything below was compacted.
    clean_until: int
