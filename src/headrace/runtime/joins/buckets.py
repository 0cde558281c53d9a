"""Records of one side of a join, by stretch of time and key: one entry of the store for each.

Within a batch everything lies in memory: entries are read many at once before the first record is
handled, and written once at the end.  What ended meanwhile is never written.

============  ====================================================================
family       what lies there
============  ====================================================================
``l``, ``r``  stretch (u64) and key: number of full blocks (u32), open block
``L``, ``R``  stretch (u64), number of the block (u32) and key: a full block
============  ====================================================================
"""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.runtime.user_code import writing

if TYPE_CHECKING:
    from headrace.runtime.chunk import Int64s
    from headrace.runtime.state.interface import StateStore
    from headrace.serdes import Serde
    from headrace.topology.operators.core import Operator


_NUMBER = struct.Struct(">Q")
_BIAS = 1 << 63
_RECORD = struct.Struct("<q?I")
_BLOCK = struct.Struct(">QI")
#: Before an open block: how many are full.
_COUNT = struct.Struct("<I")
_NO_BLOCKS = _COUNT.pack(0)
#: A block with so much is full.
BLOCK_RECORDS = 128
BLOCK_BYTES = 1 << 15
#: So many places of a stretch are looked up without a thought whether the store holds it.
_FEW = 32


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits for others."""

    time: int
    value: Any
    #: Whether another one has met it.
    met: bool = False
    #: The value as the serde writes it, once that is known.
    raw: bytes | None = None
    #: Number of its block.
    block: int = 0


Bucket = dict[bytes, list[WaitingRecord]]
"""Records of one stretch of time, by key: those of each key's open block."""

Place = tuple[int, bytes]
"""Number of a stretch, and a key."""


@dataclass(slots=True)
class _Blocks:
    """The blocks of a place that are full."""

    #: How many there are; the open block has this number.
    count: int
    #: Those that have been read, or filled in this batch.
    held: dict[int, list[WaitingRecord]] = field(default_factory=dict)


