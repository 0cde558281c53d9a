"""Timers in a state store: what is to be done when event time, or the clock, gets there."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Entries", "Timers"]

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
        """Give the entries with keys from ``start`` to before ``stop``, in order."""


class Timers:
    """Timers of one store, in the order of their times; finding those that are due costs by them.

    Parameters
    ----------
    store
        Where they lie: a timer is an entry without a value of its own.
    family
        First byte of their keys.

    Examples
    --------
    >>> from headrace.runtime.state import EmptyBase, StateStore
    >>> timers = Timers(StateStore(EmptyBase()), b"t")
    >>> timers.set(20, b"b"), timers.set(10, b"a"), timers.set(30, b"c")
    (None, None, None)
    >>> list(timers.due(20)), list(timers.due(20))
    ([(10, b'a'), (20, b'b')], [])
    """

    def __init__(self, store: Entries, family: bytes) -> None:
        self._store = store
        self._family = family

    def set(self, time: int, what: bytes) -> None:
        """Set a timer, ms since 1970; again is no change."""
        self._store.put(self._key(time, what), b"")

    def clear(self, time: int, what: bytes) -> None:
        """Take a timer back, also one that is not there."""
        self._store.delete(self._key(time, what))

    def due(self, time: int) -> Iterator[tuple[int, bytes]]:
        """Take the timers up to a time, that time included, oldest first."""
        start, stop = self._key(-_BIAS, b""), self._key(time + 1, b"")
        for key, _ in list(self._store.range(start, stop)):
            self._store.delete(key)
            (at,) = _TIME.unpack_from(key, len(self._family))
            yield at - _BIAS, key[len(self._family) + _TIME.size :]

    def next(self) -> int | None:
        """Time of the first timer, None where there is none."""
        start, stop = self._key(-_BIAS, b""), self._family + b"\xff" * (_TIME.size + 1)
        for key, _ in self._store.range(start, stop):
            (at,) = _TIME.unpack_from(key, len(self._family))
            return int(at) - _BIAS
        return None

    def _key(self, time: int, what: bytes) -> bytes:
        return self._family + _TIME.pack(time + _BIAS) + what
