"""How joins by session and by foreign key lay out their stores."""

from __future__ import annotations

import struct
from typing import Any

from headrace.keys import decode_key
from headrace.runtime.state_layouts import PlainLayout, Read, Span, StateEntry, StateLayout, only

__all__ = ["JoinSessionLayout", "ReferenceLayout", "ReferringLayout", "place"]

_LENGTH = struct.Struct(">I")
_ROW, _REFERRING = b"r", b"s"
_SIZE = struct.Struct("<I")
_RECORD = struct.Struct("<q?I")


class JoinSessionLayout(StateLayout):
    """Open sessions of both sides (``s``, key), and when they end (``t``, time, key)."""

    _time = 8

    def spans(self, key: bytes) -> list[Span]:
        """Give the entry of all sessions."""
        return [only(b"s" + key)]

    def key_of(self, entry: bytes) -> bytes:
        """Give what stands behind the family, and behind the time of a timer."""
        return entry[1:] if entry[:1] == b"s" else entry[1 + self._time :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the sessions, each with its first and last time and the records of both sides."""
        if entry[:1] != b"s":
            return []
        key, at, found = decode_key(entry[1:]), 0, []
        while at < len(value):
            times: list[int] = []
            sides: dict[str, list[Any]] = {"left": [], "right": []}
            for side, records in sides.items():
                (size,) = _SIZE.unpack_from(value, at)
                at += _SIZE.size
                end = at + size
                while at < end:
                    time, _, length = _RECORD.unpack_from(value, at)
                    at += _RECORD.size + length
                    times.append(time)
                    records.append(read(value[at - length : at], side))
            found.append(StateEntry(key, sides, min(times), max(times)))
        return found


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
