"""Batches as producers send them, and the records that a broker makes of them.

A batch is a sequence of mini messages: size (4 bytes), magic and CRC (4 each, unused), flag (4),
body (4 and its bytes), properties (2 and their bytes).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProtocolError
from headrace.protocol.hosts import LOCALHOST, Host
from headrace.protocol.layout import HEAD, Int64s, as_bytes, at_each, slices
from headrace.protocol.records import (
    RecordFields,
    Records,
    assemble,
    checksums,
    write_record,
)

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

__all__ = ["MINI_HEAD_SIZE", "batch_starts", "batch_to_records", "write_mini_message"]

_MINI = struct.Struct(">iiiii")
_MINI_HEAD = np.dtype([("size", ">i4"), ("unused", "V8"), ("flag", ">i4"), ("body_size", ">i4")])
#: What a mini message has in front of its body.
MINI_HEAD_SIZE = _MINI.size
_MIN_MINI = MINI_HEAD_SIZE + 2
#: From so many messages on, columns are faster than a loop.
_WORTH_COLUMNS = 48
_size_at = struct.Struct(">i").unpack_from
_short_at = struct.Struct(">h").unpack_from


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
    at, end = 0, len(batch)
    while at + _MIN_MINI <= end:
        starts.append(at)
        (size,) = _size_at(batch, at)
        if size < _MIN_MINI:
            raise ProtocolError(f"message {len(starts) - 1} of a batch claims {size} bytes")
        at += size
    if at != end:
        raise ProtocolError(f"a batch of {end} bytes does not end where its last message does")
    return starts


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
    starts = batch_starts(mini_batch)
    if extra_properties and not extra_properties.endswith(b"\x02"):
        extra_properties += b"\x02"
    fields = RecordFields(
        queue_id=queue_id, born=born, sys_flag=sys_flag, flag=flag, born_host=born_host
    )
    make = _by_columns if len(starts) >= _WORTH_COLUMNS else _one_by_one
    return make(mini_batch, starts, topic, extra_properties, fields)


def _misfit(number: int) -> ProtocolError:
    return ProtocolError(f"message {number} of a batch has parts that do not fill it")


def _one_by_one(
    batch: Buffer, starts: list[int], topic: str, extra: bytes, fields: RecordFields
) -> Records:
    view = memoryview(batch)
    pieces: list[Buffer] = []
    records: list[int] = []
    total = 0
    for number, at in enumerate(starts):
        size, _, _, flag, body_size = _MINI.unpack_from(batch, at)
        end = at + size
        body_end = at + MINI_HEAD_SIZE + body_size
        own = body_end + 2
        if body_size < 0 or own > end or _short_at(batch, body_end) != (end - own,):
            raise _misfit(number)
        mine = replace(fields, flag=flag) if flag else fields
        body = view[at + MINI_HEAD_SIZE : body_end]
        written = write_record(topic, body, extra + view[own:end], mine)
        pieces += written
        records.append(total)
        total += sum(map(len, written))
    return Records(bytearray().join(pieces), np.array(records, np.int64))


def _by_columns(
    batch: Buffer, starts: list[int], topic: str, extra: bytes, fields: RecordFields
) -> Records:
    mini, bodies, properties = _parts(batch, np.array(starts, np.int64))
    head = np.zeros(len(starts), HEAD)
    head["queue_id"] = fields.queue_id
    head["born"] = fields.born
    head["sys_flag"] = fields.sys_flag
    head["flag"] = np.where(mini["flag"] == 0, fields.flag, mini["flag"])
    head["crc"] = checksums(bodies.to_pylist())
    if extra:
        properties = pc.binary_join_element_wise(pa.scalar(extra, pa.binary()), properties, b"")
    return assemble(topic, head, bodies, properties, fields.born_host)


def _parts(
    batch: Buffer, starts: Int64s
) -> tuple[npt.NDArray[np.void], pa.BinaryArray, pa.BinaryArray]:
    cells = as_bytes(batch)
    mini = at_each(cells, _MINI_HEAD, starts)
    ends = starts + mini["size"]
    body_starts = starts + MINI_HEAD_SIZE
    body_ends = body_starts + mini["body_size"]
    fits = (mini["body_size"] >= 0) & (body_ends + 2 <= ends)
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    fits = at_each(cells, ">i2", body_ends) == ends - body_ends - 2
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    bodies = slices(batch, body_starts, body_ends)
    return mini, bodies, slices(batch, body_ends + 2, ends)
