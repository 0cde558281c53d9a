"""Timers of a user's processor: set for a key, fired in the order of their times."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from headrace.runtime.low_level.cells import key_of_entry, name_part
from headrace.runtime.low_level.times import milliseconds, rounded_up
from headrace.runtime.state.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from headrace.runtime.low_level.cells import Cells
    from headrace.runtime.low_level.states import Scope

__all__ = ["Alarms", "KeyTimer"]


class Alarms:
    """All timers of one clock.

    Parameters
    ----------
    cells
        Where they lie.
    family
        First byte of their keys.
    early
        The same of those that are set when their time has passed.
    settled, passed
        Time up to which all have fired, and how far time had come.
    """

    def __init__(
        self, cells: Cells, family: bytes, early: bytes, *, settled: int, passed: int
    ) -> None:
        self._timers = Timers(cells, family, settled=settled, passed=passed, early=early)
        self._family = family
        #: Timers that fire now, as a heap, and which of them are still set.
        self._firing: list[tuple[int, bytes]] | None = None
        self._living: set[tuple[int, bytes]] = set()
        self._limit = 0
        self._at = 0

    def set(self, time: int, what: bytes, step: int) -> None:
        """Set a timer; one that a firing timer sets fires behind it, also now."""
        if self._firing is None:
            self._timers.set(time, what)
            return
        time = max(time, self._at + step)
        if time > self._limit:
            self._timers.set(time, what)
        elif (time, what) not in self._living:
            self._living.add((time, what))
            heapq.heappush(self._firing, (time, what))

    def clear(self, time: int, what: bytes) -> None:
        """Take a timer back."""
        self._living.discard((time, what))
        self._timers.clear(time, what)

    def due(self, limit: int) -> Iterator[tuple[int, bytes, str]]:
        """Take the timers up to a time, oldest first: time, record key, name."""
        self._firing = list(self._timers.due(limit))
        self._living = set(self._firing)
        self._limit = limit
        try:
            while self._firing:
                item = heapq.heappop(self._firing)
                if item not in self._living:
                    continue
                self._living.discard(item)
                self._at, what = item
                key = key_of_entry(self._family + bytes(8) + what)
                yield self._at, key, what[4 + len(key) + 1 :].decode()
        finally:
            self._firing = None

    def next(self) -> int | None:
        """Time of the first timer."""
        return self._timers.next()


class KeyTimer:
    """A declared timer, of the key that is handled.

    Parameters
    ----------
    name
        Its name.
    alarms
        The timers of its clock.
    scope
        Whose timer it is.
    step
        Fires at multiples of this, ms.
    """

    def __init__(self, name: str, alarms: Alarms, scope: Scope, step: int) -> None:
        self._tail = name_part(name)
        self._alarms = alarms
        self._scope = scope
        self._step = step

    def set(self, time: datetime) -> None:
        """Have it fire at a time."""
        self._alarms.set(self._rounded(time), self._what(), self._step)

    def clear(self, time: datetime) -> None:
        """Take a time back."""
        self._alarms.clear(self._rounded(time), self._what())

    def _rounded(self, time: datetime) -> int:
        return rounded_up(milliseconds(time), self._step)

    def _what(self) -> bytes:
        return self._scope.head + self._tail