class Buckets:
    """The records of one side.

    The records of a place, which is a stretch and a key, lie in blocks.  All but the last are full
    and do not change, so that a batch writes what it adds, however much there is.

    Parameters
    ----------
    operator
        The join, named in errors.
    store
        Where they lie.
    family
        First byte of the entries of open blocks; a capital for those that are full.
    serde
        Writes their values.
    done
        Stretches with numbers below this have ended.
    """

    def __init__(
        self, operator: Operator, store: StateStore, family: bytes, serde: Serde[Any], done: int
    ) -> None:
        self._operator = operator
        self._store = store
        self._family = family
        self._serde = serde
        self._done = done
        self._held: dict[int, Bucket] = {}
        #: Numbers of what is held, as a heap.
        self._numbers: list[int] = []
        self._full: dict[Place, _Blocks] = {}
        self._read: dict[int, set[bytes]] = defaultdict(set)
        #: Whether the store held a stretch when the batch began.
        self._stored: dict[int, bool] = {}
        #: What the store holds below this number has been deleted.
        self._cleared = done
        self._changed: dict[int, set[bytes]] = defaultdict(set)
        self._changed_blocks: set[tuple[int, bytes, int]] = set()
        #: Whether some record came without the bytes of its value.
        self._unwritten = False

    def load(self, numbers: Int64s, keys: Sequence[bytes], *, whole: bool = True) -> None:
        """Read the entries of places that are not known yet, many at once.

        Without ``whole`` the open blocks are enough: records are only added.
        """
        fresh = self._unknown(numbers, keys)
        found = self._store.get_many([self._prefix(number) + key for number, key in fresh])
        present = [
            (place, entry) for place, entry in zip(fresh, found, strict=True) if entry is not None
        ]
        records = decoded([entry[_COUNT.size :] for _, entry in present], self._serde)
        for (place, entry), own in zip(present, records, strict=True):
            (count,) = _COUNT.unpack_from(entry)
            if count:
                self._full[place] = _Blocks(count)
                _note_block(own, count)
            self._bucket(place[0])[place[1]] = own
        if whole and self._full:
            wanted = zip(numbers.tolist(), keys, strict=True)
            blocks = ((place, self._full[place]) for place in wanted if place in self._full)
            self.load_blocks((*place, n) for place, full in blocks for n in range(full.count))

    def _unknown(self, numbers: Int64s, keys: Sequence[bytes]) -> list[Place]:
        """Return the places that have not been read and that the store may hold."""
        if not keys:
            return []
        order = np.argsort(numbers, kind="stable")
        distinct, starts = np.unique(numbers[order], return_index=True)
        found: list[Place] = []
        for number, own in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
            if number < self._done or not self._may_hold(number, len(own)):
                continue
            read = self._read[number]
            fresh = dict.fromkeys([key for i in own.tolist() if (key := keys[i]) not in read])
            read.update(fresh)
            found += [(number, key) for key in fresh]
        return found

    def _may_hold(self, number: int, wanted: int) -> bool:
        """Return whether the store held anything of a stretch when the batch began.

        It is asked only where so much is wanted that a look at the whole stretch is worth it.
        """
        if number not in self._stored and wanted >= _FEW:
            bounds = self._prefix(number), self._prefix(number + 1)
            self._stored[number] = self._store.began_with(*bounds)
        return self._stored.get(number, True)

    def load_blocks(self, blocks: Iterable[tuple[int, bytes, int]]) -> None:
        """Read some of the full blocks of places that were loaded before."""
        missing = [
            (number, key, block)
            for number, key, block in dict.fromkeys(blocks)
            if (full := self._full.get((number, key))) is not None
            and block < full.count
            and block not in full.held
        ]
        if not missing:
            return
        found = self._store.get_many([self._block_key(*one) for one in missing])
        read = decoded([entry for entry in found if entry is not None], self._serde)
        for (number, key, block), records in zip(missing, read, strict=True):
            _note_block(records, block)
            self._full[number, key].held[block] = records

    def get(self, number: int, key: bytes) -> Iterable[WaitingRecord] | None:
        """Return what a place holds that was loaded before, in the order in which it came."""
        bucket = self._held.get(number)
        records = None if bucket is None else bucket.get(key)
        if records is None or not self._full or (number, key) not in self._full:
            return records
        full = self._full[number, key].held
        return chain(*(full[block] for block in sorted(full)), records)

    def block(self, number: int, key: bytes, block: int) -> list[WaitingRecord]:
        """Return one block of a place that was loaded before."""
        full = self._full.get((number, key))
        if full is not None and block < full.count:
            return full.held[block]
        return self._held.get(number, {}).get(key, [])

    def add(self, number: int, key: bytes, record: WaitingRecord) -> None:
        """Add a record to a place that was loaded before."""
        if record.raw is None:
            self._unwritten = True
        bucket = self._held.get(number)
        if bucket is None:
            bucket = self._bucket(number)
        records = bucket.get(key)
        if records is None:
            bucket[key] = [record]
        else:
            if self._full and (full := self._full.get((number, key))) is not None:
                record.block = full.count
            records.append(record)
            if len(records) == BLOCK_RECORDS:
                self._changed_blocks.add((number, key, self._close_block(number, key)))
        self._changed[number].add(key)

    def touch(self, number: int, key: bytes, block: int) -> None:
        """Note that a record of a block was changed."""
        full = self._full.get((number, key)) if self._full else None
        if full is not None and block < full.count:
            self._changed_blocks.add((number, key, block))
        else:
            self._changed[number].add(key)

    def end(self, limit: int, *, wanted: bool) -> list[tuple[int, bytes, list[WaitingRecord]]]:
        """Drop the stretches below a limit; return what they held where it is wanted."""
        if limit <= self._done:
            return []
        if wanted:
            self._read_before(limit)
        self._done = limit
        ended: list[tuple[int, bytes, list[WaitingRecord]]] = []
        while self._numbers and self._numbers[0] < limit:
            number = heapq.heappop(self._numbers)
            self._changed.pop(number, None)
            if wanted:
                ended += [(number, k, list(self.get(number, k) or ())) for k in self._held[number]]
            del self._held[number]
        return ended

    def _read_before(self, limit: int) -> None:
        """Read all stretches below a limit that have not ended yet."""
        stored = self._store.range(self._prefix(self._done), self._prefix(limit))
        places = [self._place(entry) for entry, _ in stored]
        numbers = np.array([number for number, _ in places], np.int64)
        self.load(numbers, [key for _, key in places])

    def _clear(self) -> None:
        """Delete from the store what has ended."""
        first, self._cleared = self._cleared, self._done
        stored = list(self._store.range(self._prefix(first), self._prefix(self._done)))
        self._store.put_many([entry for entry, _ in stored], [None] * len(stored))
        for entry, value in stored:
            if not value.startswith(_NO_BLOCKS):
                place, (count,) = self._place(entry), _COUNT.unpack_from(value)
                for block in range(count):
                    self._store.delete(self._block_key(*place, block))

    def flush(self) -> None:
        """Write what changed."""
        if self._cleared < self._done:
            self._clear()
        blocks = [place for place in self._changed_blocks if place[0] >= self._done]
        self._changed_blocks.clear()
        full = [self._full[number, key].held[block] for number, key, block in blocks]
        if self._unwritten:
            heads = [self._held[n][key] for n, keys in self._changed.items() for key in keys]
            with writing(self._operator, f"its state (serde {self._serde!r})"):
                raw_values([record for one in (*heads, *full) for record in one], self._serde)
        self._store.put_many([self._block_key(*one) for one in blocks], list(map(packed, full)))
        for number, keys in self._changed.items():
            self._put(number, list(keys))
        self._changed.clear()

    def _put(self, number: int, keys: list[bytes]) -> None:
        prefix, bucket = self._prefix(number), self._held[number]
        entries = [prefix + key for key in keys]
        values = [self._opened(number, key, bucket[key]) for key in keys]
        if self._stored.get(number) is False:
            self._store.add_many(entries, values)
        else:
            self._store.put_many(entries, values)

    def _opened(self, number: int, key: bytes, records: list[WaitingRecord]) -> bytes:
        """Write the open block of a place, or begin a new one where it has become too long."""
        entry = packed(records)
        if len(entry) > BLOCK_BYTES:
            self._store.put(self._block_key(number, key, self._close_block(number, key)), entry)
            entry = b""
        if self._full and (full := self._full.get((number, key))) is not None:
            return _COUNT.pack(full.count) + entry
        return _NO_BLOCKS + entry

    def _bucket(self, number: int) -> Bucket:
        bucket = self._held.get(number)
        if bucket is None:
            bucket = self._held[number] = {}
            heapq.heappush(self._numbers, number)
        return bucket

    def _close_block(self, number: int, key: bytes) -> int:
        """Begin a new open block, and return the number of the one that is full."""
        full = self._full.setdefault((number, key), _Blocks(0))
        block, full.count = full.count, full.count + 1
        full.held[block], self._held[number][key] = self._held[number][key], []
        return block

    def _prefix(self, number: int) -> bytes:
        return self._family + _NUMBER.pack(number + _BIAS)

    def _block_key(self, number: int, key: bytes, block: int) -> bytes:
        return self._family.upper() + _BLOCK.pack(number + _BIAS, block) + key

    def _place(self, entry: bytes) -> Place:
        (number,) = _NUMBER.unpack_from(entry, len(self._family))
        return number - _BIAS, entry[len(self._family) + _NUMBER.size :]


