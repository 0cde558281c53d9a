"""Windows of keys as numbers, and as the state's keys."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.chunk import Bools, Int64s
    from headrace.runtime.windows.assigning import Assigned

__all__ = ["FAMILY", "Places", "bounds_prefix"]

#: First byte of the state's keys; then end and start of the window, so that what is due comes
#: first, then the key.
FAMILY = b"w"
_BOUNDS = struct.Struct(">QQ")
_PREFIX = len(FAMILY) + _BOUNDS.size
_BIAS = 1 << 63
_WINDOW_BITS = 32
_WINDOW_MASK = (1 << _WINDOW_BITS) - 1


def bounds_prefix(end: int, start: int) -> bytes:
    """Give what the state's keys of a window begin with.

    Examples
    --------
    >>> bounds_prefix(20, 10) < bounds_prefix(30, 0)
    True
    """
    return FAMILY + _BOUNDS.pack(end + _BIAS, start + _BIAS)


class Places:
    """Numbers keys and windows, so that a window of a key, its *place*, is one integer.

    Examples
    --------
    >>> places = Places()
    >>> [place] = places.of([b"sa"], places.windows([10], [20])).tolist()
    >>> places.key(place), places.bounds(place)
    (b'sa', (10, 20))
    >>> places.read([places.entry(place)]) == [place]
    True
    """

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._key_numbers: dict[bytes, int] = {}
        self._windows: dict[tuple[int, int], int] = {}
        self._bounds: list[tuple[int, int]] = []
        #: What the state's keys of each window begin with.
        self._prefixes: list[bytes] = []

    def window(self, start: int, end: int) -> int:
        """Give the number of a window."""
        number = self._windows.setdefault((start, end), len(self._bounds))
        if number == len(self._bounds):
            self._bounds.append((start, end))
            self._prefixes.append(bounds_prefix(end, start))
        return number

    def windows(self, starts: Sequence[int], ends: Sequence[int]) -> Int64s:
        """Give the numbers of a few windows."""
        return np.array(list(map(self.window, starts, ends)), np.int64)

    def assigned(self, assigned: Assigned) -> Int64s:
        """Give the numbers of many windows."""
        # A window's start tells its end.
        starts, firsts, which = np.unique(assigned.starts, return_index=True, return_inverse=True)
        return self.windows(starts.tolist(), assigned.ends[firsts].tolist())[which]

    def keys(self, keys: Sequence[bytes]) -> Int64s:
        """Give the numbers of many keys."""
        known = self._key_numbers
        numbers = list(map(known.get, keys))
        if None in numbers:
            fresh = [key for key in dict.fromkeys(keys) if key not in known]
            known.update(zip(fresh, range(len(known), len(known) + len(fresh)), strict=True))
            self._keys += fresh
            numbers = list(map(known.__getitem__, keys))
        return np.array(numbers, np.int64)

    def of(self, keys: Sequence[bytes], windows: Int64s) -> Int64s:
        """Give the places of keys, each in the window beside it."""
        return self.join(self.keys(keys), windows)

    @staticmethod
    def join(keys: Int64s, windows: Int64s) -> Int64s:
        """Give the places of numbered keys, each in the window beside it."""
        return keys << _WINDOW_BITS | windows

    def key(self, place: int) -> bytes:
        """Give the key of a place."""
        return self._keys[place >> _WINDOW_BITS]

    def bounds(self, place: int) -> tuple[int, int]:
        """Give start and end of a place's window, or of a numbered one."""
        return self._bounds[place & _WINDOW_MASK]

    def ends(self, places: Int64s) -> Int64s:
        """Give the ends of many places' windows."""
        ends = np.array([end for _, end in self._bounds], np.int64)
        found: Int64s = ends[places & _WINDOW_MASK]
        return found

    def ending_before(self, time: int, places: Int64s) -> Bools:
        """Tell which places' windows end before a time."""
        return self.ends(places) < time

    @staticmethod
    def windows_of(places: Sequence[int]) -> Int64s:
        """Give the numbers of places' windows."""
        return np.array(places, np.int64) & _WINDOW_MASK

    def entry(self, place: int) -> bytes:
        """Give the state's key of a place."""
        return self._prefixes[place & _WINDOW_MASK] + self._keys[place >> _WINDOW_BITS]

    def entries(self, places: Sequence[int]) -> list[bytes]:
        """Give the state's keys of many places."""
        prefixes, keys = self._prefixes, self._keys
        return [prefixes[place & _WINDOW_MASK] + keys[place >> _WINDOW_BITS] for place in places]

    def read(self, entries: Sequence[bytes]) -> list[int]:
        """Give the places of many of the state's keys."""
        heads = [entry[1:_PREFIX] for entry in entries]
        numbers = {
            head: self.window(start - _BIAS, end - _BIAS)
            for head in dict.fromkeys(heads)
            for end, start in [_BOUNDS.unpack(head)]
        }
        windows = np.array([numbers[head] for head in heads], np.int64)
        found: list[int] = self.of([entry[_PREFIX:] for entry in entries], windows).tolist()
        return found
