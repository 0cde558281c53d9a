"""Sessions: runs of records that follow each other closely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.windows.sliding import ByRecordProcessor
from headrace.topology.operators.windows import SessionWindow

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.windows.parts import RecordGroup


class SessionProcessor(ByRecordProcessor[SessionWindow]):
    """Keeps the open sessions of each key, of which no two are within the gap of each other."""

    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the session that it belongs to, or make one of those that it joins."""
        gap, time = self.operator.windows.gap, record.time
        met = [part for part in parts if part.first - gap <= time <= part.last + gap]
        if not met:
            if self._passed(record) <= self.event_time:
                return None
            record.accumulator = self.algebra.add(record.accumulator, value, record.mark)
            parts.append(record)
            parts.sort(key=lambda part: part.first)
            return [record]
        session = met[0]
        session.accumulator = self.algebra.add(session.accumulator, value, record.mark)
        for other in met[1:]:
            session.accumulator = self.algebra.merge(session.accumulator, other.accumulator)
            session.last = other.last
            session.given += other.given
            parts.remove(other)
        session.first, session.last = min(session.first, time), max(session.last, time)
        return [session]

    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Tell when the first session has passed."""
        return self._passed(parts[0]) if parts else None

    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Give the sessions that have passed."""
        while parts and self._passed(parts[0]) <= watermark.time:
            self.fire(key, parts, parts[0], watermark.mark)
            del parts[0]

    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return a session's window."""
        return part.first, part.last + self.operator.windows.gap

    def _passed(self, part: RecordGroup) -> int:
        # The gap is inclusive, so it has passed when event time is beyond it.
        return part.last + self.operator.windows.gap + self.operator.grace + 1
