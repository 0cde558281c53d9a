"""Joins by session: the records of both sides make sessions together."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.buckets import (
    BLOCK_BYTES,
    BLOCK_RECORDS,
    WaitingRecord,
    decoded,
    packed,
    raw_values,
)
from headrace.runtime.joins.sides import (
    LEFT,
    NO_KEY,
    PAIR,
    RIGHT,
    Arrivals,
    Meetings,
    TimedJoinProcessor,
)
from headrace.runtime.state.interface import StateStore, Timers
from headrace.runtime.state.layouts import (
    PlainLayout,
    Read,
    Span,
    StateEntry,
    StateLayout,
    only,
    waiting,
)
from headrace.runtime.user_code import writing
from headrace.topology.operators.tables import SessionJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import ProcessorContext
    from headrace.serdes import Serde
    from headrace.topology.operators.core import Operator


# How joins by session and by foreign key lay out their stores.

_LENGTH = struct.Struct(">I")
_ROW, _REFERRING = b"r", b"s"
#: First and last time of a session; of each side, its full blocks and the bytes of the open one.
_TIMES = struct.Struct("<qq")
_SIDE = struct.Struct("<II")
#: Side and number of a full block.
_BLOCK = struct.Struct(">BI")


class JoinSessionLayout(StateLayout):
    """Open sessions (``s``, key), their full blocks (``b``) and timers (``t``, time, key)."""

    _time = 8

    def spans(self, key: bytes) -> list[Span]:
        """Return the entry of all sessions, and the places of blocks."""
        start = _blocks(key)
        return [only(b"s" + key), (start, start[:-1] + b"\x01")]

    def key_of(self, entry: bytes) -> bytes:
        """Return what stands behind the family, a length or the time of a timer."""
        if entry[:1] == b"b":
            (length,) = _LENGTH.unpack_from(entry, 1)
            return entry[1 + _LENGTH.size :][:length]
        return entry[1:] if entry[:1] == b"s" else entry[1 + self._time :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the sessions, each with its first and last time and the records of both sides.

        Of a session with many records these are the newest; its full blocks stand beside it.
        """
        family, key = entry[:1], decode_key(self.key_of(entry))
        if family == b"b":
            port, number = _BLOCK.unpack_from(entry, len(entry) - _BLOCK.size)
            records = waiting(key, value, SIDES[port], read)
            times = [one.start for one in records if one.start is not None]
            block = StateEntry(key, _by_side(records), min(times), max(times), item=number)
            return [block]
        found: list[StateEntry] = []
        at = 0 if family == b"s" else len(value)
        while at < len(value):
            start, end = _TIMES.unpack_from(value, at)
            at += _TIMES.size
            sides: list[StateEntry] = []
            for side in SIDES:
                count, size = _SIDE.unpack_from(value, at)
                at += _SIDE.size + 4 * count + size
                sides += waiting(key, value[at - size : at], side, read)
            found.append(StateEntry(key, _by_side(sides), start, end))
        return found

    def gathered(self, entries: Sequence[StateEntry]) -> Any:
        """Return the records of the latest session."""
        sessions = [(entry.start or 0, entry) for entry in entries if entry.item is None]
        if not sessions:
            return None
        start, last = max(sessions, key=lambda session: session[0])
        within = [one for one in entries if one.item is not None and (one.start or 0) >= start]
        return {side: [v for one in (*within, last) for v in one.value[side]] for side in SIDES}


SIDES = ("left", "right")


def block_key(key: bytes, port: int, number: int) -> bytes:
    """Return the key of a full block of one side of a session."""
    return _blocks(key) + _BLOCK.pack(port, number)


def _blocks(key: bytes) -> bytes:
    return b"b" + _LENGTH.pack(len(key)) + key + b"\x00"


def _by_side(records: Sequence[StateEntry]) -> dict[str, list[Any]]:
    return {side: [one.value for one in records if one.part == side] for side in SIDES}


class ReferenceLayout(PlainLayout):
    """Which key each row refers to."""

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the key that a row refers to."""
        del read
        return [StateEntry(decode_key(entry), decode_key(value))]


class ReferringLayout(StateLayout):
    """The row of each key, and beside it the rows that refer to the key."""

    def spans(self, key: bytes) -> list[Span]:
        """Return the row, and the places of what refers to it."""
        start = place(key)
        return [only(_ROW + key), (start, start[:-1] + b"\x01")]

    def key_of(self, entry: bytes) -> bytes:
        """Return the key that is referred to."""
        if entry[:1] == _ROW:
            return entry[1:]
        (length,) = _LENGTH.unpack_from(entry, 1)
        return entry[1 + _LENGTH.size :][:length]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the row, or one that refers to it by its own key."""
        key = self.key_of(entry)
        if entry[:1] == _ROW:
            return [StateEntry(decode_key(key), read(value, "right"), part="right")]
        owner = decode_key(entry[len(place(key)) :])
        return [StateEntry(decode_key(key), read(value, "row"), part="left", item=owner)]


