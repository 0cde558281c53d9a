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

from headrace.client._key_index import KeyIndex, digests_of
from headrace.keys import EXACT_KEY, KEYS, keys_from_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.client.queues import MessageQueue
    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.layout import Int64s

__all__ = ["DELETE_MARKER", "Table"]

#: RIP-58 marks a delete by this property, as its producer refuses empty bodies.
DELETE_MARKER = "empty_body"
#: A row's number is that of its block and its place there.
_BLOCK_SHIFT = 32
#: Blocks with fewer rows are put together when there are many.
_SMALL = 4096
_MANY = 32
#: Rows that are out of date may be so many before blocks are written anew.
_DEAD = 65_536
_LARGEST = 256 << 20


@dataclass(slots=True, eq=False)
class _Block:
    """Rows that arrived together, or were put together."""

    number: int
    queue: MessageQueue
    keys: pa.BinaryArray
    #: Keys that are not text; None: all of them are.
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


class Table:
    r"""A table of keys and values that grows by blocks of messages; threads may share it.

    Memory: the bytes of keys and values with 4 to 8 bytes each, 30 to 70 bytes a key for the index,
    and at most as much again for values that are out of date.

    Examples
    --------
    >>> from headrace.client.queues import MessageQueue
    >>> from headrace.protocol.columns import decode_columns, encode_records
    >>> block = encode_records("t", 0, [b"1", b"2", b""], [b"KEYS\x01a\x02"] * 2 + [b"KEYS\x01b\x02"])
    >>> table = Table()
    >>> table.apply(MessageQueue("t", "broker-a", 0), decode_columns(block.data))
    >>> table.get(b"a"), table.get(b"b"), len(table)
    (b'2', None, 1)
    """

    def __init__(self) -> None:
        #: Messages without a key, which belong to no row.
        self.without_key = 0
        self._index = KeyIndex()
        self._blocks: dict[int, _Block] = {}
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
        """Value of a key, None if it has none."""
        with self._lock:
            row = self._index.find_one(key)
            if row < 0:
                return None
            block, place = self._blocks[row >> _BLOCK_SHIFT], row & 0xFFFF_FFFF
        value: bytes = block.bodies[place].as_py()
        return value

    def items(self, prefix: bytes = b"") -> Iterator[tuple[Any, bytes]]:
        """Keys and values as they are now, block by block."""
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
        """Take messages of a queue that follow those taken before: the last one of a key counts."""
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
                block = _Block(
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

    def _live(self, block: _Block) -> npt.NDArray[np.bool_]:
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

    def _drop(self, block: _Block) -> None:
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

    def _merge(self, blocks: list[_Block]) -> None:
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
        merged = _Block(next(self._numbers), blocks[0].queue, keys, exact, bodies, len(keys))
        self._index.move(digests_of(keys.to_pylist()), _rows(merged))
        for block in blocks:
            self._drop(block)
        if len(merged):
            self._blocks[merged.number] = merged


def _rows(block: _Block) -> Int64s:
    first = block.number << _BLOCK_SHIFT
    return np.arange(first, first + len(block), dtype=np.int64)


def _chosen(digests: tuple[Int64s, Int64s], places: Int64s) -> tuple[Int64s, Int64s]:
    return digests[0][places], digests[1][places]


def _last_of_each(digests: tuple[Int64s, Int64s]) -> Int64s:
    """Places of the last occurrence of each key, in their order."""
    low, high = digests
    if not len(low):
        return np.empty(0, np.int64)
    order = np.lexsort((high, low))
    ends = np.empty(len(order), bool)
    ends[-1] = True
    ends[:-1] = (low[order][1:] != low[order][:-1]) | (high[order][1:] != high[order][:-1])
    return np.sort(order[ends])


def _deletes(columns: MessageColumns) -> npt.NDArray[np.bool_]:
    """Which messages delete their key: by an empty body, or as RIP-58 marks it."""
    empty = pc.equal(pc.binary_length(columns.body), 0)
    marked = columns.property(DELETE_MARKER).is_valid()
    found: npt.NDArray[np.bool_] = pc.or_(empty, marked).to_numpy(zero_copy_only=False)
    return found
