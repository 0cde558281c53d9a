"""The offset map: the last offset of each key, in a table of fixed size.

A slot takes 24 bytes, the digest and the offset, however long the key and the body are.  Nothing
in it is done record by record: a batch of keys is looked for slot after slot, all at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from headrace.store.compaction.units import KeyRows

__all__ = ["SLOT_BYTES", "DistinctKeys", "OffsetMap", "slots_for"]

SLOT_BYTES = 24
#: Share of the slots that a map of estimated size is to fill; more costs time, less memory.
_LOAD = 0.78
#: Share of the slots that may be filled when the estimate was too low.
_MAX_LOAD = 0.9
#: What each step is longer than the one before (2³² by the golden ratio): steps of one length
#: can come back to the same few slots for ever.
_STEP_GROWTH = np.uint64(0x9E37_79B1)
#: A key that finds no place in so many slots has to wait for the next round.
_MAX_PROBES = 200
_BATCH = 8192
#: Small tables fill up unevenly: they get slots to spare.
_SPARE_SLOTS = 16

_Numbers = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.intp]


def slots_for(keys: float, map_bytes: int) -> int:
    """How many slots a map for so many keys gets, within its bound.

    >>> slots_for(78, 1 << 20), slots_for(1_000_000, 2400)
    (116, 100)
    """
    return max(min(int(keys / _LOAD) + _SPARE_SLOTS, map_bytes // SLOT_BYTES), 1)


class OffsetMap:
    """Digest to last offset, with open addressing; the memory is taken once and never grows.

    Where a key belongs depends on a number that is drawn for each map, so that nobody can choose
    keys that crowd one place.

    Parameters
    ----------
    slots
        Size of the table.
    capacity
        Keys that it may hold at most; by default, what the table can take at good speed.

    Examples
    --------
    >>> from headrace.store.compaction.units import KEY
    >>> rows = np.array([(1, 1, 10), (2, 2, 11), (1, 1, 12)], KEY)
    >>> offsets = OffsetMap(100)
    >>> offsets.add(rows), len(offsets), offsets.latest(rows).tolist()
    (3, 2, [12, 11, 12])
    """

    def __init__(self, slots: int, capacity: int | None = None) -> None:
        self._table = np.zeros((slots, 3), np.uint64)
        most = max(int(slots * _MAX_LOAD), 1)
        self.capacity = most if capacity is None else max(min(capacity, most), 1)
        self._count = 0
        self._draw()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    def clear(self) -> None:
        """Forget all keys."""
        self._table.fill(0)
        self._count = 0
        self._draw()

    def add(self, rows: KeyRows) -> int:
        """Note the offsets of records, in their order, until one does not fit.

        Records without a key are passed over.

        Returns
        -------
        int
            How many of the records are covered; an empty map always covers some.
        """
        done = 0
        while done < len(rows):
            batch = rows[done : done + _BATCH]
            covered = self._add_batch(batch)
            done += covered
            if covered < len(batch):
                break
        return done

    def latest(self, rows: KeyRows) -> npt.NDArray[np.int64]:
        """Give the last noted offset of each record's key, −1 for keys that are not here."""
        found = np.empty(len(rows), np.int64)
        for first in range(0, len(rows), _BATCH):
            batch = rows[first : first + _BATCH]
            places = self._find(batch["high"], batch["low"])[0]
            offsets = self._table[places, 2].astype(np.int64) - 1
            offsets[places < 0] = -1
            found[first : first + _BATCH] = offsets
        return found

    def _draw(self) -> None:
        self._salts = np.array([secrets.randbits(64) for _ in range(2)], np.uint64)

    def _add_batch(self, rows: KeyRows) -> int:
        done = 0
        while done < len(rows):
            rest = rows[done:]
            high, low = rest["high"], rest["low"]
            keyed = (high | low) != 0
            places = self._find(high, low)[0]
            missing = np.flatnonzero((places < 0) & keyed)
            room = self.capacity - self._count
            # So many new keys fit for certain; there are fewer when some of them are equal.
            stop = len(rest) if len(missing) <= room else int(missing[room])
            if stop == 0:
                return done
            self._note(places[:stop], rest[:stop])
            unplaced = self._insert(missing[missing < stop], rest)
            if unplaced is not None:
                return done + unplaced
            done += stop
        return done

    def _note(self, places: _Places, rows: KeyRows) -> None:
        known = np.flatnonzero(places >= 0)
        # Of equal places the last one counts, and offsets rise.
        self._table[places[known], 2] = rows["offset"][known].astype(np.uint64) + np.uint64(1)

    def _insert(self, new: _Places, rows: KeyRows) -> int | None:
        """Put keys that are not in the table there; give the first that found no place."""
        first_unplaced: int | None = None
        while len(new):
            high, low = rows["high"][new], rows["low"][new]
            places, free = self._find(high, low)
            self._note(places, rows[new])
            absent = np.flatnonzero(places < 0)
            stuck = absent[free[absent] < 0]
            if len(stuck):
                row = int(new[stuck[0]])
                first_unplaced = row if first_unplaced is None else min(first_unplaced, row)
            claims = absent[free[absent] >= 0]
            slots = free[claims]
            # Several records may want one free slot: the first has it, the others look on.  First,
            # so that later records of its key then find it and leave their higher offset.
            self._table[slots[::-1], 2] = claims[::-1].astype(np.uint64) + np.uint64(1)
            won = self._table[slots, 2] == claims.astype(np.uint64) + np.uint64(1)
            slots, winners = slots[won], claims[won]
            self._table[slots, 0] = high[winners]
            self._table[slots, 1] = low[winners]
            self._table[slots, 2] = rows["offset"][new[winners]].astype(np.uint64) + np.uint64(1)
            self._count += len(slots)
            new = new[claims[~won]]
        return first_unplaced

    def _find(self, high: _Numbers, low: _Numbers) -> tuple[_Places, _Places]:
        """Find the slots of keys, and for those that are not there the first free one."""
        table, size = self._table, np.uint64(len(self._table))
        shift = np.uint64(32)
        mixed = _mix(_mix(high ^ self._salts[0]) + low ^ self._salts[1])
        at, step = mixed >> shift, (mixed & np.uint64(0xFFFF_FFFF)) | np.uint64(1)
        places = np.full(len(high), -1, np.intp)
        free = np.full(len(high), -1, np.intp)
        left = np.arange(len(high))
        for _ in range(_MAX_PROBES):
            if not len(left):
                break
            slots = ((at * size) >> shift).astype(np.intp)
            found = table.take(slots, axis=0)
            empty = found[:, 2] == 0
            here = (found[:, 0] == high) & (found[:, 1] == low) & ~empty
            places[left[here]] = slots[here]
            free[left[empty]] = slots[empty]
            go_on = np.flatnonzero(~(here | empty))
            left, high, low = left[go_on], high[go_on], low[go_on]
            step = step[go_on] + _STEP_GROWTH
            at = (at[go_on] + step) & np.uint64(0xFFFF_FFFF)
        return places, free


