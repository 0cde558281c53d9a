"""STATE entries: how everything stood where a segment begins, so that older ones can go.

The log alone says which queues exist and where their offsets go on.  As retention deletes its
beginning, each segment repeats that at its start: a replay may begin at any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.store.entries import HEADER_SIZE, EntryKind, is_intact, parse_header

if TYPE_CHECKING:
    from headrace.store.log import Segment


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
    # Bytes have a head of two, from 256 on of three: some sizes need one that is nothing, too.
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
        The bytes are no state.
    """
    return _decoder.decode(payload)


def read_state(segment: Segment) -> LogState | None:
    """Read the STATE that begins a segment; None when there is none, or it is damaged."""
    entry = parse_header(segment.read(segment.base, HEADER_SIZE), 0, segment.base)
    if entry is None or entry.kind is not EntryKind.STATE or entry.end > segment.end:
        return None
    content = memoryview(segment.read(segment.base, HEADER_SIZE + entry.payload_size))
    if not is_intact(entry, content, 0):
        return None
    return decode_state(content[HEADER_SIZE:])
