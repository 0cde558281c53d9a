"""Joins by tumbling and hopping windows: every pair that shares a window, once for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.buckets import Buckets, WaitingRecord
from headrace.runtime.joins.sides import LEFT, NO_KEY, PAIR, RIGHT, Meetings, TimedJoinProcessor
from headrace.runtime.windows.combining import Assigned, assign
from headrace.topology.operators.tables import WindowJoin
from headrace.topology.windowed import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.joins.sides import Arrivals
    from headrace.runtime.processors import ProcessorContext


class WindowJoinProcessor(TimedJoinProcessor[WindowJoin]):
    """Gives a pair as soon as its later record is there, and lonely records when the window fires.

    Records lie by the end of their window and key.
    """

    _buckets: tuple[Buckets, Buckets] | None = None
    #: Ends of the windows of each record.
    _ends: Sequence[list[int]] = ()
    #: What results say of a window, by its end.
    _told: dict[int, dict[str, str]]

    def __init__(self, operator: WindowJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._told = {}

    def prepare(self, arrivals: Arrivals) -> None:
        """Read every window that the records fall into, of both sides."""
        found = assign(self.operator.windows, arrivals.chunk.times)
        ends: list[list[int]] = [[] for _ in arrivals.keys]
        for i, end in zip(found.indices.tolist(), found.ends.tolist(), strict=True):
            ends[i].append(end)
        self._ends = ends
        self._tell(found)
        ports = np.array(arrivals.ports, np.int64)[found.indices]
        for port, buckets in enumerate(self._sides()):
            for whole in (False, True):
                mine = np.flatnonzero((ports != port) == whole)
                keys = [arrivals.keys[i] for i in found.indices[mine].tolist()]
                buckets.load(found.ends[mine], keys, whole=whole)

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order; give the places of those whose windows have all fired."""
        sides, late = self._sides(), []
        fired = self.event_time - self.operator.grace
        for i in places:
            time, key, port = arrivals.times[i], arrivals.keys[i], arrivals.ports[i]
            ends = self._ends[i]
            if max(ends, default=fired) <= fired:
                late.append(i)
                continue
            if key == NO_KEY:
                self.give_alone(arrivals, i, meetings)
                continue
            name, value, mark = arrivals.names[i], arrivals.values[i], arrivals.marks[i]
            for end in sorted(ends):
                if end <= fired:
                    continue
                for record in sides[1 - port].get(end, key) or ():
                    pair = (PAIR, record.value, value) if port else (PAIR, value, record.value)
                    meetings.add(name, pair, max(time, record.time), mark, self._told[end])
                sides[port].add(end, key, WaitingRecord(time, value, raw=arrivals.raws[i]))
        return late

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """Fire the windows that have ended."""
        alone = self.operator.alone
        limit = watermark.time - self.operator.grace + 1
        ended = [buckets.end(limit, wanted=bool(alone)) for buckets in self._sides()]
        if not alone:
            return
        met = {(end, key) for end, key, _ in ended[0]} & {(end, key) for end, key, _ in ended[1]}
        lonely = sorted(
            (end, record.time, port, key, at, record.value)
            for port, entries in enumerate(ended)
            if port + 1 in alone
            for end, key, records in entries
            if (end, key) not in met
            for at, record in enumerate(records)
        )
        self._tell(assign(self.operator.windows, np.array([e[1] for e in lonely], np.int64)))
        for end, time, port, key, _, value in lonely:
            found = (RIGHT, None, value) if port else (LEFT, value, None)
            meetings.add(decode_key(key), found, time, watermark.mark, self._told[end])

    def _tell(self, found: Assigned) -> None:
        # A window's end tells its start.
        ends, firsts = np.unique(found.ends, return_index=True)
        for start, end in zip(found.starts[firsts].tolist(), ends.tolist(), strict=True):
            if end not in self._told:
                self._told[end] = {WINDOW_START: str(start), WINDOW_END: str(end)}

    def finish(self) -> Chunk:
        """Write what is kept."""
        if self._buckets is not None:
            for buckets in self._buckets:
                buckets.flush()
        return Chunk.empty()

    def _sides(self) -> tuple[Buckets, Buckets]:
        if self._buckets is None:
            operator, store = self.operator, self.context.store(self.operator)
            done = self.settled - operator.grace + 1
            self._buckets = (
                Buckets(operator, store, b"l", operator.left_serde, done),
                Buckets(operator, store, b"r", operator.right_serde, done),
            )
        return self._buckets
