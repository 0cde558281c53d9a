"""The few fields of a stored record that the store itself reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, MessageTooLargeError
from headrace.protocol.layout import as_bytes, at_each, locate

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer

__all__ = [
    "are_of_one_queue",
    "check_sizes",
    "fills_its_size",
    "queue_of",
    "queue_offset_of",
    "record_magics",
    "record_size_at",
    "store_time_of",
]

BORN_HOST_V6 = 16
STORE_HOST_V6 = 32
MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

#: What a record may hold beside its body: head, topic, properties.
MAX_ENVELOPE = 64 * 1024

#: Total size, magic, body CRC, queue id, flag, queue offset, position, system flag.
_HEAD = struct.Struct(">iIIiiqqi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">H")

_QUEUE_OFFSET = 20
_POSITION = 28
_BORN_HOST = 48


def record_size_at(view: Buffer, position: int) -> int | None:
    """Size of the record that begins a view, or None if none begins there."""
    if len(view) < _HEAD.size:
        return None
    size, magic, _, _, _, _, own, _ = _HEAD.unpack_from(view)
    if magic not in (MAGIC_V1, MAGIC_V2) or own != position or size <= _HEAD.size:
        return None
    return int(size)


def record_magics(content: bytes, position: int) -> Iterator[int]:
    """Find the records in bytes from a position of the log on, whether intact or not.

    A record is one if it has the magic number and names the position where it stands.
    """
    for magic in (MAGIC_V1, MAGIC_V2):
        needle = struct.pack(">I", magic)
        found = content.find(needle)
        while found >= 0:
            at = found - 4
            if at >= 0 and record_size_at(memoryview(content)[at:], position + at) is not None:
                yield at
            found = content.find(needle, found + 1)


def fills_its_size(record: Buffer) -> bool:
    """Whether the lengths of body, topic and properties add up to the size of a record."""
    try:
        size, magic, _, _, _, _, _, flags = _HEAD.unpack_from(record)
        at = _BORN_HOST + (20 if flags & BORN_HOST_V6 else 8) + 8
        at += (20 if flags & STORE_HOST_V6 else 8) + 4 + 8
        at += 4 + _INT.unpack_from(record, at)[0]
        if magic == MAGIC_V2:
            at += 2 + _SHORT.unpack_from(record, at)[0]
        else:
            at += 1 + record[at]
        return bool(at + 2 + _SHORT.unpack_from(record, at)[0] == size)
    except (struct.error, IndexError):
        return False


def queue_offset_of(record: Buffer) -> int:
    """Read the queue offset of a record."""
    return int(_LONG.unpack_from(record, _QUEUE_OFFSET)[0])


def store_time_of(record: Buffer) -> int:
    """Read when a record was stored, ms since 1970."""
    flags = _HEAD.unpack_from(record)[7]
    at = _BORN_HOST + (20 if flags & BORN_HOST_V6 else 8)
    return int(_LONG.unpack_from(record, at)[0])


def queue_of(record: Buffer) -> tuple[str, int]:
    """Read topic and queue id of a record.

    Raises
    ------
    CorruptLogError
        When the bytes are no record.
    """
    try:
        _, magic, _, queue_id, _, _, _, flags = _HEAD.unpack_from(record)
        at = _BORN_HOST + (20 if flags & BORN_HOST_V6 else 8) + 8
        at += (20 if flags & STORE_HOST_V6 else 8) + 4 + 8
        at += 4 + _INT.unpack_from(record, at)[0]
        if magic == MAGIC_V2:
            size, at = _SHORT.unpack_from(record, at)[0], at + 2
        else:
            size, at = record[at], at + 1
        return str(memoryview(record)[at : at + size], "utf-8"), int(queue_id)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptLogError(f"bytes in the log are no record: {error}") from error


def are_of_one_queue(data: Buffer, starts: npt.ArrayLike) -> bool:
    """Whether all records of a block name the topic and the queue id that the first one names.

    >>> from headrace.protocol.columns import encode_records, join_records
    >>> left, right = (encode_records("lines", queue, [b"x"], None, 0) for queue in (0, 1))
    >>> both = join_records([left, right])
    >>> are_of_one_queue(left.data, left.starts), are_of_one_queue(both.data, both.starts)
    (True, False)
    """
    begins = np.asarray(starts, np.int64)
    if len(begins) < 2:
        return True
    layout = locate(data, begins)
    lengths = layout.topic_ends - layout.topic_starts
    if (layout.head["queue_id"] != layout.head["queue_id"][0]).any() or np.ptp(lengths):
        return False
    names = at_each(as_bytes(data), f"V{max(int(lengths[0]), 1)}", layout.topic_starts)
    return bool((names == names[0]).all())


def check_sizes(starts: npt.NDArray[np.int64], size: int, max_message_size: int) -> None:
    """Refuse records that are too large.

    Raises
    ------
    MessageTooLargeError
        Names the largest record and the limit.
    """
    if size <= max_message_size:
        return
    largest = int(np.diff(starts, append=size).max())
    if largest > max_message_size + MAX_ENVELOPE:
        raise MessageTooLargeError(
            f"a stored message of {largest} bytes is larger than max_message_size "
            f"({max_message_size}) allows",
            hint="send smaller messages, or raise max_message_size of the broker",
        )
