"""Marking: which records of the closed files are superseded, round by round.

A round fills the offset map from where the one before it stopped, then looks up every record.
What is to go is one bit a record, so files are written once, however many rounds it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.store.compaction.offset_map import DistinctKeys, OffsetMap, slots_for
from headrace.store.compaction.units import NOT_MET, IndexRows, KeyRows

if TYPE_CHECKING:
    from headrace.store.compaction.view import Part

__all__ = ["Candidate", "Horizon", "Marked", "Rounds", "mark"]

#: Rows that are looked at together; a multiple of 8, so that no byte of bits is shared.
_ROWS = 8_192


@dataclass(slots=True, eq=False)
class Candidate:
    """A closed file, and which of its records are to go."""

    part: Part
    #: One bit a record, set when it goes.
    bits: npt.NDArray[np.uint8] = field(init=False)
    kept_count: int = 0
    kept_bytes: int = 0
    #: Whether it has deletes that are met for the first time.
    is_restamped: bool = False

    def __post_init__(self) -> None:
        self.bits = np.zeros(-(-self.part.meta.count // 8), np.uint8)

    def drop(self, first: int, gone: npt.NDArray[np.bool_]) -> None:
        """Mark records from a row on, which is a multiple of 8."""
        packed = np.packbits(gone)
        self.bits[first // 8 : first // 8 + len(packed)] |= packed

    def kept(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Tell which of some rows stay."""
        begin = first // 8
        bits = np.unpackbits(self.bits[begin : -(-last // 8)])
        kept: npt.NDArray[np.bool_] = bits[first - 8 * begin : last - 8 * begin] == 0
        return kept


@dataclass(frozen=True, slots=True)
class Horizon:
    """When a delete goes: some time after a compaction first met it."""

    #: Age of the store, ms.
    now: int
    retention: int

    def stamped(self, index: IndexRows, clean_until: int) -> npt.NDArray[np.int64]:
        """Give the times when records were met, with those that are met just now."""
        met: npt.NDArray[np.int64] = index["met"]
        return np.where((met == NOT_MET) & (index["offset"] < clean_until), self.now, met)

    def over(self, met: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which of these are deletes whose time is over."""
        return (met >= 0) & (self.now - met >= self.retention)


@dataclass(frozen=True, slots=True)
class Rounds:
    """How much the offset map may hold, and how often it may be filled."""

    map_bytes: int
    map_capacity: int | None = None
    max_rounds: int | None = None


@dataclass(slots=True)
class Marked:
    """What marking found."""

    candidates: list[Candidate]
    clean_until: int
    rounds: int = 0
    map_bytes: int = 0
    map_keys: int = 0
    tombstones_dropped: int = 0


def mark(
    parts: tuple[Part, ...],
    clean_until: int,
    digest_mark: bytes,
    rounds: Rounds,
    horizon: Horizon,
    check: Callable[[int], None],
) -> Marked:
    """Find the records of closed files that go.

    Parameters
    ----------
    clean_until
        Where the last compaction stopped.
    check
        Called between chunks with the bytes that were read; may raise to stop it all.
    """
    marking = _Marking(parts, clean_until, digest_mark, check)
    marking.run(rounds)
    for candidate in marking.found.candidates:
        _count(candidate, marking.found, horizon)
    return marking.found


class _Marking:
    def __init__(
        self,
        parts: tuple[Part, ...],
        clean_until: int,
        digest_mark: bytes,
        check: Callable[[int], None],
    ) -> None:
        self.found = Marked([Candidate(part) for part in parts], clean_until)
        self._end = parts[-1].meta.last + 1 if parts else clean_until
        self._digest_mark = digest_mark
        self._check = check

    def run(self, rounds: Rounds) -> None:
        found = self.found
        if found.clean_until >= self._end or rounds.max_rounds == 0:
            return
        offsets = OffsetMap(self._slots(rounds.map_bytes), rounds.map_capacity)
        found.map_bytes = offsets.nbytes
        while found.clean_until < self._end:
            self._fill(offsets)
            self._look_up(offsets)
            found.rounds += 1
            found.map_keys += len(offsets)
            if found.rounds == rounds.max_rounds:
                break
            offsets.clear()

    def _slots(self, map_bytes: int) -> int:
        dirty = sum(
            candidate.part.meta.count - self._first_dirty(candidate)
            for candidate in self.found.candidates
        )
        keys = DistinctKeys.of((rows for _, rows in self._dirty_rows()), dirty)
        return slots_for(keys, map_bytes)

    def _fill(self, offsets: OffsetMap) -> None:
        """Fill the map from where the last round stopped: affects ``clean_until``."""
        for _, rows in self._dirty_rows():
            covered = offsets.add(rows)
            if covered < len(rows):
                self.found.clean_until = int(rows["offset"][covered])
                return
        self.found.clean_until = self._end

    def _look_up(self, offsets: OffsetMap) -> None:
        for candidate in self.found.candidates:
            if candidate.part.meta.first >= self.found.clean_until:
                return
            for first, rows in self._rows(candidate, 0):
                candidate.drop(first, offsets.latest(rows) > rows["offset"])

    def _dirty_rows(self) -> Iterator[tuple[int, KeyRows]]:
        for candidate in self.found.candidates:
            yield from self._rows(candidate, self._first_dirty(candidate))

    def _first_dirty(self, candidate: Candidate) -> int:
        meta = candidate.part.meta
        if meta.last < self.found.clean_until:
            return meta.count
        return candidate.part.file.row_of(meta, self.found.clean_until)

    def _rows(self, candidate: Candidate, first: int) -> Iterator[tuple[int, KeyRows]]:
        part = candidate.part
        if first == part.meta.count:
            return
        for at, rows in part.file.key_chunks(part.meta, self._digest_mark, first, _ROWS):
            self._check(rows.nbytes)
            yield at, rows


def _count(candidate: Candidate, found: Marked, horizon: Horizon) -> None:
    """Mark deletes whose time is over, and count what stays."""
    meta = candidate.part.meta
    if not candidate.bits.any() and not meta.tombstones:
        candidate.kept_count, candidate.kept_bytes = meta.count, meta.size
        return
    index = candidate.part.file.index(meta)
    for first in range(0, meta.count, _ROWS):
        rows = index[first : first + _ROWS]
        kept = candidate.kept(first, first + len(rows))
        if meta.tombstones:
            met = horizon.stamped(rows, found.clean_until)
            over = horizon.over(met) & kept & (rows["offset"] < found.clean_until)
            candidate.drop(first, over)
            kept &= ~over
            found.tombstones_dropped += int(np.count_nonzero(over))
            candidate.is_restamped |= bool((kept & (met != rows["met"])).any())
        candidate.kept_count += int(np.count_nonzero(kept))
        candidate.kept_bytes += int(rows["size"][kept].sum())
