"""A hash index from keys to rows, in arrays: no Python object per key; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from headrace.protocol.layout import Int64s

__all__ = ["KeyIndex", "digests_of"]

_FREE, _DELETED = -1, -2
_LEAST = 1024
#: Used slots that the index may have, as a part of all, before it grows.
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


class KeyIndex:
    """Rows by key: open addressing, all keys of a call at once.

    Examples
    --------
    >>> index = KeyIndex()
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
        """Row of each key; -1 where a key has none."""
        slots = self._slots(digests)
        rows = np.where(slots < 0, _FREE, self._rows[slots])
        return np.maximum(rows, _FREE)

    def find_one(self, key: bytes) -> int:
        """Row of one key, -1 if it has none; arrays would cost ten times as much."""
        low, high = hash(key), hash(b"\0" + key)
        slot = low & self._mask
        while (row := int(self._rows.item(slot))) != _FREE:
            if self._low.item(slot) == low and self._high.item(slot) == high:
                return max(row, _FREE)
            slot = (slot + 1) & self._mask
        return _FREE

    def put(self, digests: tuple[Int64s, Int64s], rows: Int64s) -> Int64s:
        """Set the rows of keys, each of which is given once; the rows they had are returned."""
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
        """Give other rows to keys that have one."""
        self._rows[self._slots(digests)] = rows

    def remove(self, digests: tuple[Int64s, Int64s]) -> Int64s:
        """Forget keys; the rows they had are returned."""
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
        """Put keys into free slots; of two that want one slot, the one that did not get it."""
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
        """Slot of each key; -1 where there is none."""
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
        #: Slots that are not free: also those of keys that were removed.
        self._used = 0
