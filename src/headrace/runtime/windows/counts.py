"""Count windows: every so many records of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.windows.sliding import ByRecordProcessor
from headrace.topology.operators.windows import CountWindow

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.windows.parts import RecordGroup


class CountProcessor(ByRecordProcessor[CountWindow]):
    """Keeps the window of each key that is not full yet."""

    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the window that its key has open."""
        if not parts:
            record.number = 0
            parts.append(record)
        part = parts[-1]
        part.accumulator = self.algebra.add(part.accumulator, value, record.mark)
        part.first, part.last = min(part.first, record.time), max(part.last, record.time)
        part.number += 1
        return [part]

    def taken(self, key: bytes, parts: list[RecordGroup]) -> None:
        """Give a window that is full."""
        part = parts[-1]
        if part.number == self.operator.windows.size:
            self.fire(key, parts, part, part.mark)
            parts.clear()

    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Tell that time plays no part."""
        del parts
        return None

    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Do nothing: only records close windows."""

    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return the lowest and the highest event time of a window."""
        return part.first, part.last
