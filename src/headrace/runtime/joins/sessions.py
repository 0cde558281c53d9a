"""Joins by session: the records of both sides make sessions together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.buckets import Kept
from headrace.runtime.joins.layouts import JoinSessionLayout
from headrace.runtime.joins.session_state import Session, SessionStore
from headrace.runtime.joins.sides import LEFT, NO_KEY, PAIR, RIGHT, Meetings
from headrace.runtime.joins.timed import TimedJoinProcessor
from headrace.runtime.state.timers import Timers
from headrace.topology.operators.joins import SessionJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.joins.sides import Arrivals
    from headrace.runtime.processors import ProcessorContext

__all__ = ["SessionJoinProcessor"]


class SessionJoinProcessor(TimedJoinProcessor[SessionJoin]):
    """Gives a pair as soon as a session holds both, and lonely records when the session ends.

    A lonely record's result has the time of the session's last record.
    """

    layout = JoinSessionLayout()

    def __init__(self, operator: SessionJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._changed: dict[bytes, None] = {}
        #: Timers of sessions that the store knows.
        self._stored: dict[bytes, set[int]] = {}
        #: Keys with a session of this batch, by when it may end: a heap.
        self._due: list[tuple[int, bytes]] = []

    def prepare(self, arrivals: Arrivals) -> None:
        """Read the open sessions of all keys."""
        self._load(arrivals.keys)

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order; give the places of those whose session would have ended."""
        gap, late = self.operator.gap, []
        for i in places:
            time, key = arrivals.times[i], arrivals.keys[i]
            if key == NO_KEY:
                self.give_alone(arrivals, i, meetings)
                continue
            sessions = self._sessions.held[key]
            near = [s for s in sessions if s.first - gap <= time <= s.last + gap]
            if not near and self._end(time) <= self.event_time:
                late.append(i)
                continue
            session = self._joined(arrivals, i, near, meetings)
            self._changed[key] = None
            heapq.heappush(self._due, (self._end(session.last), key))
        return late

    def _joined(
        self, arrivals: Arrivals, i: int, near: list[Session], meetings: Meetings
    ) -> Session:
        """Put a record into the session that it belongs to, or make one of those it joins."""
        store, key, port = self._sessions, arrivals.keys[i], arrivals.ports[i]
        record = Kept(arrivals.times[i], arrivals.values[i], raw=arrivals.raws[i])
        own = Session(record.time, record.time)
        own.sides[port].open.append(record)
        if not near:
            store.held[key].append(own)
            return own
        self._meet(own, near[0], arrivals, i, meetings)
        merged = near[0]
        store.add(key, merged, port, record)
        for part in near[1:]:
            self._meet(merged, part, arrivals, i, meetings)
            store.held[key] = [one for one in store.held[key] if one not in (part, merged)]
            merged = store.merge(key, part, merged)
            store.held[key].append(merged)
        return merged

    def _meet(
        self, one: Session, other: Session, arrivals: Arrivals, i: int, meetings: Meetings
    ) -> None:
        """Give the pairs of two parts of a session that have come together."""
        name, mark, key = arrivals.names[i], arrivals.marks[i], arrivals.keys[i]
        for first, second in ((other, one), (one, other)):
            if not (first.sides[0] and second.sides[1]):
                continue
            rights = list(self._sessions.records(key, second, 1))
            for left in self._sessions.records(key, first, 0):
                for right in rights:
                    time = max(left.time, right.time)
                    meetings.add(name, (PAIR, left.value, right.value), time, mark)

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """End the sessions whose gap has passed."""
        keys: dict[bytes, None] = {}
        while self._due and self._due[0][0] <= watermark.time:
            keys[heapq.heappop(self._due)[1]] = None
        stored = list(self._timers.due(watermark.time))
        self._load([key for _, key in stored])
        keys.update((key, None) for _, key in stored)
        for due, key in stored:
            self._stored[key].discard(due)
        ended: list[tuple[int, bytes, Session]] = []
        for key in keys:
            held = self._sessions.held[key]
            done = [s for s in held if self._end(s.last) <= watermark.time]
            ended += [(session.last, key, session) for session in done]
        for last, key, session in sorted(ended, key=lambda entry: entry[:2]):
            self._give_lonely(key, session, last, watermark.mark, meetings)
            self._sessions.drop(key, [session])
            self._changed[key] = None

    def _give_lonely(
        self, key: bytes, session: Session, time: int, mark: int, meetings: Meetings
    ) -> None:
        if all(session.sides):
            return
        for port in (0, 1):
            if port + 1 in self.operator.alone:
                for kept in self._sessions.records(key, session, port):
                    found = (RIGHT, None, kept.value) if port else (LEFT, kept.value, None)
                    meetings.add(decode_key(key), found, time, mark)

    def finish(self) -> Chunk:
        """Write the sessions that changed, and when they may end."""
        timers = self._timers
        self._sessions.write(list(self._changed))
        for key in self._changed:
            ends = {self._end(session.last) for session in self._sessions.held[key]}
            for end in self._stored[key] - ends:
                timers.clear(end, key)
            for end in ends - self._stored[key]:
                timers.set(end, key)
            self._stored[key] = ends
        self._changed.clear()
        self._due.clear()
        return Chunk.empty()

    def _load(self, keys: Sequence[bytes]) -> None:
        for key in self._sessions.load(keys):
            self._stored[key] = {self._end(session.last) for session in self._sessions.held[key]}

    @cached_property
    def _sessions(self) -> SessionStore:
        serdes = (self.operator.left_serde, self.operator.right_serde)
        return SessionStore(self.operator, self.context.store(self.operator), serdes)

    @cached_property
    def _timers(self) -> Timers:
        return Timers(self.context.store(self.operator), b"t", settled=self.settled)

    def _end(self, last: int) -> int:
        """Tell which watermark ends a session."""
        return last + self.operator.gap + self.operator.grace + 1
