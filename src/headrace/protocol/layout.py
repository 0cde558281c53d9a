"""Where the parts of stored records lie: the layout that columns and records share.

All of it works on a whole block of records at once; nothing makes an object per record but the
walk along records of uneven size, and that only when a search for their magic number fails.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptLogError, MessageTooLargeError, ProtocolError
from headrace.protocol.codes import SysFlag

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: First number after a record's size; the second one marks a two-byte topic length.
MAGIC = -626_843_481
MAGIC_V2 = -626_843_477

#: Everything in front of the body, with IPv4 hosts.
HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("position", ">i8"),
        ("sys_flag", ">i4"),
        ("born", ">i8"),
        ("born_ip", "S4"),
        ("born_port", ">i4"),
        ("stored", ">i8"),
        ("store_ip", "S4"),
        ("store_port", ">i4"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
HEAD_SIZE = HEAD.itemsize
#: A record without body, topic and properties.
MIN_RECORD = HEAD_SIZE + 3
#: What an IPv6 host takes more than an IPv4 host.
_V6_MORE = 12

_MAGIC_BYTES = struct.pack(">i", MAGIC)
_MAGIC_V2_LAST = struct.pack(">i", MAGIC_V2)[3]
#: With more first bytes of the magic number than this, walking is cheaper than searching.
_CROWDED = 32
_MAGICS = (MAGIC, MAGIC_V2)
#: Fewer records than this are gone through one by one in less time than columns take.
WORTH_COLUMNS = 24
#: Below so many bytes, walking is cheaper than anything else.
_SHORT_BLOCK = 4096
_HUGE = 0x7FFF_FFFF
_SYS_FLAG_AT = 36
_V6_HOSTS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_size_at = struct.Struct(">i").unpack_from
_short_at = struct.Struct(">h").unpack_from


@dataclass(frozen=True, slots=True, eq=False)
class BlockLayout:
    """Where the parts of each record of a block begin and end."""

    starts: Int64s
    #: One row of HEAD for each record; its hosts hold only if both are IPv4.
    head: npt.NDArray[np.void]
    body_starts: Int64s
    body_ends: Int64s
    topic_starts: Int64s
    topic_ends: Int64s
    property_starts: Int64s
    property_ends: Int64s


def as_bytes(block: Buffer) -> Bytes:
    """View a block as numbers."""
    if len(block) > _HUGE:
        raise ProtocolError(f"a block of {len(block)} bytes is too long, {_HUGE} are possible")
    return np.frombuffer(block, np.uint8) if len(block) else np.empty(0, np.uint8)


def at_each(block: Bytes, kind: np.dtype[np.void] | str, at: Int64s) -> npt.NDArray[Any]:
    """Read a value of the given kind at each place; all must lie within the block."""
    dtype = np.dtype(kind)
    size = dtype.itemsize
    # Overlapping one-byte strides address every place; raw bytes are copied much faster than
    # a structured type's fields one by one.
    everywhere = np.ndarray((max(0, len(block) - size + 1),), f"V{size}", block, strides=(1,))
    return everywhere[at].view(dtype)


def put_at_each(block: Bytes, at: Int64s, values: npt.NDArray[Any]) -> None:
    """Write a value at each place; all must lie within the block, which must be writable."""
    size = values.itemsize
    everywhere = np.ndarray((max(0, len(block) - size + 1),), f"V{size}", block, strides=(1,))
    everywhere[at] = values.view(f"V{size}")


def slices(block: Buffer, starts: Int64s, ends: Int64s) -> pa.BinaryArray:
    """Copy slices of a block, in ascending order and without overlap, into one column."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    # Every second item of this array is a slice, the others are the gaps between them.
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    interleaved = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return interleaved.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def record_starts(block: Buffer) -> Int64s:
    """Return where each record of a block begins, by sizes and magic numbers alone.

    Raises
    ------
    ProtocolError
        The block is not a sequence of whole records.
    """
    if len(block) < _SHORT_BLOCK:
        return _walked_starts(block)
    cells = as_bytes(block)
    starts = _even_starts(cells)
    if starts is None:
        starts = _searched_starts(cells)
    return _walked_starts(block) if starts is None else starts


