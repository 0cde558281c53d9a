"""Entries: what the commit log is a sequence of.

An entry is a header of 44 bytes and a payload.  One CRC-32 covers both, so every byte of every
record is checked at bulk speed.  ``docs/decisions/0001-log-entries.md`` tells why it is so.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer

__all__ = [
    "HEADER_SIZE",
    "MAGIC",
    "NO_UNIT",
    "UNTAGGED",
    "Entry",
    "EntryKind",
    "is_intact",
    "pack_header",
    "parse_header",
]

MAGIC = b"HRLE"
NO_UNIT = -1
UNTAGGED = 1
"""Flag of an entry none of whose records has a tag: a replay need not look for any."""

_VERSION = 1
#: magic, version, kind, flags, payload size, record count, position, synced, unit.
_FIELDS = struct.Struct("<4sBBHIIqqq")
_CRC = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CRC.size


class EntryKind(IntEnum):
    """What an entry means."""

    #: Records of one queue.
    DATA = 1
    #: A unit begins: what follows counts only together with its end.
    BEGIN = 2
    #: The unit is whole.
    END = 3
    #: A topic was deleted; the payload is its name.
    DROP_TOPIC = 4
    #: First in a segment: how everything stood there, see :mod:`headrace.store.state`.
    STATE = 5
    #: From here on a topic keeps the newest record of each key; the payload is its name.
    COMPACT_TOPIC = 6
    #: Another primary writes from here on; the payload is the table of epochs.
    EPOCH = 7
    #: A fence around damage: what stood here is lost, see :mod:`headrace.store.fences`.
    VOID = 8


_KINDS = {int(kind): kind for kind in EntryKind}


@dataclass(frozen=True, slots=True)
class Entry:
    """The header of one entry."""

    kind: EntryKind
    #: Where the header begins in the log; a header elsewhere is not an entry.
    position: int
    payload_size: int
    #: Records in the payload; for END, in the unit.
    count: int
    #: The log was on disk up to here when the entry was written: proof for recovery that an
    #: older entry that is now unreadable was damaged, not torn.
    synced: int
    #: Position of the unit's BEGIN, or ``NO_UNIT``.
    unit: int
    crc: int
    flags: int = 0

    @property
    def payload_position(self) -> int:
        """Where the payload begins in the log."""
        return self.position + HEADER_SIZE

    @property
    def end(self) -> int:
        """One past the entry's last byte."""
        return self.position + HEADER_SIZE + self.payload_size


def pack_header(
    kind: EntryKind,
    position: int,
    payload: Buffer,
    count: int = 0,
    *,
    synced: int,
    unit: int,
    flags: int = 0,
) -> bytes:
    """Make the header of an entry, with the CRC over header and payload.

    Examples
    --------
    >>> header = pack_header(EntryKind.DATA, 0, b"records", 1, synced=0, unit=NO_UNIT)
    >>> parse_header(header, 0, 0).payload_size
    7
    """
    fields = _FIELDS.pack(MAGIC, _VERSION, kind, flags, len(payload), count, position, synced, unit)
    return fields + _CRC.pack(zlib.crc32(payload, zlib.crc32(fields)))


def parse_header(buffer: Buffer, at: int, position: int) -> Entry | None:
    """Read the header at an index of a buffer; None unless it belongs at that position."""
    if len(buffer) - at < HEADER_SIZE:
        return None
    magic, version, kind, flags, size, count, own, synced, unit = _FIELDS.unpack_from(buffer, at)
    if magic != MAGIC or version != _VERSION or own != position or kind not in _KINDS:
        return None
    (crc,) = _CRC.unpack_from(buffer, at + _FIELDS.size)
    return Entry(_KINDS[kind], own, size, count, synced, unit, crc, flags)


def is_intact(entry: Entry, buffer: memoryview, at: int) -> bool:
    """Check the CRC of an entry whose header begins at an index of a buffer."""
    payload = buffer[at + HEADER_SIZE : at + HEADER_SIZE + entry.payload_size]
    if len(payload) < entry.payload_size:
        return False
    fields = zlib.crc32(buffer[at : at + _FIELDS.size])
    return zlib.crc32(payload, fields) == entry.crc
