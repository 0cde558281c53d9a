"""The offset map: the last offset of each key, in a table of fixed size.

A slot takes 24 bytes, the digest and the offset, however long the key and the body are.  Nothing
in it is done record by record: a batch of keys is looked for slot after slot, all at once.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from headrace.protocol.columns import property_column
from headrace.protocol.layout import locate, slices
from headrace.protocol.properties import KEYS
from headrace.protocol.records import Records, record_sizes
from headrace.protocol.stamps import tag_hashes
from headrace.store.compaction import data_file

if TYPE_CHECKING:
    import pyarrow as pa


# Digests of keys: sixteen bytes that stand for a key of any length.

_SIZE = 16
#: BLAKE2b takes no longer key.
_MAX_SECRET = 64


class KeyDigest:
    """Turns keys into digests, by one algorithm and secret.

    Equal digests count as equal keys.  With ``"blake2b"`` nobody who does not know the secret can
    make two keys collide; with ``"md5"`` everybody can.

    Examples
    --------
    >>> KeyDigest("md5", b"").of(b"a").hex()
    '0cc175b9c0f1b6a831c399e269772661'
    >>> KeyDigest("blake2b", b"one").of(b"a") == KeyDigest("blake2b", b"two").of(b"a")
    False
    """

    def __init__(self, algorithm: Literal["blake2b", "md5"], secret: bytes) -> None:
        if len(secret) > _MAX_SECRET:
            secret = hashlib.blake2b(secret).digest()
        self.algorithm = algorithm
        self._empty: hashlib._Hash | hashlib.blake2b
        if algorithm == "blake2b":
            self._empty = hashlib.blake2b(digest_size=_SIZE, key=secret)
            mark = hashlib.blake2b(b"headrace key sidecar", digest_size=8, key=secret).digest()
        else:
            self._empty = hashlib.md5(usedforsecurity=False)
            mark = b"md5".ljust(8, b"\0")
        #: Tells sidecars of this algorithm and secret from all others, without giving it away.
        self.mark = mark

    def of(self, key: bytes) -> bytes:
        """Digest of one key.

        >>> len(KeyDigest("blake2b", b"secret").of(b"key"))
        16
        """
        return self._digests([key])

    def column(self, keys: pa.BinaryArray) -> npt.NDArray[np.uint64]:
        """Digests of many keys, two numbers each; zeros for null.

        >>> import pyarrow as pa
        >>> KeyDigest("md5", b"").column(pa.array([None, b"a"], pa.binary())).tolist()[0]
        [0, 0]
        """
        present = keys.drop_null()
        digests = np.frombuffer(self._digests(present.to_pylist()), "<u8").reshape(-1, 2)
        if len(present) == len(keys):
            return digests
        placed = np.zeros((len(keys), 2), np.uint64)
        placed[keys.is_valid().to_numpy(zero_copy_only=False)] = digests
        return placed

    def _digests(self, keys: list[bytes]) -> bytes:
        copy = self._empty.copy
        digests = bytearray()
        for key in keys:
            one = copy()
            one.update(key)
            digests += one.digest()
        return bytes(digests)


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
    """Return how many slots a map for so many keys gets, within its bound.

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
    >>> from headrace.store.compaction.data_file import KEY
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

    def add(self, rows: data_file.KeyRows) -> int:
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

    def latest(self, rows: data_file.KeyRows) -> npt.NDArray[np.int64]:
        """Return the last noted offset of each record's key, −1 for keys that are not here."""
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

    def _add_batch(self, rows: data_file.KeyRows) -> int:
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

    def _note(self, places: _Places, rows: data_file.KeyRows) -> None:
        known = np.flatnonzero(places >= 0)
        # Of equal places the last one counts, and offsets rise.
        self._table[places[known], 2] = rows["offset"][known].astype(np.uint64) + np.uint64(1)

    def _insert(self, new: _Places, rows: data_file.KeyRows) -> int | None:
        """Add keys that are not in the table yet, and return the first that found no place."""
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
        """Return the slots of keys, and for those that are not there the first free one."""
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
    >>> from headrace.store.compaction.data_file import KEY
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
    def of(cls, chunks: Iterable[data_file.KeyRows], records: int) -> float:
        """Estimate the number of keys in chunks that hold so many records together."""
        counter = cls(records)
        for chunk in chunks:
            counter.add(chunk)
        return counter.estimate

    def add(self, rows: data_file.KeyRows) -> None:
        """Count the keys of some records."""
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


# Rows of the derived files, and how they are made from records.
#
# An index row says where a record lies, a key row which key it has.  Both files have one row for
# each record, in the order of the offsets, so row ``i`` of both is the same record.


NOT_MET = -1


def describe(records: Records, digest: KeyDigest) -> data_file.UnitRows:
    """Make the rows of stamped records; ``at`` counts from the first record.

    Raises
    ------
    ProtocolError
        The bytes are not whole records.
    """
    layout = locate(records.data, records.starts)
    head = layout.head
    index = np.empty(len(records), data_file.INDEX)
    index["offset"] = head["queue_offset"]
    index["log_position"] = head["position"]
    index["at"] = records.starts
    index["size"] = record_sizes(records)
    index["tag"] = tag_hashes(records)
    index["met"] = np.where(head["body_size"] == 0, NOT_MET, data_file.NOT_A_TOMBSTONE)
    properties = slices(records.data, layout.property_starts, layout.property_ends)
    keys = np.zeros(len(records), data_file.KEY)
    keys["offset"] = index["offset"]
    digests = digest.column(property_column(properties, KEYS))
    keys["high"], keys["low"] = digests[:, 0], digests[:, 1]
    return data_file.UnitRows(index, keys, head["stored"].astype(np.int64))


# Marking: which records of the closed files are superseded, round by round.
#
# A round fills the offset map from where the one before it stopped, then looks up every record.
# What is to go is one bit a record, so files are written once, however many rounds it takes.

#: Rows that are looked at together; a multiple of 8, so that no byte of bits is shared.
_ROWS = 8_192


@dataclass(slots=True, eq=False)
class Candidate:
    """A closed file, and which of its records are to go."""

    part: data_file.FileView
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
        """Return which of some rows stay."""
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

    def stamped(self, index: data_file.IndexRows, clean_until: int) -> npt.NDArray[np.int64]:
        """Return the times when records were met, with those that are met just now."""
        met: npt.NDArray[np.int64] = index["met"]
        return np.where((met == NOT_MET) & (index["offset"] < clean_until), self.now, met)

    def over(self, met: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these are deletes whose time is over."""
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
    parts: tuple[data_file.FileView, ...],
    clean_until: int,
    digest_mark: bytes,
    rounds: Rounds,
    horizon: Horizon,
    check: Callable[[int], None],
) -> Marked:
    """Mark the records of closed files that go.

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
        parts: tuple[data_file.FileView, ...],
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

    def _dirty_rows(self) -> Iterator[tuple[int, data_file.KeyRows]]:
        for candidate in self.found.candidates:
            yield from self._rows(candidate, self._first_dirty(candidate))

    def _first_dirty(self, candidate: Candidate) -> int:
        meta = candidate.part.meta
        if meta.last < self.found.clean_until:
            return meta.count
        return candidate.part.file.row_of(meta, self.found.clean_until)

    def _rows(self, candidate: Candidate, first: int) -> Iterator[tuple[int, data_file.KeyRows]]:
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
