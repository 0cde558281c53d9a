"""Entries: what the commit log is a sequence of.

An entry is a header of 44 bytes and a payload.  One CRC-32 covers both, so every byte of every
record is checked at bulk speed.  ``docs/decisions/0001-log-entries.md`` tells why it is so.
"""

from __future__ import annotations

import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.errors import CorruptLogError

if TYPE_CHECKING:
    from headrace.protocol.records import Records
    from headrace.store.fileops import Buffer


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
    #: First in a segment: how everything stood there, see :mod:`headrace.store.entries`.
    STATE = 5
    #: From here on a topic keeps the newest record of each key; the payload is its name.
    COMPACT_TOPIC = 6
    #: Another primary writes from here on; the payload is the table of epochs.
    EPOCH = 7
    #: A fence around damage: what stood here is lost, see :mod:`headrace.store.entries`.
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


# Fences: VOID entries, which stand where damaged bytes stood and say what was lost with them.
#
# ``headrace store repair`` lays them.  A fence is as long as what it replaces, so that every other
# position of the log stays what it was; the queue offsets that are lost stay taken.

_MAGIC = b"HRVD"
#: Magic, number of losses.
_HEAD = struct.Struct("<4sI")
#: Bytes of the topic, queue id, first lost offset, one past the last, birth of the queue.
_LOSS = struct.Struct("<Hiqqq")
#: A deleted topic stands for all of its queues.
_ALL = -1
#: Recovery holds one entry in memory: a large hole gets many fences.
_LARGEST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Offsets of one queue that were lost, or (without any) that its topic was deleted there."""

    topic: str
    queue_id: int
    first: int
    #: One past the last lost offset.
    end: int
    #: Position of the queue's first entry when that is lost, too: it names the queue's life.
    birth: int = -1

    @classmethod
    def of_topic(cls, topic: str) -> Loss:
        """Return the loss of the entry that deleted a topic; the delete holds."""
        return cls(topic, _ALL, 0, 0)

    @property
    def is_delete(self) -> bool:
        """Whether it stands for a deleted topic."""
        return self.queue_id == _ALL

    @property
    def count(self) -> int:
        """Number of lost offsets."""
        return self.end - self.first

    @property
    def size(self) -> int:
        """Bytes that it takes in a fence."""
        return _LOSS.size + len(self.topic.encode())

    def __str__(self) -> str:
        if self.is_delete:
            return f"the entry that deleted topic {self.topic!r}"
        what = f"{self.first}" if self.count == 1 else f"{self.first} to {self.end - 1}"
        return f"topic {self.topic!r}, queue {self.queue_id}, offset {what}"


def room_for(losses: Sequence[Loss]) -> int:
    """Return the size of the payload that holds losses.

    A lost record took more room than its loss takes, so a fence holds what it stands for.
    """
    if len(losses) == 1 and losses[0].is_delete:
        return len(losses[0].topic.encode())
    return _HEAD.size + sum(loss.size for loss in losses) if losses else 0


def pack_losses(losses: Sequence[Loss], size: int) -> bytes:
    """Make the payload of a fence, of a given size.

    Examples
    --------
    >>> loss = Loss("lines", 2, 7, 9)
    >>> parse_losses(pack_losses([loss], 100)) == [loss]
    True
    >>> parse_losses(pack_losses([], 0))
    []
    """
    parts = [_HEAD.pack(_MAGIC, len(losses))] if losses else []
    for loss in losses:
        name = loss.topic.encode()
        numbers = (loss.queue_id, loss.first, loss.end, loss.birth)
        parts += [_LOSS.pack(len(name), *numbers), name]
    packed = b"".join(parts)
    if len(packed) > size and len(losses) == 1 and losses[0].is_delete:
        # As short as the entry that was lost.
        packed = losses[0].topic.encode()
    if len(packed) > size:
        raise ValueError(f"{len(losses)} losses take {len(packed)} bytes, there are {size}")
    return packed.ljust(size, b"\0")


def parse_losses(payload: Buffer) -> list[Loss]:
    """Read the losses that a fence names."""
    if len(payload) < _HEAD.size or bytes(payload[:4]) != _MAGIC:
        name = bytes(payload).rstrip(b"\0").decode()
        return [Loss.of_topic(name)] if name else []
    (_, count), at = _HEAD.unpack_from(payload), _HEAD.size
    losses = []
    for _ in range(count):
        size, queue_id, first, end, birth = _LOSS.unpack_from(payload, at)
        at += _LOSS.size
        losses.append(Loss(str(payload[at : at + size], "utf-8"), queue_id, first, end, birth))
        at += size
    return losses


def fence_sizes(size: int) -> list[int]:
    """Split a stretch into the sizes of fences, headers included; it takes at least a header.

    >>> fence_sizes(100), [size >> 20 for size in fence_sizes(9 << 20)]
    ([100], [4, 4, 1])
    """
    if size < HEADER_SIZE:
        raise ValueError(f"{size} bytes are less than the header of an entry")
    sizes = []
    while size > _LARGEST + HEADER_SIZE:
        sizes.append(_LARGEST)
        size -= _LARGEST
    return [*sizes, size]


# Scanning the log: entry after entry, each checked, with bounded memory.

_WINDOW = 16 * 1024 * 1024


class ScanSource(Protocol):
    """What a window looks into: a segment, or a file that is only inspected."""

    @property
    def base(self) -> int:
        """Position of the first byte."""

    @property
    def end(self) -> int:
        """One past the position of the last byte."""

    def read(self, position: int, size: int) -> bytearray:
        """Read bytes from a position on, as many as there are."""


class Window:
    """A stretch of one segment in memory, read again further on when an entry needs it."""

    def __init__(self, segment: ScanSource) -> None:
        self._segment = segment
        self._start = segment.base
        self._content = bytearray()
        self._bytes = memoryview(b"")

    def find(self, needle: bytes, position: int) -> int | None:
        """Return where bytes are found at or behind a position of the segment."""
        while position < self._segment.end:
            self.at(position, len(needle))
            found = self._content.find(needle, position - self._start)
            if found >= 0:
                return self._start + found
            # The needle may lie across the border to the next stretch.
            position = max(self._start + len(self._bytes) - len(needle) + 1, position + 1)
        return None

    def at(self, position: int, size: int) -> memoryview:
        """Return the bytes from a position on: at least ``size``, unless the segment ends."""
        size = max(min(size, self._segment.end - position), 0)
        offset = position - self._start
        if offset < 0 or offset + size > len(self._bytes):
            self._load(position, size)
            offset = 0
        return self._bytes[offset:]

    def _load(self, position: int, size: int) -> None:
        wanted = min(max(size, _WINDOW), self._segment.end - position)
        content = self._segment.read(position, wanted)
        self._start, self._content, self._bytes = position, content, memoryview(content)


def entry_at(window: Window, position: int) -> tuple[Entry, memoryview] | None:
    """Return the intact entry that begins at a position, with its payload; None if none does."""
    header = parse_header(window.at(position, HEADER_SIZE), 0, position)
    if header is None:
        return None
    # The size comes from the disk: the window never reads beyond the segment for it.
    whole = window.at(position, HEADER_SIZE + header.payload_size)
    if not is_intact(header, whole, 0):
        return None
    return header, whole[HEADER_SIZE : HEADER_SIZE + header.payload_size]


# Verification: no byte is served that was not once checked since the store was opened.
#
# What this process wrote, and what recovery read, is known to be good.  Older entries are checked
# when a reader first comes to them; a reader that goes on in order pays for each entry once.

#: A reader that skips at most so many bytes has them checked too: one range instead of many.
_BRIDGE = 1024 * 1024


class CheckedFile(Protocol):
    """A file of entries."""

    path: Path

    @property
    def base(self) -> int:
        """Position of the first byte."""

    @property
    def end(self) -> int:
        """One past the position of the last byte."""

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes between two positions."""