def _mix(numbers: _Numbers) -> _Numbers:
    """Spread every bit over all bits (the end of MurmurHash3)."""
    numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return numbers ^ (numbers >> np.uint64(33))


class DistinctKeys:
    """Estimates how many different keys there are, from a sample of their digests.

    Digests are spread evenly, so the share of the keys whose digest begins with some zero bits is
    known, and counting these exactly takes little memory.

    Examples
    --------
    >>> from headrace.store.compaction.units import KEY
    >>> rows = np.zeros(3, KEY)
    >>> rows["high"] = 5, 6, 5
    >>> DistinctKeys.of([rows], 3)
    2.0
    """

    #: Records that are counted exactly.
    SAMPLE = 32_768

    def __init__(self, records: int) -> None:
        self._bits = np.uint64(max(int(records // self.SAMPLE).bit_length(), 0))
        self._mask = (np.uint64(1) << self._bits) - np.uint64(1)
        self._seen = np.empty(0, np.uint64)

    @classmethod
    def of(cls, chunks: Iterable[KeyRows], records: int) -> float:
        """Estimate the number of keys in chunks that hold so many records together."""
        counter = cls(records)
        for chunk in chunks:
            counter.add(chunk)
        return counter.estimate

    def add(self, rows: KeyRows) -> None:
        """Look at some records."""
        mixed = _mix(rows["high"] + rows["low"])
        sample = mixed[(mixed & self._mask) == 0]
        self._seen = np.unique(np.concatenate((self._seen, sample)))

    @property
    def estimate(self) -> float:
        """Number of keys, on the high side by two standard errors."""
        count = len(self._seen)
        if not self._bits:
            return float(count)
        return float((count + 2 * count**0.5 + 1) * (1 << int(self._bits)))
