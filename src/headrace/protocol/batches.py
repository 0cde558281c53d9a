"""Batches as producers send them, and the records that a broker makes of them.

A batch is a sequence of mini messages: size (4 bytes), magic and CRC (4 each, unused), flag (4),
body (4 and its bytes), properties (2 and their bytes).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol.hosts import LOCALHOST, Host
from headrace.protocol.layout import HEAD, HEAD_SIZE, Int64s, as_bytes, at_each, slices
from headrace.protocol.properties import MAX_PROPERTIES
from headrace.protocol.records import (
    RecordFields,
    Records,
    assemble,
    checksums,
    write_record,
)

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

__all__ = [
    "MINI_HEAD_SIZE",
    "batch_starts",
    "batch_to_records",
    "largest_records",
    "write_mini_message",
]

_MINI = struct.Struct(">iiiii")
_MINI_HEAD = np.dtype([("size", ">i4"), ("unused", "V8"), ("flag", ">i4"), ("body_size", ">i4")])
#: What a mini message has in front of its body.
MINI_HEAD_SIZE = _MINI.size
_MIN_MINI = MINI_HEAD_SIZE + 2
#: From here on, a mini message's bytes are a record's: the size of the body, the body.
_KEPT_AT = MINI_HEAD_SIZE - 4
#: Of a record: size, magic, CRC, queue and flag.
_START = struct.Struct(">iiiii")
#: From so many bytes on, columns are faster than a loop.
_WORTH_COLUMNS = 128 * 1024
_size_at = struct.Struct(">i").unpack_from
_mini_at = struct.Struct(">i8xii").unpack_from
_size_of_properties = struct.Struct(">h").unpack_from


def write_mini_message(body: Buffer, properties: bytes, flag: int = 0) -> list[Buffer]:
    """Write one mini message in pieces; the properties must not exceed their length field."""
    size = _MIN_MINI + len(body) + len(properties)
    head = _MINI.pack(size, 0, 0, flag, len(body))
    return [head, body, len(properties).to_bytes(2), properties]


def batch_starts(batch: Buffer) -> list[int]:
    """Find where each mini message begins.

    Raises
    ------
    ProtocolError
        The batch is not a sequence of whole mini messages.
    """
    starts: list[int] = []
    add, size_at, least = starts.append, _size_at, _MIN_MINI
    at, last = 0, len(batch) - least
    while at <= last:
        add(at)
        size = size_at(batch, at)[0]
        if size < least:
            raise _too_small(len(starts) - 1, size)
        at += size
    if at != len(batch):
        raise _torn(batch)
    return starts


def _too_small(number: int, size: int) -> ProtocolError:
    return ProtocolError(f"message {number} of a batch claims {size} bytes")


def _torn(batch: Buffer) -> ProtocolError:
    return ProtocolError(f"a batch of {len(batch)} bytes does not end where its last message does")


def largest_records(batch: Buffer, topic: str, extra: int, *, enough: int) -> int:
    """Bound the bytes of the records made of a batch; exact only above ``enough``.

    Raises
    ------
    ProtocolError
        The batch is not a sequence of whole mini messages.
    """
    more = HEAD_SIZE + 4 + len(topic) + 1 + extra
    size = len(batch) + len(batch) // _MIN_MINI * more
    return size if size <= enough else len(batch) + len(batch_starts(batch)) * more


def batch_to_records(
    mini_batch: Buffer,
    topic: str,
    queue_id: int,
    born: int = 0,
    sys_flag: int = 0,
    flag: int = 0,
    born_host: Host = LOCALHOST,
    extra_properties: bytes = b"",
) -> Records:
    r"""Make records of a batch.

    The extra properties come in front of each message's own, so that its own win; a message
    without a flag of its own takes the given one.

    Raises
    ------
    ProtocolError
        The batch is not a sequence of whole mini messages.
    MessageRejectedError
        The topic's name or a message's properties are too long.

    Examples
    --------
    >>> batch = b"".join(write_mini_message(b"to be", b"TAGS\x01red\x02"))
    >>> records = batch_to_records(batch, "lines", 3, extra_properties=b"TAGS\x01none\x02")
    >>> b"TAGS\x01none\x02TAGS\x01red\x02" in records.data
    True
    """
    if extra_properties and not extra_properties.endswith(b"\x02"):
        extra_properties += b"\x02"
    fields = RecordFields(
        queue_id=queue_id, born=born, sys_flag=sys_flag, flag=flag, born_host=born_host
    )
    make = _by_columns if len(mini_batch) >= _WORTH_COLUMNS else _spliced
    return make(mini_batch, topic, extra_properties, fields)


def _spliced(batch: Buffer, topic: str, extra: bytes, fields: RecordFields) -> Records:
    """Cut the batch up and join it with what records have more."""
    data = bytes(batch)
    before, host, after, _, tail = write_record(topic, b"", b"", fields)
    head, name = b"".join((before, host, after[:-4])), bytes(tail[:-2])
    _, magic, _, queue_id, usual = _START.unpack_from(head)
    rest = head[_START.size :]
    more = len(head) - _KEPT_AT + len(name) + len(extra)
    pieces: list[bytes] = []
    starts: list[int] = []
    place = 0
    for at, body_end, end, flag in _parts(data):
        starts.append(place)
        size = end - at + more
        place += size
        crc = zlib.crc32(data[at + MINI_HEAD_SIZE : body_end]) & 0x7FFF_FFFF
        properties = data[body_end:end]
        pieces += (
            _START.pack(size, magic, crc, queue_id, flag or usual),
            rest,
            data[at + _KEPT_AT : body_end],
            name,
            _with_extra(extra, properties) if extra else properties,
        )
    return Records(bytearray().join(pieces), np.array(starts, np.int64))


def _parts(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Give begin, end of the body, end and flag of each message, once its parts fill it."""
    at, number, last = 0, 0, len(data) - _MIN_MINI
    while at <= last:
        size, flag, body_size = _mini_at(data, at)
        body_end, end = at + MINI_HEAD_SIZE + body_size, at + size
        if size < _MIN_MINI:
            raise _too_small(number, size)
        if end > len(data):
            break
        fits = body_size >= 0 and body_end + 2 <= end
        if not fits or _size_of_properties(data, body_end)[0] != end - body_end - 2:
            raise _misfit(number)
        yield at, body_end, end, flag
        at, number = end, number + 1
    if at != len(data):
        raise _torn(data)