class CheckedLog(Protocol):
    """Finds the file that holds a position."""

    def segment_at(self, position: int, /) -> CheckedFile:
        """Return the file of a position."""


class Verification:
    """Knows which ranges of the log are good, and checks the others on demand."""

    def __init__(self, log: CheckedLog, good_from: int) -> None:
        self._log = log
        #: Everything from here on was checked by recovery or written by this process.
        self._good_from = good_from
        self._lock = threading.Lock()
        #: Disjoint ranges of whole entries, in order: firsts and lasts.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def check(self, first: int, last: int) -> None:
        """Make sure that a range inside one segment is good.

        Raises
        ------
        CorruptLogError
            When an entry in it does not match its checksum; the others stay readable.
        """
        if first >= self._good_from:
            return
        with self._lock:
            at = bisect_right(self._firsts, first) - 1
            if at >= 0 and last <= self._lasts[at]:
                return
            self._extend(first, last, at)

    def _extend(self, first: int, last: int, at: int) -> None:
        """Check the entries that cover a range, and remember them."""
        segment = self._log.segment_at(first)
        near = at >= 0 and max(first - _BRIDGE, segment.base) <= self._lasts[at]
        position = self._lasts[at] if near else self._entry_before(segment, first)
        if near:
            try:
                self._lasts[at] = self._walk(segment, position, last)
                return
            except CorruptLogError:
                # The damage may lie in what was skipped: look at the wanted entries alone.
                position = self._entry_before(segment, first)
        end = self._walk(segment, position, last)
        self._firsts.insert(at + 1, position)
        self._lasts.insert(at + 1, end)

    def _walk(self, segment: CheckedFile, position: int, last: int) -> int:
        view = segment.view(segment.base, segment.end)
        while position < last:
            offset = position - segment.base
            entry = parse_header(view, offset, position)
            if entry is None or not is_intact(entry, view, offset):
                raise _damage(segment, position)
            position = entry.end
        return position

    def _entry_before(self, segment: CheckedFile, position: int) -> int:
        """Return where the entry begins that holds a position: the last header in front of it."""
        view = segment.view(segment.base, segment.end)
        stop, step = position - segment.base, 64 * 1024
        while stop > 0:
            start = max(stop - step, 0)
            stretch = bytes(view[start : min(stop + HEADER_SIZE, len(view))])
            found = stretch.rfind(MAGIC)
            while found >= 0:
                entry = parse_header(view, start + found, segment.base + start + found)
                if entry is not None and _covers(entry, position):
                    return entry.position
                if entry is not None and is_intact(entry, view, start + found):
                    # The header behind it is the damaged one.
                    raise _damage(segment, entry.end)
                found = stretch.rfind(MAGIC, 0, found)
            stop, step = start, step * 4
        raise _damage(segment, position)


