"""The last value of each key of a topic, in Arrow columns; no I/O."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import EXACT_KEY, KEYS, keys_from_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.layout import Int64s
    from headrace.protocol.routes import MessageQueue


# A hash index from keys to rows, in arrays: no Python object per key; no I/O.

_FREE, _DELETED = -1, -2
_LEAST = 1024
#: Share of the slots that may be used before the index grows.
_FULL = 0.8
#: The same after it has grown.
_ROOMY = 0.7
#: Bytes of a slot: two halves of a key's digest, and its row.
_SLOT = 24


def digests_of(keys: list[bytes]) -> tuple[Int64s, Int64s]:
    """Digest keys to 128 bits each, in two halves.

    Python's hash of bytes is keyed with a secret of the process, so nobody outside can choose keys
    that collide.
    """
    count = len(keys)
    low = np.fromiter(map(hash, keys), np.int64, count)
    high = np.fromiter((hash(b"\0" + key) for key in keys), np.int64, count)
    return low, high


class RowIndex:
    """Finds rows by key, all keys of a call at once, with open addressing.

    Examples
    --------
    >>> index = RowIndex()
    >>> index.put(digests_of([b"a", b"b"]), np.array([10, 11])).tolist()
    []
    >>> index.put(digests_of([b"b"]), np.array([12])).tolist(), len(index)
    ([11], 2)
    >>> index.find(digests_of([b"b", b"c"])).tolist()
    [12, -1]
    """

    def __init__(self) -> None:
        self._clear(_LEAST)

    def __len__(self) -> int:
        return self._live

    @property
    def size(self) -> int:
        """Memory that the index takes."""
        return _SLOT * len(self._rows)

    def find(self, digests: tuple[Int64s, Int64s]) -> Int64s:
        """Return the row of each key; -1 where a key has none."""
        slots = self._slots(digests)
        rows = np.where(slots < 0, _FREE, self._rows[slots])
        return np.maximum(rows, _FREE)

    def find_one(self, key: bytes) -> int:
        """Return the row of one key, or -1; arrays would cost ten times as much."""
        low, high = hash(key), hash(b"\0" + key)
        slot = low & self._mask
        while (row := int(self._rows.item(slot))) != _FREE:
            if self._low.item(slot) == low and self._high.item(slot) == high:
                return max(row, _FREE)
            slot = (slot + 1) & self._mask
        return _FREE

    def put(self, digests: tuple[Int64s, Int64s], rows: Int64s) -> Int64s:
        """Set the rows of keys, each given once, and return the rows that they had."""
        self._reserve(len(rows))
        low, high = digests
        replaced: list[Int64s] = []
        at = self._first(low)
        todo = np.arange(len(rows))
        while len(todo):
            slots = at[todo]
            held = self._rows[slots]
            free = held == _FREE
            same = ~free & (self._low[slots] == low[todo]) & (self._high[slots] == high[todo])
            old = held[same]
            replaced.append(old[old >= 0])
            self._live += int(np.count_nonzero(old == _DELETED))
            self._rows[slots[same]] = rows[todo[same]]
            lost = self._claim(slots[free], todo[free], digests, rows)
            todo = np.concatenate([lost, todo[~free & ~same]])
            at[todo] = (at[todo] + 1) & self._mask
        return np.concatenate(replaced) if replaced else np.empty(0, np.int64)

    def move(self, digests: tuple[Int64s, Int64s], rows: Int64s) -> None:
        """Replace the rows of keys that have one."""
        self._rows[self._slots(digests)] = rows

    def remove(self, digests: tuple[Int64s, Int64s]) -> Int64s:
        """Forget keys, and return the rows that they had."""
        slots = self._slots(digests)
        slots = slots[slots >= 0]
        old = self._rows[slots]
        self._rows[slots] = _DELETED
        rows: Int64s = old[old >= 0]
        self._live -= len(rows)
        return rows

    def _claim(
        self, slots: Int64s, keys: Int64s, digests: tuple[Int64s, Int64s], rows: Int64s
    ) -> Int64s:
        """Put keys into free slots, and return those whose slot went to another key."""
        self._rows[slots] = rows[keys]
        won = self._rows[slots] == rows[keys]
        winners, places = keys[won], slots[won]
        self._low[places] = digests[0][winners]
        self._high[places] = digests[1][winners]
        self._live += len(winners)
        self._used += len(winners)
        lost: Int64s = keys[~won]
        return lost

    def _slots(self, digests: tuple[Int64s, Int64s]) -> Int64s:
        """Return the slot of each key; -1 where there is none."""
        low, high = digests
        found = np.full(len(low), -1, np.int64)
        at = self._first(low)
        todo = np.arange(len(low))
        while len(todo):
            slots = at[todo]
            held = self._rows[slots] != _FREE
            same = held & (self._low[slots] == low[todo]) & (self._high[slots] == high[todo])
            found[todo[same]] = slots[same]
            todo = todo[held & ~same]
            at[todo] = (at[todo] + 1) & self._mask
        return found

    def _first(self, low: Int64s) -> Int64s:
        first: Int64s = low & self._mask
        return first

    def _reserve(self, more: int) -> None:
        if self._used + more <= _FULL * len(self._rows):
            return
        live = self._rows >= 0
        low, high, rows = self._low[live], self._high[live], self._rows[live]
        size = _LEAST
        while _ROOMY * size < len(rows) + more:
            size *= 2
        self._clear(size)
        self.put((low, high), rows)

    def _clear(self, size: int) -> None:
        self._mask = size - 1
        self._low: Any = np.zeros(size, np.int64)
        self._high: Any = np.zeros(size, np.int64)
        self._rows: Any = np.full(size, _FREE, np.int64)
        self._live = 0
        #: Slots that are not free, those of removed keys included.
        self._used = 0


#: RIP-58 marks a delete by this property, as its producer refuses empty bodies.
DELETE_MARKER = "empty_body"
#: A row's number is made of its block's number, above these bits, and its place in the block.
_BLOCK_SHIFT = 32
#: Blocks with fewer rows are merged when there are many.
_SMALL = 4096
_MANY = 32
#: Number of out-of-date rows from which blocks are written anew.
_DEAD = 65_536
_LARGEST = 256 << 20


@dataclass(slots=True, eq=False)
class _RowBlock:
    """Rows that arrived together, or were merged."""

    number: int
    queue: MessageQueue
    keys: pa.BinaryArray
    #: Keys that are not text; None if all of them are.
    exact: pa.BinaryArray | None
    bodies: pa.BinaryArray
    #: Rows that still hold the last value of their key.
    live: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        exact = 0 if self.exact is None else self.exact.nbytes
        return int(self.keys.nbytes + self.bodies.nbytes + exact)

    @property
    def sparse(self) -> bool:
        return 2 * self.live < len(self)

    def taken(self, places: Int64s) -> tuple[pa.BinaryArray, pa.BinaryArray | None, pa.BinaryArray]:
        chosen = pa.array(places)
        exact = None if self.exact is None else self.exact.take(chosen)
        return self.keys.take(chosen), exact, self.bodies.take(chosen)


class KeyedRows:
    r"""A table of keys and values that grows by blocks of messages; threads may share it.

    Memory: the bytes of keys and values with 4 to 8 bytes each, 30 to 70 bytes a key for the index,
    and at most as much again for values that are out of date.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> from headrace.protocol.columns import decode_columns
    >>> from headrace.protocol.records import encode_records
    >>> block = encode_records("t", 0, [b"1", b"2", b""], [b"KEYS\x01a\x02"] * 2 + [b"KEYS\x01b\x02"])
    >>> table = KeyedRows()
    >>> table.apply(MessageQueue("t", "broker-a", 0), decode_columns(block.data))
    >>> table.get(b"a"), table.get(b"b"), len(table)
    (b'2', None, 1)
    """

    def __init__(self) -> None:
        #: Messages without a key, which belong to no row.
        self.without_key = 0
        self._index = RowIndex()
        self._blocks: dict[int, _RowBlock] = {}
        self._numbers = itertools.count()
        self._dead = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def size(self) -> int:
        """Memory that the table takes, out-of-date rows too."""
        with self._lock:
            return self._index.size + sum(block.size for block in self._blocks.values())

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
        with self._lock:
            row = self._index.find_one(key)
            if row < 0:
                return None
            block, place = self._blocks[row >> _BLOCK_SHIFT], row & 0xFFFF_FFFF
        value: bytes = block.bodies[place].as_py()
        return value

    def items(self, prefix: bytes = b"") -> Iterator[tuple[Any, bytes]]:
        """Yield keys and values as they are now, block by block."""
        with self._lock:
            parts = [(block, self._live(block)) for block in self._blocks.values()]
        for block, live in parts:
            keys, exact, bodies = block.taken(np.flatnonzero(live))
            if prefix:
                chosen = pc.starts_with(keys, pattern=prefix)
                keys, bodies = keys.filter(chosen), bodies.filter(chosen)
                exact = None if exact is None else exact.filter(chosen)
            if exact is None:
                exact = pa.nulls(len(keys), pa.binary())
            yield from zip(keys_from_columns(keys, exact), bodies.to_pylist(), strict=True)

    def apply(self, queue: MessageQueue, columns: MessageColumns) -> None:
        """Take a queue's messages that follow those taken before; each key's last one counts."""
        keys = columns.property(KEYS)
        present = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        texts = keys.take(pa.array(present)).to_pylist()
        digests = digests_of(texts)
        last = _last_of_each(digests)
        deleted = _deletes(columns)[present[last]]
        gone, kept = last[deleted], last[~deleted]
        places = pa.array(present[kept])
        exact = columns.property(EXACT_KEY).take(places)
        with self._lock:
            self.without_key += len(keys) - len(present)
            self._forget(self._index.remove(_chosen(digests, gone)))
            if len(kept):
                block = _RowBlock(
                    next(self._numbers),
                    queue,
                    keys.take(places),
                    None if exact.null_count == len(exact) else exact,
                    columns.body.take(places),
                    len(kept),
                )
                self._blocks[block.number] = block
                self._forget(self._index.put(_chosen(digests, kept), _rows(block)))
            self._tidy(queue)

    def reset(self, queue: MessageQueue) -> None:
        """Forget everything that came from a queue."""
        with self._lock:
            for block in [b for b in self._blocks.values() if b.queue == queue]:
                digests = digests_of(block.keys.to_pylist())
                live = self._index.find(digests) == _rows(block)
                self._index.remove(_chosen(digests, np.flatnonzero(live)))
                self._drop(block)

    # Inside, with the lock held

    def _live(self, block: _RowBlock) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._index.find(
            digests_of(block.keys.to_pylist())
        ) == _rows(block)
        return found

    def _forget(self, rows: Int64s) -> None:
        numbers, counts = np.unique(rows >> _BLOCK_SHIFT, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            block = self._blocks[number]
            block.live -= count
            self._dead += count
            if not block.live:
                self._drop(block)

    def _drop(self, block: _RowBlock) -> None:
        del self._blocks[block.number]
        self._dead -= len(block) - block.live

    def _tidy(self, queue: MessageQueue) -> None:
        mine = [block for block in self._blocks.values() if block.queue == queue]
        small = [block for block in mine if len(block) < _SMALL]
        if len(small) > _MANY:
            self._merge(small)
        if self._dead > max(_DEAD, len(self._index)):
            for block in [block for block in self._blocks.values() if block.sparse]:
                self._merge([block])

    def _merge(self, blocks: list[_RowBlock]) -> None:
        """Write the live rows of blocks of one queue into one block."""
        if sum(block.size for block in blocks) > _LARGEST and len(blocks) > 1:
            return
        parts = [block.taken(np.flatnonzero(self._live(block))) for block in blocks]
        keys = pa.concat_arrays([part[0] for part in parts])
        exact = None
        if any(part[1] is not None for part in parts):
            exact = pa.concat_arrays(
                [pa.nulls(len(k), pa.binary()) if e is None else e for k, e, _ in parts]
            )
        bodies = pa.concat_arrays([part[2] for part in parts])
        merged = _RowBlock(next(self._numbers), blocks[0].queue, keys, exact, bodies, len(keys))
        self._index.move(digests_of(keys.to_pylist()), _rows(merged))
        for block in blocks:
            self._drop(block)
        if len(merged):
            self._blocks[merged.number] = merged


def _rows(block: _RowBlock) -> Int64s:
    first = block.number << _BLOCK_SHIFT
    return np.arange(first, first + len(block), dtype=np.int64)


def _chosen(digests: tuple[Int64s, Int64s], places: Int64s) -> tuple[Int64s, Int64s]:
    return digests[0][places], digests[1][places]


def _last_of_each(digests: tuple[Int64s, Int64s]) -> Int64s:
    """Return the places of the last occurrence of each key, in order."""
    low, high = digests
    if not len(low):
        return np.empty(0, np.int64)
    order = np.lexsort((high, low))
    ends = np.empty(len(order), bool)
    ends[-1] = True
    ends[:-1] = (low[order][1:] != low[order][:-1]) | (high[order][1:] != high[order][:-1])
    return np.sort(order[ends])


def _deletes(columns: MessageColumns) -> npt.NDArray[np.bool_]:
    """Return which messages delete their key: by an empty body, or as RIP-58 marks it."""
    empty = pc.equal(pc.binary_length(columns.body), 0)
    marked = columns.property(DELETE_MARKER).is_valid()
    found: npt.NDArray[np.bool_] = pc.or_(empty, marked).to_numpy(zero_copy_only=False)
    return found