def _is_magic(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = (numbers == MAGIC) | (numbers == MAGIC_V2)
    return known


def _even_starts(cells: Bytes) -> Int64s | None:
    """Return the starts of records that all have the first one's size, or None."""
    if len(cells) < MIN_RECORD:
        return None
    size = int(at_each(cells, ">i4", np.zeros(1, np.int64))[0])
    if size < MIN_RECORD or len(cells) % size:
        return None
    starts = np.arange(0, len(cells), size, dtype=np.int64)
    even = (at_each(cells, ">i4", starts) == size).all()
    return starts if even and _is_magic(at_each(cells, ">i4", starts + 4)).all() else None


def _searched_starts(cells: Bytes) -> Int64s | None:
    """Return the starts by the magic numbers' places, or None when a body holds one, too."""
    first = cells[: len(cells) - 3] == _MAGIC_BYTES[0]
    if np.count_nonzero(first) * _CROWDED > len(cells):
        return None
    at = np.flatnonzero(first)
    at = at[(cells[at + 1] == _MAGIC_BYTES[1]) & (cells[at + 2] == _MAGIC_BYTES[2])]
    last = cells[at + 3]
    at = at[(last == _MAGIC_BYTES[3]) | (last == _MAGIC_V2_LAST)]
    starts = at - 4
    if not len(starts) or starts[0] != 0:
        return None
    sizes = at_each(cells, ">i4", starts).astype(np.int64)
    ends = np.append(starts[1:], len(cells))
    fits = (starts + sizes == ends).all() and (sizes >= MIN_RECORD).all()
    return starts if fits else None


def _walked_starts(block: Buffer) -> Int64s:
    starts: list[int] = []
    at, end = 0, len(block)
    last = end - MIN_RECORD
    note = starts.append
    while at <= last:
        note(at)
        (size,) = _size_at(block, at)
        if size < MIN_RECORD:
            raise ProtocolError(f"the record at byte {at} claims a size of {size} bytes")
        at += size
    if at != end:
        raise ProtocolError(
            f"a block of {end} bytes does not end where its record {len(starts)} does ({at})"
        )
    found = np.array(starts, np.int64)
    if len(starts) < WORTH_COLUMNS:
        known = [_size_at(block, start + 4)[0] in _MAGICS for start in starts]
        magic = np.array(known, np.bool_)
    else:
        magic = _is_magic(at_each(as_bytes(block), ">i4", found + 4))
    _require(magic, found, "does not carry the magic number")
    return found


def record_parts(record: memoryview, at: int = 0) -> tuple[int, int, int]:
    """Return where a single record's body begins, where it ends, and where the topic ends.

    Raises
    ------
    ProtocolError
        It is not a record, or its parts do not fill it.  The message calls it the one at ``at``.
    """
    if len(record) < MIN_RECORD:
        raise ProtocolError(f"the record at byte {at} has {len(record)} bytes")
    (magic,) = _size_at(record, 4)
    if magic not in _MAGICS:
        raise ProtocolError(f"the record at byte {at} does not carry the magic number")
    (sys_flag,) = _size_at(record, _SYS_FLAG_AT)
    body_start = HEAD_SIZE + _V6_MORE * (sys_flag & _V6_HOSTS).bit_count()
    width = 1 if magic == MAGIC else 2
    if body_start + 2 + width <= len(record):
        (body_size,) = _size_at(record, body_start - 4)
        body_end = body_start + body_size
        topic_start = body_end + width
        if body_size >= 0 and topic_start + 2 <= len(record):
            topic_end = topic_start + int.from_bytes(record[body_end:topic_start])
            left = len(record) - topic_end - 2
            if left >= 0 and _short_at(record, topic_end) == (left,):
                return body_start, body_end, topic_end
    raise ProtocolError(f"the record at byte {at} has parts that do not fill it")


def _require(holds: npt.NDArray[np.bool_], starts: Int64s, what: str) -> None:
    if not holds.all():
        bad = int(np.argmin(holds))
        raise ProtocolError(f"record {bad}, at byte {int(starts[bad])} of its block, {what}")


def locate(block: Buffer, starts: Int64s) -> BlockLayout:
    """Locate the parts of the records that begin at the given places and fill the block.

    Raises
    ------
    ProtocolError
        The parts of a record do not fill it exactly.
    """
    cells = as_bytes(block)
    head = at_each(cells, HEAD, starts)
    ends = starts + head["size"]
    body_starts = starts + HEAD_SIZE
    v6 = head["sys_flag"] & _V6_HOSTS
    if v6.any():
        body_starts = body_starts + _shift_tails(cells, starts, ends, head)
    body_ends = body_starts + head["body_size"]
    what = "has parts that do not fill it"
    wide = head["magic"] == MAGIC_V2
    topic_starts = body_ends + 1 + wide
    _require((head["body_size"] >= 0) & (topic_starts + 2 <= ends), starts, what)
    topic_ends = topic_starts + cells[topic_starts - 1]
    if wide.any():
        topic_ends[wide] += cells[body_ends[wide]].astype(np.int64) << 8
    property_starts = topic_ends + 2
    _require(property_starts <= ends, starts, what)
    size = at_each(cells, ">i2", topic_ends)
    _require((size >= 0) & (property_starts + size == ends), starts, what)
    return BlockLayout(
        starts, head, body_starts, body_ends, topic_starts, topic_ends, property_starts, ends
    )


def _shift_tails(cells: Bytes, starts: Int64s, ends: Int64s, head: npt.NDArray[np.void]) -> Int64s:
    """Correct the heads of records with IPv6 hosts; return how far their bodies move."""
    flags = head["sys_flag"]
    born = np.where(flags & SysFlag.BORN_HOST_V6, _V6_MORE, 0)
    both = born + np.where(flags & SysFlag.STORE_HOST_V6, _V6_MORE, 0)
    _require(starts + MIN_RECORD + both <= ends, starts, "is too short for its hosts")
    head["stored"] = at_each(cells, HEAD, starts + born)["stored"]
    tail = at_each(cells, HEAD, starts + both)
    for name in ("reconsume_times", "prepared_offset", "body_size"):
        head[name] = tail[name]
    return both


# The few fields of a stored record that the store itself reads.

BORN_HOST_V6 = int(SysFlag.BORN_HOST_V6)
_STORE_HOST_V6 = int(SysFlag.STORE_HOST_V6)

#: What a record may hold beside its body: head, topic, properties.
MAX_ENVELOPE = 64 * 1024

#: Total size, magic, body CRC, queue id, flag, queue offset, position, system flag.
_HEAD = struct.Struct(">iiIiiqqi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">H")

_QUEUE_ID = 12
_QUEUE_OFFSET = 20
_POSITION = 28
_BORN_HOST = 48


def record_size_at(view: Buffer, position: int) -> int | None:
    """Return the size of the record that begins a view, or None if none begins there."""
    if len(view) < _HEAD.size:
        return None
    size, magic, _, _, _, _, own, _ = _HEAD.unpack_from(view)
    if magic not in (MAGIC, MAGIC_V2) or own != position or size <= _HEAD.size:
        return None
    return int(size)


def record_magics(content: bytes, position: int) -> Iterator[int]:
    """Yield where records are in bytes from a position of the log on, whether intact or not.

    A record is one if it has the magic number and names the position where it stands.
    """
    for magic in (MAGIC, MAGIC_V2):
        needle = struct.pack(">i", magic)
        found = content.find(needle)
        while found >= 0:
            at = found - 4
            if at >= 0 and record_size_at(memoryview(content)[at:], position + at) is not None:
                yield at
            found = content.find(needle, found + 1)


def _topic_of(record: Buffer) -> tuple[int, int]:
    """Return where the topic of a record begins and where it ends.

    Raises
    ------
    struct.error, IndexError
        The bytes end before.
    """
    _, magic, _, _, _, _, _, flags = _HEAD.unpack_from(record)
    at = _born_host_end(flags) + 8
    at += (20 if flags & _STORE_HOST_V6 else 8) + 4 + 8
    at += 4 + _INT.unpack_from(record, at)[0]
    if magic == MAGIC_V2:
        return at + 2, at + 2 + _SHORT.unpack_from(record, at)[0]
    return at + 1, at + 1 + record[at]


def _born_host_end(flags: int) -> int:
    return _BORN_HOST + (20 if flags & BORN_HOST_V6 else 8)


def fills_its_size(record: Buffer) -> bool:
    """Return whether the lengths of body, topic and properties add up to the size of a record."""
    try:
        _, end = _topic_of(record)
        return bool(end + 2 + _SHORT.unpack_from(record, end)[0] == _INT.unpack_from(record)[0])
    except (struct.error, IndexError):
        return False


def queue_offset_of(record: Buffer) -> int:
    """Read the queue offset of a record."""
    return int(_LONG.unpack_from(record, _QUEUE_OFFSET)[0])


def store_time_of(record: Buffer) -> int:
    """Read when a record was stored, ms since 1970."""
    flags = _HEAD.unpack_from(record)[7]
    return int(_LONG.unpack_from(record, _born_host_end(flags))[0])


def queue_of(record: Buffer) -> tuple[str, int]:
    """Read topic and queue id of a record.

    Raises
    ------
    CorruptLogError
        When the bytes are not a record.
    """
    try:
        begin, end = _topic_of(record)
        return str(memoryview(record)[begin:end], "utf-8"), int(_HEAD.unpack_from(record)[3])
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptLogError(f"bytes in the log are no record: {error}") from error


def _place_in(record: memoryview, at: int) -> tuple[int, bytes]:
    """Return the queue id and the topic of a record whose parts fill it."""
    _, body_end, topic_end = record_parts(record, at)
    width = 1 if _size_at(record, 4)[0] == MAGIC else 2
    return _size_at(record, _QUEUE_ID)[0], bytes(record[body_end + width : topic_end])


def are_of_one_queue(data: Buffer, starts: npt.ArrayLike) -> bool:
    """Return whether all records of a block name the topic and queue id that the first one names.

    >>> from headrace.protocol.records import encode_records, join_records
    >>> left, right = (encode_records("lines", queue, [b"x"], None, 0) for queue in (0, 1))
    >>> both = join_records([left, right])
    >>> are_of_one_queue(left.data, left.starts), are_of_one_queue(both.data, both.starts)
    (True, False)
    """
    begins = np.asarray(starts, np.int64)
    if len(begins) < 2:
        return True
    if len(begins) < WORTH_COLUMNS:
        view, ends = memoryview(data), [*begins[1:].tolist(), len(data)]
        places = zip(begins.tolist(), ends, strict=True)
        return len({_place_in(view[start:end], start) for start, end in places}) == 1
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