def _covers(entry: Entry, position: int) -> bool:
    return entry.payload_position <= position < entry.end


def _damage(segment: CheckedFile, position: int) -> CorruptLogError:
    return CorruptLogError(
        f"{segment.path}: the entry at byte {position - segment.base} (position {position} of "
        f"the log) does not match its checksum",
        hint="other messages stay readable; put the file back from a copy to get this one",
    )


# STATE entries: how everything stood where a segment begins, so that older ones can go.
#
# The log alone says which queues exist and where their offsets go on.  As retention deletes its
# beginning, each segment repeats that at its start: a replay may begin at any of them.


class QueueState(msgspec.Struct, frozen=True, array_like=True):
    """One queue."""

    topic: str
    queue_id: int
    #: Log position of the queue's first entry: names this life of the queue.
    birth: int
    #: Offset of its next record in the log, that of an unfinished unit included.
    next_offset: int


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a replay must know of the log before a position.

    Examples
    --------
    >>> state = LogState(timestamp=7, queues=[QueueState("lines", 0, 0, 12)])
    >>> decode_state(encode_state(state)) == state
    True
    """

    #: Highest store time so far, ms since 1970: the age of the segment before.
    timestamp: int
    queues: list[QueueState]
    #: Compacted topics, and since which position.
    compacted: dict[str, int] = {}
    #: Who wrote which part of the log: number, first position and mark of each epoch.
    epochs: list[tuple[int, int, int]] = []
    #: Position of the BEGIN of the unit that is being written, -1 outside one.
    unit: int = -1
    #: Records of that unit so far.
    unit_records: int = 0


_ADDED_BYTES = 65_535 + 3

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogState)


def encode_state(state: LogState) -> bytes:
    """Make the payload of a STATE entry."""
    return _encoder.encode(state)


def encode_state_of_size(state: LogState, size: int) -> bytes:
    """Make the payload of a STATE entry of a given size; what is added, a reader skips.

    At most 65,538 bytes can be added.

    Examples
    --------
    >>> state = LogState(timestamp=7, queues=[QueueState("lines", 0, 0, 12)])
    >>> room = len(encode_state(state))
    >>> {decode_state(encode_state_of_size(state, room + more)) == state for more in range(300)}
    {True}
    """
    missing = size - len(encode_state(state))
    if not 0 <= missing <= _ADDED_BYTES:
        raise ValueError(f"the state takes {size - missing} bytes, there are {size}")
    fields: list[object] = list(msgspec.to_builtins(state))
    # Bytes have a head of two, from 256 on of three: some sizes need one more that is empty.
    if missing in (1, 258):
        fields.append(None)
        missing -= 1
    if missing:
        fields.append(bytes(missing - (2 if missing <= 257 else 3)))
    return _encoder.encode(fields)


def decode_state(payload: bytes | memoryview) -> LogState:
    """Read the payload of a STATE entry.

    Raises
    ------
    msgspec.DecodeError
        The bytes are not a state.
    """
    return _decoder.decode(payload)


@dataclass(frozen=True, slots=True, eq=False)
class QueueAppend:
    """Ready-made records for one queue; the store stamps them in place.

    Whoever makes them vouches that all are of this queue: the store looks at the first one.
    Bytes that came over the network as records (staged ones) are checked one by one.
    """

    topic: str
    queue_id: int
    records: Records

    @property
    def key(self) -> QueueKey:
        """Topic and queue id."""
        return self.topic, self.queue_id

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return len(self.records.data)


QueueKey = tuple[str, int]
"""Topic and queue id."""