def place(key: bytes) -> bytes:
    """Begin the places of all rows that refer to a key; no other key's places lie between them."""
    return _REFERRING + _LENGTH.pack(len(key)) + key + b"\x00"


# What a join by session keeps: open sessions by key, with the records of both sides.
#
# Records of a side lie in blocks.  All but the last, which lies with the session, are entries of
# their own that do not change, so that a batch writes what it adds, however long a session is.
#
# ======  ==========================================================================
# family  what lies there
# ======  ==========================================================================
# ``s``   key: its sessions, each with first and last time and, for each side, the
#         numbers of its full blocks and the records of the open one
# ``b``   a block, as :func:`~headrace.runtime.joins.sessions.block_key` names it
# ``t``   timers: time (u64), key
# ======  ==========================================================================

_FAMILY = b"s"


@dataclass(slots=True, eq=False)
class Side:
    """Records of one side of a session."""

    #: Numbers of the full blocks, in the order in which records came.
    blocks: list[int] = field(default_factory=list)
    open: list[WaitingRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.open)


@dataclass(slots=True, eq=False)
class KeySession:
    """Records of a key that follow each other closely."""

    first: int
    last: int
    #: Left and right.
    sides: tuple[Side, Side] = field(default_factory=lambda: (Side(), Side()))


class SessionStore:
    """The sessions of every key, read when they are needed and written once per batch.

    Parameters
    ----------
    operator
        The join, named in errors.
    store
        Where they lie.
    serdes
        Write the values of each side.
    """

    def __init__(self, operator: Operator, store: StateStore, serdes: Sequence[Serde[Any]]) -> None:
        self._operator = operator
        self._store = store
        self._serdes = serdes
        self.held: dict[bytes, list[KeySession]] = {}
        #: Number of the next block of a key.
        self._next: dict[bytes, int] = {}
        #: Full blocks that are known, and the sides of those that were filled in this batch.
        self._blocks: dict[bytes, list[WaitingRecord]] = {}
        self._filled: dict[bytes, int] = {}

    def load(self, keys: Iterable[bytes]) -> list[bytes]:
        """Read the sessions of keys that are not known yet, and return these keys."""
        fresh = [key for key in dict.fromkeys(keys) if key not in self.held]
        found = self._store.get_many([_FAMILY + key for key in fresh])
        opened: tuple[list[Side], list[Side]] = ([], [])
        written: tuple[list[bytes], list[bytes]] = ([], [])
        for key, entry in zip(fresh, found, strict=True):
            sessions: list[KeySession] = []
            self.held[key] = sessions
            for session, records in _read(entry or b""):
                sessions.append(session)
                for port, side in enumerate(session.sides):
                    opened[port].append(side)
                    written[port].append(records[port])
            numbers = (n for session in sessions for side in session.sides for n in side.blocks)
            self._next[key] = 1 + max(numbers, default=-1)
        for port, serde in enumerate(self._serdes):
            for side, own in zip(opened[port], decoded(written[port], serde), strict=True):
                side.open = own
        return fresh

    def records(self, key: bytes, session: KeySession, port: int) -> Iterator[WaitingRecord]:
        """Yield the records of one side of a session, in the order in which they came."""
        side = session.sides[port]
        names = [block_key(key, port, number) for number in side.blocks]
        missing = [name for name in names if name not in self._blocks]
        if missing:
            entries = [entry for entry in self._store.get_many(missing) if entry is not None]
            found = decoded(entries, self._serdes[port])
            self._blocks.update(zip(missing, found, strict=True))
        for name in names:
            yield from self._blocks[name]
        yield from side.open

    def add(self, key: bytes, session: KeySession, port: int, record: WaitingRecord) -> None:
        """Put a record into a session."""
        session.first = min(session.first, record.time)
        session.last = max(session.last, record.time)
        side = session.sides[port]
        side.open.append(record)
        if len(side.open) >= BLOCK_RECORDS:
            self._close_block(key, side, port)

    def merge(self, key: bytes, one: KeySession, other: KeySession) -> KeySession:
        """Make one session of two; records of the first come first."""
        sides = [
            self._merged(key, port, *pair)
            for port, pair in enumerate(zip(one.sides, other.sides, strict=True))
        ]
        bounds = min(one.first, other.first), max(one.last, other.last)
        return KeySession(*bounds, (sides[0], sides[1]))

    def _merged(self, key: bytes, port: int, one: Side, other: Side) -> Side:
        if other.blocks and one.open:
            self._close_block(key, one, port)
        merged = Side(one.blocks + other.blocks, one.open + other.open)
        if len(merged.open) >= BLOCK_RECORDS:
            self._close_block(key, merged, port)
        return merged

    def drop(self, key: bytes, sessions: Sequence[KeySession]) -> None:
        """Forget sessions that have ended."""
        self.held[key] = [one for one in self.held[key] if one not in sessions]
        for session in sessions:
            for port, side in enumerate(session.sides):
                for number in side.blocks:
                    name = block_key(key, port, number)
                    self._store.delete(name)
                    self._filled.pop(name, None)

    def write(self, keys: Sequence[bytes]) -> None:
        """Write the sessions of keys that changed, and what was filled."""
        sides = [(key, s.sides) for key in keys for s in self.held[key]]
        for port, serde in enumerate(self._serdes):
            filled = [name for name, side in self._filled.items() if side == port]
            full = [kept for name in filled for kept in self._blocks[name]]
            with writing(self._operator, f"its state (serde {serde!r})"):
                raw_values([*full, *(kept for _, own in sides for kept in own[port].open)], serde)
            for key, own in sides:
                if sum(len(kept.raw or b"") for kept in own[port].open) > BLOCK_BYTES:
                    self._close_block(key, own[port], port)
        for name in self._filled:
            self._store.put(name, packed(self._blocks[name]))
        for key in keys:
            sessions = self.held[key]
            if sessions:
                self._store.put(_FAMILY + key, b"".join(map(_written, sessions)))
            else:
                self._store.delete(_FAMILY + key)

    def _close_block(self, key: bytes, side: Side, port: int) -> None:
        number = self._next[key]
        self._next[key] = number + 1
        name = block_key(key, port, number)
        self._blocks[name], side.open = side.open, []
        self._filled[name] = port
        side.blocks.append(number)


