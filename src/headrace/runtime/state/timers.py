"""Timers in a state store: what is to be done when event time, or the clock, gets there."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from headrace.runtime.chunk import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator


_TIME = struct.Struct(">Q")
#: Times before 1970 come first, too.
_BIAS = 1 << 63


class Entries(Protocol):
    """What timers ask of a store."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set one entry."""

    def delete(self, key: bytes) -> None:
        """Delete one entry."""

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with keys from ``start`` to before ``stop``, in order."""


class Timers:
    """Timers of one store, in the order of their times; finding those that are due costs by them.

    Parameters
    ----------
    store
        Where they lie: a timer is an entry without a value of its own.
    family
        First byte of their keys.
    settled
        All timers up to this time have been taken.  Nothing looks there again: a store keeps what
        was deleted for a while, and would have to pass over it.
    passed
        How far time had come.  Where it may be behind ``settled``, which it is not unless given.
    early
        First byte of the keys of timers that are set when their time has passed, where that may
        happen: they are few, and looked for on their own.

    Examples
    --------
    >>> from headrace.runtime import MemoryStore
    >>> timers = Timers(MemoryStore(), b"t")
    >>> timers.set(20, b"b"), timers.set(10, b"a"), timers.set(30, b"c")
    (None, None, None)
    >>> list(timers.due(20)), list(timers.due(20))
    ([(10, b'a'), (20, b'b')], [])
    """

    def __init__(
        self,
        store: Entries,
        family: bytes,
        *,
        settled: int = NEVER,
        passed: int = NEVER,
        early: bytes = b"",
    ) -> None:
        self._store = store
        self._family = family
        self._start = -_BIAS if settled == NEVER else settled + 1
        self._passed = max(passed, settled)
        self._early = early

    def set(self, time: int, what: bytes) -> None:
        """Set a timer, ms since 1970; again is no change."""
        early = self._early and time <= self._passed
        self._store.put(_key(self._early if early else self._family, time, what), b"")

    def clear(self, time: int, what: bytes) -> None:
        """Take a timer back, also one that is not there."""
        self._store.delete(_key(self._family, time, what))
        if self._early:
            self._store.delete(_key(self._early, time, what))

    def due(self, time: int) -> Iterator[tuple[int, bytes]]:
        """Take the timers up to a time, that time included, oldest first."""
        found = [
            key
            for family, start in self._ranges()
            if start <= time
            for key, _ in self._store.range(_key(family, start, b""), _key(family, time + 1, b""))
        ]
        self._start, self._passed = max(self._start, time + 1), max(self._passed, time)
        for key in found:
            self._store.delete(key)
            yield _time_of(key), key[1 + _TIME.size :]

    def next(self) -> int | None:
        """Time of the first timer, None where there is none."""
        for family, start in self._ranges():
            stop = family + b"\xff" * (_TIME.size + 1)
            for key, _ in self._store.range(_key(family, start, b""), stop):
                return _time_of(key)
        return None

    def _ranges(self) -> list[tuple[bytes, int]]:
        """Return the families in the order of their times, and where each begins."""
        ordinary = (self._family, self._start)
        return [(self._early, -_BIAS), ordinary] if self._early else [ordinary]


def _key(family: bytes, time: int, what: bytes) -> bytes:
    return family + _TIME.pack(time + _BIAS) + what


def _time_of(key: bytes) -> int:
    (time,) = _TIME.unpack_from(key, 1)
    return int(time) - _BIAS
