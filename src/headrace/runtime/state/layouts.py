"""How operators lay out their stores: which record key an entry belongs to, and what it says.

Rescaling moves entries by the key that they belong to; views show people what lies in them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.keys import decode_key, partition_of

_BIAS = 1 << 63

Read = Callable[[bytes, str], Any]
"""Turns the bytes of a value into what it says; the text names the serde of the operator."""

Span = tuple[bytes, bytes]
"""State keys from the first to before the second."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One thing that a state store keeps."""

    #: The record key that it belongs to.
    key: Any
    value: Any
    #: Bounds of its window, ms since 1970; None where there is none.
    start: int | None = None
    end: int | None = None
    #: Which part of the operator's state it is, where there are several.
    part: str = ""
    #: What it lies under within the part: the key in a map, the number in a list.
    item: Any = None


class StateLayout(ABC):
    """What must be known of a store to read it without its operator."""

    #: State keys are the record keys.
    plain = False
    #: Every partition has all entries.
    everywhere = False

    def of(self, shape: Mapping[str, str]) -> StateLayout:
        """Return the layout of one store, with what the commit record says of its shape."""
        del shape
        return self

    def spans(self, key: bytes) -> list[Span] | None:
        """Return where the entries of a record key lie, or None if they may lie anywhere."""
        del key
        return None

    def place(self, key: bytes, partitions: int) -> int:
        """Return the partition that keeps what belongs to a record key."""
        return partition_of(key, partitions)

    def places(self, entries: Sequence[bytes], partitions: int) -> list[int]:
        """Return the partitions that keep entries, by their state keys."""
        return [self.place(self.key_of(entry), partitions) for entry in entries]

    def gathered(self, entries: Sequence[StateEntry]) -> Any:
        """Put together what the entries of one key say, given in the order of their times.

        The latest value, or of a state with parts a dict of them.
        """
        parts: dict[str, Any] = {}
        for entry in entries:
            if entry.item is None:
                parts[entry.part] = entry.value
            else:
                parts.setdefault(entry.part, {})[entry.item] = entry.value
        return parts.get("") if "" in parts or not parts else parts

    @abstractmethod
    def key_of(self, entry: bytes) -> bytes:
        """Return the canonical bytes of the record key that an entry belongs to, by its state key."""

    @abstractmethod
    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return what an entry says; nothing for those that only the operator needs."""


class PlainLayout(StateLayout):
    """State keys are the record keys."""

    plain = True

    def spans(self, key: bytes) -> list[Span]:
        """Return the one entry."""
        return [only(key)]

    def key_of(self, entry: bytes) -> bytes:
        """Return the state key itself."""
        return entry

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the key's value."""
        return [StateEntry(decode_key(entry), read(value, ""))]


class TimeWindowLayout(StateLayout):
    """A family byte, end and start of the window, the key; the value behind a time."""

    _head = struct.Struct(">xQQ")
    _time = 8

    def key_of(self, entry: bytes) -> bytes:
        """Return what stands behind the bounds."""
        return entry[self._head.size :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the window's value."""
        end, start = self._head.unpack_from(entry)
        key = decode_key(self.key_of(entry))
        return [StateEntry(key, read(value[self._time :], ""), start - _BIAS, end - _BIAS)]


class PartLayout(StateLayout):
    """All parts of a key in one entry (``p``, key), and its timer (``t``, time, key)."""

    _part = struct.Struct(">qqqI")
    _time = 8

    def spans(self, key: bytes) -> list[Span]:
        """Return the entry of all parts."""
        return [only(b"p" + key)]

    def key_of(self, entry: bytes) -> bytes:
        """Return what stands behind the family, and behind the time of a timer."""
        return entry[1:] if entry[:1] == b"p" else entry[1 + self._time :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the parts, each with its first and last time."""
        if entry[:1] != b"p":
            return []
        key, at, found = decode_key(entry[1:]), self._time, []
        while at < len(value):
            first, last, _, size = self._part.unpack_from(value, at)
            at += self._part.size + size
            found.append(StateEntry(key, read(value[at - size : at], ""), first, last))
        return found


class LatestLayout(StateLayout):
    """The latest value of each side: ``l`` or ``r``, the key; the value behind its time."""

    _time = 8

    def spans(self, key: bytes) -> list[Span]:
        """Return the entry of each side."""
        return [only(side + key) for side in _SIDES]

    def key_of(self, entry: bytes) -> bytes:
        """Return what stands behind the side."""
        return entry[1:]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the side's value."""
        side = _SIDES.get(entry[:1], "")
        return [StateEntry(decode_key(entry[1:]), read(value[self._time :], side), part=side)]


class RowLayout(LatestLayout):
    """The rows of a table: ``l``, the key; the value behind its time.

    Parameters
    ----------
    serde
        Which serde of the operator writes the values.
    everywhere
        Whether every partition has all rows.
    """

    def __init__(self, serde: str, *, everywhere: bool = False) -> None:
        self._serde = serde
        self.everywhere = everywhere

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the row."""
        return [StateEntry(decode_key(entry[1:]), read(value[self._time :], self._serde))]


class BucketLayout(StateLayout):
    """Records that wait for others, and timers, as :mod:`headrace.runtime.joins.buckets` has them.

    A timer is ``t``, time, side, number of a block, and key.
    """

    #: Where keys begin, by family.
    _heads: ClassVar[dict[bytes, int]] = {b"l": 9, b"r": 9, b"L": 13, b"R": 13, b"t": 14}
    _count = 4

    def key_of(self, entry: bytes) -> bytes:
        """Return what stands behind the stretch, and behind the side and block of a timer."""
        return entry[self._heads[entry[:1]] :]

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the records, each with its time."""
        side = _SIDES.get(entry[:1].lower())
        if side is None:
            return []
        at = self._count if entry[:1].islower() else 0
        return waiting(decode_key(self.key_of(entry)), value[at:], side, read)


_RECORD = struct.Struct("<q?I")


def waiting(key: Any, value: bytes, side: str, read: Read) -> list[StateEntry]:
    """Return the records of a block, each with its time."""
    at, found = 0, []
    while at < len(value):
        time, _, size = _RECORD.unpack_from(value, at)
        at += _RECORD.size + size
        found.append(StateEntry(key, read(value[at - size : at], side), time, time, side))
    return found


_SIDES = {b"l": "left", b"r": "right"}


def only(entry: bytes) -> Span:
    """Return the span of one state key."""
    return entry, entry + b"\0"
