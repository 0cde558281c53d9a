"""How joins by session and by foreign key lay out their stores."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from headrace.keys import decode_key
from headrace.runtime.state.layouts import (
    PlainLayout,
    Read,
    Span,
    StateEntry,
    StateLayout,
    only,
    waiting,
)

__all__ = ["JoinSessionLayout", "ReferenceLayout", "ReferringLayout", "block_key", "place"]

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
        """Give the entry of all sessions, and the places of blocks."""
        start = _blocks(key)
        return [only(b"s" + key), (start, start[:-1] + b"\x01")]

    def key_of(self, entry: bytes) -> bytes:
        """Give what stands behind the family, a length or the time of a timer."""
        if entry[:1] == b"b":
            (length,) = _LENGTH.unpack_from(entry, 1)
            return entry[1 + _LENGTH.size :][:length]
        return entry[1:] if entry[:1] == b"s" else entry[1 + self._time :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the sessions, each with its first and last time and the records of both sides.

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
        """Give the records of the latest session."""
        sessions = [(entry.start or 0, entry) for entry in entries if entry.item is None]
        if not sessions:
            return None
        start, last = max(sessions, key=lambda session: session[0])
        within = [one for one in entries if one.item is not None and (one.start or 0) >= start]
        return {side: [v for one in (*within, last) for v in one.value[side]] for side in SIDES}


SIDES = ("left", "right")


def block_key(key: bytes, port: int, number: int) -> bytes:
    """Name a full block of one side of a session."""
    return _blocks(key) + _BLOCK.pack(port, number)


def _blocks(key: bytes) -> bytes:
    return b"b" + _LENGTH.pack(len(key)) + key + b"\x00"


def _by_side(records: Sequence[StateEntry]) -> dict[str, list[Any]]:
    return {side: [one.value for one in records if one.part == side] for side in SIDES}


class ReferenceLayout(PlainLayout):
    """Which key each row refers to."""

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the key that a row refers to."""
        del read
        return [StateEntry(decode_key(entry), decode_key(value))]


class ReferringLayout(StateLayout):
    """The row of each key, and beside it the rows that refer to the key."""

    def spans(self, key: bytes) -> list[Span]:
        """Give the row, and the places of what refers to it."""
        start = place(key)
        return [only(_ROW + key), (start, start[:-1] + b"\x01")]

    def key_of(self, entry: bytes) -> bytes:
        """Give the key that is referred to."""
        if entry[:1] == _ROW:
            return entry[1:]
        (length,) = _LENGTH.unpack_from(entry, 1)
        return entry[1 + _LENGTH.size :][:length]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the row, or one that refers to it by its own key."""
        key = self.key_of(entry)
        if entry[:1] == _ROW:
            return [StateEntry(decode_key(key), read(value, "right"), part="right")]
        owner = decode_key(entry[len(place(key)) :])
        return [StateEntry(decode_key(key), read(value, "row"), part="left", item=owner)]


def place(key: bytes) -> bytes:
    """Begin the places of all rows that refer to a key; no other key's places lie between them."""
    return _REFERRING + _LENGTH.pack(len(key)) + key + b"\x00"
