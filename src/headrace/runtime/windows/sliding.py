"""Sliding windows: one ends at every time at which a key has a record."""

from __future__ import annotations

import copy
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from headrace.runtime.windows.by_record import ByRecordProcessor
from headrace.topology.operators_windows import SlidingWindow

if TYPE_CHECKING:
    from headrace.runtime.watermarks import Watermark
    from headrace.runtime.windows.parts import Part

__all__ = ["SlidingProcessor"]

#: Numbers of parts: the window that ends there has not fired, or has, and others still need it.
_OPEN, _FIRED = 0, 1


class SlidingProcessor(ByRecordProcessor[SlidingWindow]):
    """Keeps one part for each time of a key, and puts windows together when they fire."""

    def take(self, parts: list[Part], record: Part, value: Any) -> list[Part] | None:
        """Put a record into the part of its time."""
        if self._passed(record) <= self.event_time:
            return None
        place = bisect_left(parts, record.time, key=lambda part: part.last)
        found = place < len(parts) and parts[place].last == record.time
        part = parts[place] if found else record
        part.accumulator = self.algebra.add(part.accumulator, value, record.mark)
        if not found:
            part.number = _OPEN
            parts.insert(place, part)
        if self.operator.emit == "close":
            return [part]
        last = record.time + self.operator.windows.size
        return [one for one in parts[place:] if one.last <= last and one.number == _OPEN]

    def next_time(self, parts: list[Part]) -> int | None:
        """Tell when the first window has passed, or the first part is no longer needed."""
        if not parts:
            return None
        fires = next((self._passed(part) for part in parts if part.number == _OPEN), None)
        drops = self._passed(parts[0]) + self.operator.windows.size
        return drops if fires is None else min(fires, drops)

    def close(self, key: bytes, parts: list[Part], watermark: Watermark) -> None:
        """Give the windows that have passed, and drop what no open one can hold."""
        for part in parts:
            if part.number == _OPEN and self._passed(part) <= watermark.time:
                self.fire(key, parts, part, watermark.mark)
                part.number = _FIRED
        size = self.operator.windows.size
        while parts and self._passed(parts[0]) + size <= watermark.time:
            del parts[0]

    def content(self, parts: list[Part], part: Part) -> Any:
        """Put the window that ends at a part together."""
        first = bisect_left(parts, part.last - self.operator.windows.size, key=lambda p: p.last)
        within = [one for one in parts[first:] if one.last <= part.last]
        # Merging may change what it is given, and the parts are needed again.
        merged = copy.deepcopy(within[0].accumulator)
        for one in within[1:]:
            merged = self.algebra.merge(merged, copy.deepcopy(one.accumulator))
        return merged

    def bounds(self, part: Part) -> tuple[int, int]:
        """Give the window that ends at a part."""
        return part.last - self.operator.windows.size, part.last

    def _passed(self, part: Part) -> int:
        # Records at the very end still belong to it, so event time has to be beyond.
        return part.last + self.operator.grace + 1
