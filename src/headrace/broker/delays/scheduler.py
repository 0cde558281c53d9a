"""Which waiting messages are due: a state machine without I/O and without a clock of its own.

Messages of one delay level are due in the order of their offsets, so a level needs no more than
the next few.  Messages with times of their own lie in a heap, each as one number.  They are
delivered in the order of (time, offset), so what was delivered is told by two numbers: all before
``scanned`` whose (time, offset) is not behind ``cursor``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

__all__ = ["Plan", "Progress", "Scheduler"]

_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class Progress(msgspec.Struct, frozen=True):
    """What was delivered so far; stored with every delivery.

    >>> Progress(levels={1: 7}).level(1), Progress().level(1)
    (7, 0)
    """

    #: Next offset of each level's queue.
    levels: dict[int, int] = msgspec.field(default_factory=dict)
    #: Timers from here on were not looked at.
    scanned: int = 0
    #: All timers before this offset were delivered.
    floor: int = 0
    #: Time and offset of the timer that was delivered last.
    cursor: tuple[int, int] = (0, -1)

    def level(self, level: int) -> int:
        """Next offset of a level's queue."""
        return self.levels.get(level, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """An instruction: deliver these as one unit, with the progress that follows."""

    #: First offset, and one past the last, by level.
    levels: dict[int, tuple[int, int]]
    #: Time and offset of timers.
    timers: list[tuple[int, int]]
    progress: Progress

    def __len__(self) -> int:
        return len(self.timers) + sum(last - first for first, last in self.levels.values())


@dataclass(slots=True)
class _Level:
    span: int
    #: Next offset to hear of.
    known: int
    #: Offset and store time of the next messages.
    waiting: deque[tuple[int, int]] = field(default_factory=deque)


class Scheduler:
    """Says what is due.

    Parameters
    ----------
    spans
        How long messages of each level wait, ms.
    progress
        What was delivered by an earlier run.

    Examples
    --------
    >>> scheduler = Scheduler([1000])
    >>> scheduler.stored(1, [(0, 50), (1, 80)])
    >>> scheduler.timers([(700, 0)], scanned=1)
    >>> scheduler.next_due(now=100)
    700
    >>> plan = scheduler.plan(now=1050, limit=10)
    >>> plan.levels, plan.timers, plan.progress.levels
    ({1: (0, 1)}, [(700, 0)], {1: 1})
    """

    def __init__(self, spans: Sequence[int], progress: Progress | None = None) -> None:
        self._progress = progress or Progress()
        self._levels = {
            level: _Level(span, self._progress.level(level))
            for level, span in enumerate(spans, start=1)
        }
        self._heap: list[int] = []
        self._scanned = self._progress.floor

    @property
    def progress(self) -> Progress:
        """What was delivered so far."""
        return self._progress

    @property
    def pending_timers(self) -> int:
        """Timers that wait."""
        return len(self._heap)

    @property
    def scanned(self) -> int:
        """Next offset of the timers' queue to hear of."""
        return self._scanned

    def oldest_timer(self) -> int:
        """Offset before which no timer waits; any thread may ask."""
        waiting = self._heap.copy()
        return min((entry & _OFFSET_MASK for entry in waiting), default=self._scanned)

    def wanted(self, level: int, most: int) -> tuple[int, int]:
        """Next offset of a level to hear of, and how many messages at most."""
        line = self._levels[level]
        return line.known, max(0, most - len(line.waiting))

    def stored(self, level: int, messages: Iterable[tuple[int, int]]) -> None:
        """Hear of a level's next messages: offset and store time of each."""
        line = self._levels[level]
        for offset, at in messages:
            if offset >= line.known:
                line.waiting.append((offset, at))
                line.known = offset + 1

    def lost(self, level: int, first: int) -> None:
        """Hear that a level's messages before an offset are gone."""
        line = self._levels[level]
        line.known = max(line.known, first)

    def timers(self, found: Iterable[tuple[int, int]], scanned: int) -> None:
        """Hear of timers, each with time and offset, and where to look next."""
        before, cursor = self._progress.scanned, self._progress.cursor
        for due, offset in found:
            if offset >= before or (due, offset) > cursor:
                heapq.heappush(self._heap, due << _OFFSET_BITS | offset)
        self._scanned = scanned

    def next_due(self, now: int) -> int | None:
        """Time of the next delivery, None when nothing waits."""
        dues = [
            _due(line, line.waiting[0][1], now) for line in self._levels.values() if line.waiting
        ]
        if self._heap:
            dues.append(self._heap[0] >> _OFFSET_BITS)
        return min(dues, default=None)

    def plan(self, now: int, limit: int) -> Plan:
        """Take out what is due, about ``limit`` messages at most; tell when it was delivered."""
        levels = {}
        for level, line in self._levels.items():
            count = _count_due(line, now, limit)
            limit -= count
            if count:
                levels[level] = (line.waiting[0][0], line.waiting[count - 1][0] + 1)
        timers = self._take_timers(now, limit)
        return Plan(levels, timers, self._progress_after(levels, timers))

    def _take_timers(self, now: int, limit: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        cursor = self._progress.cursor
        if self._scanned < self._progress.scanned:
            # Not everything was seen again that an earlier run had seen: its progress must stay.
            return taken
        while self._heap and self._heap[0] >> _OFFSET_BITS <= now:
            entry = self._heap[0] >> _OFFSET_BITS, self._heap[0] & _OFFSET_MASK
            # What came late, behind the cursor, must go with the next progress, whatever the limit.
            if len(taken) >= limit and entry > cursor:
                break
            heapq.heappop(self._heap)
            taken.append(entry)
        return taken

    def _progress_after(
        self, levels: dict[int, tuple[int, int]], timers: list[tuple[int, int]]
    ) -> Progress:
        done = {level: last for level, (_, last) in levels.items()}
        before = self._progress
        scanned, cursor = before.scanned, before.cursor
        if timers:
            scanned, cursor = self._scanned, max(cursor, timers[-1])
        return Progress(
            levels={**before.levels, **done},
            scanned=scanned,
            floor=before.floor if self._heap or not timers else self._scanned,
            cursor=cursor,
        )

    def delivered(self, plan: Plan) -> None:
        """Hear that a plan's messages were delivered."""
        for level, (_, last) in plan.levels.items():
            waiting = self._levels[level].waiting
            while waiting and waiting[0][0] < last:
                waiting.popleft()
        self._progress = plan.progress


def _due(line: _Level, stored: int, now: int) -> int:
    # A message from the future: the clock was put back, and nobody is to wait for that.
    return now if stored > now else stored + line.span


def _count_due(line: _Level, now: int, limit: int) -> int:
    count = 0
    for _, stored in line.waiting:
        if count >= limit or _due(line, stored, now) > now:
            break
        count += 1
    return count
