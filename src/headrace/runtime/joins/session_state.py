"""What a join by session keeps: open sessions by key, with the records of both sides.

Records of a side lie in blocks.  All but the last, which lies with the session, are entries of
their own that do not change, so that a batch writes what it adds, however long a session is.

======  ==========================================================================
family  what lies there
======  ==========================================================================
``s``   key: its sessions, each with first and last time and, for each side, the
        numbers of its full blocks and the records of the open one
``b``   a block, as :func:`~headrace.runtime.joins.layouts.block_key` names it
``t``   timers: time (u64), key
======  ==========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.runtime.joins.buckets import (
    BLOCK_BYTES,
    BLOCK_RECORDS,
    Kept,
    decoded,
    packed,
    raw_values,
)
from headrace.runtime.joins.layouts import block_key
from headrace.runtime.user_code.writing import writing

if TYPE_CHECKING:
    from headrace.runtime.state.interface import StateStore
    from headrace.serdes import Serde
    from headrace.topology.operators.core import Operator

__all__ = ["Session", "SessionStore", "Side"]

_FAMILY = b"s"
_TIMES = struct.Struct("<qq")
_SIDE = struct.Struct("<II")


@dataclass(slots=True, eq=False)
class Side:
    """Records of one side of a session."""

    #: Numbers of the full blocks, in the order in which records came.
    blocks: list[int] = field(default_factory=list)
    open: list[Kept] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.open)


@dataclass(slots=True, eq=False)
class Session:
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
        self.held: dict[bytes, list[Session]] = {}
        #: Number of the next block of a key.
        self._next: dict[bytes, int] = {}
        #: Full blocks that are known, and the sides of those that were filled in this batch.
        self._blocks: dict[bytes, list[Kept]] = {}
        self._filled: dict[bytes, int] = {}

    def load(self, keys: Iterable[bytes]) -> list[bytes]:
        """Read the sessions of keys that are not known yet; give these keys."""
        fresh = [key for key in dict.fromkeys(keys) if key not in self.held]
        found = self._store.get_many([_FAMILY + key for key in fresh])
        opened: tuple[list[Side], list[Side]] = ([], [])
        written: tuple[list[bytes], list[bytes]] = ([], [])
        for key, entry in zip(fresh, found, strict=True):
            sessions: list[Session] = []
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

    def records(self, key: bytes, session: Session, port: int) -> Iterator[Kept]:
        """Give the records of one side of a session, in the order in which they came."""
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

    def add(self, key: bytes, session: Session, port: int, record: Kept) -> None:
        """Put a record into a session."""
        session.first = min(session.first, record.time)
        session.last = max(session.last, record.time)
        side = session.sides[port]
        side.open.append(record)
        if len(side.open) >= BLOCK_RECORDS:
            self._close_block(key, side, port)

    def merge(self, key: bytes, one: Session, other: Session) -> Session:
        """Make one session of two; records of the first come first."""
        sides = [
            self._merged(key, port, *pair)
            for port, pair in enumerate(zip(one.sides, other.sides, strict=True))
        ]
        bounds = min(one.first, other.first), max(one.last, other.last)
        return Session(*bounds, (sides[0], sides[1]))

    def _merged(self, key: bytes, port: int, one: Side, other: Side) -> Side:
        if other.blocks and one.open:
            self._close_block(key, one, port)
        merged = Side(one.blocks + other.blocks, one.open + other.open)
        if len(merged.open) >= BLOCK_RECORDS:
            self._close_block(key, merged, port)
        return merged

    def drop(self, key: bytes, sessions: Sequence[Session]) -> None:
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


def _read(entry: bytes) -> Iterator[tuple[Session, list[bytes]]]:
    """Give the sessions of an entry, each with the records of its open blocks as written."""
    at = 0
    while at < len(entry):
        session = Session(*_TIMES.unpack_from(entry, at))
        at += _TIMES.size
        records: list[bytes] = []
        for side in session.sides:
            count, size = _SIDE.unpack_from(entry, at)
            side.blocks = list(struct.unpack_from(f"<{count}I", entry, at + _SIDE.size))
            at += _SIDE.size + 4 * count + size
            records.append(entry[at - size : at])
        yield session, records


def _written(session: Session) -> bytes:
    pieces = [_TIMES.pack(session.first, session.last)]
    for side in session.sides:
        records = packed(side.open)
        pieces.append(_SIDE.pack(len(side.blocks), len(records)))
        pieces.append(struct.pack(f"<{len(side.blocks)}I", *side.blocks))
        pieces.append(records)
    return b"".join(pieces)
