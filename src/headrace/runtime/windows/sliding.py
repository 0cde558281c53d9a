"""Sliding windows: one ends at every time at which a key has a record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from headrace.runtime.windows.by_record import ByRecordProcessor
from headrace.runtime.windows.merging import MergedParts
from headrace.topology.operators.windows import SlidingWindow

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import ProcessorContext
    from headrace.runtime.windows.parts import Part

__all__ = ["SlidingProcessor"]

#: Numbers of parts: the window that ends there has not fired, or has, and others still need it.
_OPEN, _FIRED = 0, 1


class SlidingProcessor(ByRecordProcessor[SlidingWindow]):
    """Keeps one part for each time of a key, and puts windows together when they fire.

    Windows fire in the order of their ends, so parts that have fired stand before the others.
    """

    def __init__(self, operator: SlidingWindow, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        #: By the list of a key's parts, which is the same for all of a batch.
        self._merged: dict[int, MergedParts] = {}

    def take(self, parts: list[Part], record: Part, value: Any) -> list[Part] | None:
        """Put a record into the part of its time.

        Its own window may have passed while its queue was idle: then those that end later hold it.
        """
        has_passed = self._passed(record) <= self.event_time
        if has_passed and self._passed(record) + self.operator.windows.size <= self.event_time:
            return None
        place = bisect_left(parts, record.time, key=_time)
        found = place < len(parts) and parts[place].last == record.time
        part = parts[place] if found else record
        part.accumulator = self.algebra.add(part.accumulator, value, record.mark)
        if not found:
            part.number = _FIRED if has_passed else _OPEN
            parts.insert(place, part)
        if has_passed:
            part.mark = -1
            # What was merged of those that have fired held one record less.
            self._merged.pop(id(parts), None)
        if self.operator.emit == "close":
            return [] if has_passed else [part]
        last = bisect_right(parts, record.time + self.operator.windows.size, key=_time)
        return [one for one in parts[place:last] if one.number == _OPEN]

    def next_time(self, parts: list[Part]) -> int | None:
        """Tell when the first window has passed, or the first part is no longer needed."""
        if not parts:
            return None
        drops, fired = self._passed(parts[0]) + self.operator.windows.size, _fired(parts)
        return drops if fired == len(parts) else min(self._passed(parts[fired]), drops)

    def close(self, key: bytes, parts: list[Part], watermark: Watermark) -> None:
        """Give the windows that have passed, and drop what no open one can hold."""
        at = _fired(parts)
        while at < len(parts) and self._passed(parts[at]) <= watermark.time:
            self.fire(key, parts, parts[at], watermark.mark)
            parts[at].number = _FIRED
            at += 1
        size, gone = self.operator.windows.size, 0
        while gone < len(parts) and self._passed(parts[gone]) + size <= watermark.time:
            gone += 1
        if gone:
            del parts[:gone]
            if (merged := self._merged.get(id(parts))) is not None:
                merged.forget(gone)

    def content(self, parts: list[Part], part: Part) -> Any:
        """Put the window that ends at a part together."""
        first = bisect_left(parts, part.last - self.operator.windows.size, key=_time)
        stop = bisect_left(parts, part.last, key=_time) + 1
        # Where the order of merging matters, nothing is merged ahead.
        settled = _fired(parts) if self.algebra.merges else 0
        if id(parts) not in self._merged:
            self._merged[id(parts)] = MergedParts(self.algebra, parts)
        return self._merged[id(parts)].run(first, stop, settled)

    def bounds(self, part: Part) -> tuple[int, int]:
        """Give the window that ends at a part."""
        return part.last - self.operator.windows.size, part.last

    def _passed(self, part: Part) -> int:
        # Records at the very end still belong to it, so event time has to be beyond.
        return part.last + self.operator.grace + 1


def _time(part: Part) -> int:
    return part.last


def _fired(parts: list[Part]) -> int:
    """Tell how many parts have fired."""
    return bisect_left(parts, _OPEN, key=lambda part: -part.number)