def _note_block(records: list[WaitingRecord], block: int) -> None:
    for record in records:
        record.block = block


def raw_values(records: list[WaitingRecord], serde: Serde[Any]) -> None:
    """Write the values of the records that have not been written yet, many at once."""
    fresh = [record for record in records if record.raw is None]
    if fresh:
        written = serde.serialize_many([record.value for record in fresh]).to_pylist()
        for record, raw in zip(fresh, written, strict=True):
            record.raw = raw


def packed(records: list[WaitingRecord]) -> bytes:
    """Write the records of an entry, whose values have been written."""
    if len(records) == 1:
        (record,) = records
        raw = record.raw
        assert raw is not None
        return _RECORD.pack(record.time, record.met, len(raw)) + raw
    parts: list[bytes] = []
    for record in records:
        raw = record.raw
        assert raw is not None
        parts.append(_RECORD.pack(record.time, record.met, len(raw)))
        parts.append(raw)
    return b"".join(parts)


def decoded(entries: list[bytes], serde: Serde[Any]) -> list[list[WaitingRecord]]:
    """Read entries, the values of all of them at once."""
    lists = [_unpacked(entry) for entry in entries]
    records = [record for records in lists for record in records]
    if records:
        values = serde.deserialize_many(pa.array([record.raw for record in records], pa.binary()))
        for record, value in zip(records, values, strict=True):
            record.value = value
    return lists


def _unpacked(entry: bytes) -> list[WaitingRecord]:
    records: list[WaitingRecord] = []
    at = 0
    while at < len(entry):
        time, met, size = _RECORD.unpack_from(entry, at)
        at += _RECORD.size
        records.append(WaitingRecord(time, None, met, entry[at : at + size]))
        at += size
    return records