def _with_extra(extra: bytes, properties: bytes) -> bytes:
    size = len(extra) + len(properties) - 2
    if size > MAX_PROPERTIES:
        raise MessageRejectedError(
            f"a message's properties take {size} bytes, {MAX_PROPERTIES} are possible",
            hint="put large values into the body",
        )
    return b"".join((size.to_bytes(2), extra, properties[2:]))


def _misfit(number: int) -> ProtocolError:
    return ProtocolError(f"message {number} of a batch has parts that do not fill it")


def _checked_parts(batch: Buffer, starts: Int64s, body_ends: Int64s) -> npt.NDArray[np.void]:
    """Give the heads of the messages if body and properties fill each."""
    cells = as_bytes(batch)
    mini = at_each(cells, _MINI_HEAD, starts)
    ends = starts + mini["size"]
    fits = (mini["body_size"] >= 0) & (body_ends + 2 <= ends)
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    fits = at_each(cells, ">i2", body_ends) == ends - body_ends - 2
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    return mini


def _by_columns(batch: Buffer, topic: str, extra: bytes, fields: RecordFields) -> Records:
    starts = np.array(batch_starts(batch), np.int64)
    body_starts = starts + MINI_HEAD_SIZE
    sizes = at_each(as_bytes(batch), ">i4", starts + _KEPT_AT).astype(np.int64)
    body_ends = body_starts + sizes
    mini = _checked_parts(batch, starts, body_ends)
    bodies = slices(batch, body_starts, body_ends)
    properties = slices(batch, body_ends + 2, starts + mini["size"])
    head = np.zeros(len(starts), HEAD)
    head["queue_id"] = fields.queue_id
    head["born"] = fields.born
    head["sys_flag"] = fields.sys_flag
    head["flag"] = np.where(mini["flag"] == 0, fields.flag, mini["flag"])
    head["crc"] = checksums(bodies.to_pylist())
    if extra:
        properties = pc.binary_join_element_wise(pa.scalar(extra, pa.binary()), properties, b"")
    return assemble(topic, head, bodies, properties, fields.born_host)
