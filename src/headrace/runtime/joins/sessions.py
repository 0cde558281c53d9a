"""Joins by session: the records of both sides make sessions together."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.buckets import Kept, decoded, packed, raw_values
from headrace.runtime.joins.layouts import JoinSessionLayout
from headrace.runtime.joins.sides import LEFT, NO_KEY, PAIR, RIGHT, Meetings
from headrace.runtime.joins.timed import TimedJoinProcessor
from headrace.runtime.timers import Timers
from headrace.runtime.writing import writing
from headrace.topology.joins import SessionJoin

if TYPE_CHECKING:
    from headrace.runtime.joins.sides import Arrivals
    from headrace.runtime.processors import ProcessorContext
    from headrace.runtime.watermarks import Watermark

__all__ = ["SessionJoinProcessor"]

_LENGTH = struct.Struct("<I")
_FAMILY = b"s"


@dataclass(slots=True, eq=False)
class _Session:
    first: int
    last: int
    #: Left and right records.
    sides: tuple[list[Kept], list[Kept]] = field(default_factory=lambda: ([], []))


class SessionJoinProcessor(TimedJoinProcessor[SessionJoin]):
    """Gives a pair as soon as a session holds both, and lonely records when the session ends.

    A lonely record's result has the time of the session's last record.
    """

    layout = JoinSessionLayout()

    def __init__(self, operator: SessionJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._sessions: dict[bytes, list[_Session]] = {}
        self._changed: dict[bytes, None] = {}
        #: Timers of sessions that the store knows.
        self._stored: dict[bytes, set[int]] = {}
        #: Keys by the time at which one of their sessions of this batch may end.
        self._due: dict[int, dict[bytes, None]] = {}

    def prepare(self, arrivals: Arrivals) -> None:
        """Read the open sessions of all keys."""
        self._load(arrivals.keys)

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order; give the places of those whose session would have ended."""
        gap, late = self.operator.gap, []
        for i in places:
            time, key, port = arrivals.times[i], arrivals.keys[i], arrivals.ports[i]
            if key == NO_KEY:
                self.give_alone(arrivals, i, meetings)
                continue
            sessions = self._sessions[key]
            near = [s for s in sessions if s.first - gap <= time <= s.last + gap]
            if not near and self._end(time) <= self.event_time:
                late.append(i)
                continue
            own = _Session(time, time)
            own.sides[port].append(Kept(time, arrivals.values[i]))
            merged = own
            for part in near:
                self._meet(merged, part, arrivals, i, meetings)
                merged = _merged(part, merged)
            self._sessions[key] = [*(s for s in sessions if s not in near), merged]
            self._changed[key] = None
            self._due.setdefault(self._end(merged.last), {})[key] = None
        return late

    def _meet(
        self, one: _Session, other: _Session, arrivals: Arrivals, i: int, meetings: Meetings
    ) -> None:
        """Give the pairs of two parts of a session that have come together."""
        name, mark = arrivals.names[i], arrivals.marks[i]
        for lefts, rights in ((other.sides[0], one.sides[1]), (one.sides[0], other.sides[1])):
            for left in lefts:
                for right in rights:
                    time = max(left.time, right.time)
                    meetings.add(name, (PAIR, left.value, right.value), time, mark)

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """End the sessions whose gap has passed."""
        keys: dict[bytes, None] = {}
        for due in [due for due in self._due if due <= watermark.time]:
            keys.update(self._due.pop(due))
        stored = list(self._timers().due(watermark.time))
        self._load([key for _, key in stored])
        keys.update((key, None) for _, key in stored)
        for due, key in stored:
            self._stored[key].discard(due)
        ended: list[tuple[int, bytes, _Session]] = []
        for key in keys:
            done = [s for s in self._sessions[key] if self._end(s.last) <= watermark.time]
            if done:
                self._sessions[key] = [s for s in self._sessions[key] if s not in done]
                self._changed[key] = None
                ended += [(session.last, key, session) for session in done]
        for last, key, session in sorted(ended, key=lambda entry: entry[:2]):
            self._give_lonely(key, session, last, watermark.mark, meetings)

    def _give_lonely(
        self, key: bytes, session: _Session, time: int, mark: int, meetings: Meetings
    ) -> None:
        if all(session.sides):
            return
        for port, records in enumerate(session.sides):
            if port + 1 in self.operator.alone:
                for kept in records:
                    found = (RIGHT, None, kept.value) if port else (LEFT, kept.value, None)
                    meetings.add(decode_key(key), found, time, mark)

    def finish(self) -> Chunk:
        """Write the sessions that changed, and when they may end."""
        store, timers = self.context.store(self.operator), self._timers()
        serdes = (self.operator.left_serde, self.operator.right_serde)
        open_ones = [session for key in self._changed for session in self._sessions[key]]
        for port, serde in enumerate(serdes):
            with writing(self.operator, f"its state (serde {serde!r})"):
                raw_values([kept for s in open_ones for kept in s.sides[port]], serde)
        for key in self._changed:
            sessions = self._sessions[key]
            ends = {self._end(session.last) for session in sessions}
            for end in self._stored[key] - ends:
                timers.clear(end, key)
            for end in ends - self._stored[key]:
                timers.set(end, key)
            self._stored[key] = ends
            if sessions:
                store.put(_FAMILY + key, b"".join(map(_written, sessions)))
            else:
                store.delete(_FAMILY + key)
        self._changed.clear()
        self._due.clear()
        return Chunk.empty()

    def _load(self, keys: Sequence[bytes]) -> None:
        fresh = [key for key in dict.fromkeys(keys) if key not in self._sessions]
        found = self.context.store(self.operator).get_many([_FAMILY + key for key in fresh])
        serdes = (self.operator.left_serde, self.operator.right_serde)
        for key, entry in zip(fresh, found, strict=True):
            self._sessions[key] = [] if entry is None else list(_read(entry, serdes))
            self._stored[key] = {self._end(session.last) for session in self._sessions[key]}

    def _timers(self) -> Timers:
        return Timers(self.context.store(self.operator), b"t")

    def _end(self, last: int) -> int:
        """Tell which watermark ends a session."""
        return last + self.operator.gap + self.operator.grace + 1


def _merged(one: _Session, other: _Session) -> _Session:
    return _Session(
        min(one.first, other.first),
        max(one.last, other.last),
        (one.sides[0] + other.sides[0], one.sides[1] + other.sides[1]),
    )


def _written(session: _Session) -> bytes:
    parts = [packed(records) for records in session.sides]
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def _read(entry: bytes, serdes: tuple[Any, Any]) -> list[_Session]:
    sessions: list[_Session] = []
    at = 0
    while at < len(entry):
        sides: list[list[Kept]] = []
        for serde in serdes:
            (size,) = _LENGTH.unpack_from(entry, at)
            at += _LENGTH.size
            sides += decoded([entry[at : at + size]], serde)
            at += size
        times = [kept.time for side in sides for kept in side]
        sessions.append(_Session(min(times), max(times), (sides[0], sides[1])))
    return sessions