def _read(entry: bytes) -> Iterator[tuple[KeySession, list[bytes]]]:
    """Yield the sessions of an entry, each with the records of its open blocks as written."""
    at = 0
    while at < len(entry):
        session = KeySession(*_TIMES.unpack_from(entry, at))
        at += _TIMES.size
        records: list[bytes] = []
        for side in session.sides:
            count, size = _SIDE.unpack_from(entry, at)
            side.blocks = list(struct.unpack_from(f"<{count}I", entry, at + _SIDE.size))
            at += _SIDE.size + 4 * count + size
            records.append(entry[at - size : at])
        yield session, records


def _written(session: KeySession) -> bytes:
    pieces = [_TIMES.pack(session.first, session.last)]
    for side in session.sides:
        records = packed(side.open)
        pieces.append(_SIDE.pack(len(side.blocks), len(records)))
        pieces.append(struct.pack(f"<{len(side.blocks)}I", *side.blocks))
        pieces.append(records)
    return b"".join(pieces)


class SessionJoinProcessor(TimedJoinProcessor[SessionJoin]):
    """A join that forwards a pair once a session holds both, and lonely records when it ends.

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
        """Handle records in order; return the places of those whose session would have ended."""
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
        self, arrivals: Arrivals, i: int, near: list[KeySession], meetings: Meetings
    ) -> KeySession:
        """Put a record into the session that it belongs to, or make one of those it joins."""
        store, key, port = self._sessions, arrivals.keys[i], arrivals.ports[i]
        record = WaitingRecord(arrivals.times[i], arrivals.values[i], raw=arrivals.raws[i])
        own = KeySession(record.time, record.time)
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
        self, one: KeySession, other: KeySession, arrivals: Arrivals, i: int, meetings: Meetings
    ) -> None:
        """Forward the pairs of two parts of a session that have come together."""
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
        ended: list[tuple[int, bytes, KeySession]] = []
        for key in keys:
            held = self._sessions.held[key]
            done = [s for s in held if self._end(s.last) <= watermark.time]
            ended += [(session.last, key, session) for session in done]
        for last, key, session in sorted(ended, key=lambda entry: entry[:2]):
            self._give_lonely(key, session, last, watermark.mark, meetings)
            self._sessions.drop(key, [session])
            self._changed[key] = None

    def _give_lonely(
        self, key: bytes, session: KeySession, time: int, mark: int, meetings: Meetings
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
        """Return which watermark ends a session."""
        return last + self.operator.gap + self.operator.grace + 1
