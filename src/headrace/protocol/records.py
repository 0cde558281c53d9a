"""Records in the stored layout, made from columns and one by one.

Offsets, positions and store times stay zero until ``stamp_records`` writes them in place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import MessageRejectedError, MessageTooLargeError, ProtocolError
from headrace.protocol import layout
from headrace.protocol.codes import SysFlag
from headrace.protocol.properties import LOCALHOST, MAX_PROPERTIES, Host, pack_host

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


#: A column of byte strings, in any of the forms that callers have.
Binaries: TypeAlias = pa.Array | Sequence[bytes]

_HUGE = 0x7FFF_FFFF
_LONGEST_V1_TOPIC = 127
_LONGEST_TOPIC = 32_767
_HOST_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_BORN_HOST_AT = 48
_BEFORE_HOSTS = struct.Struct(">iiiiiqqiq")
#: Store time and store host are stamped later.
_AFTER_BORN_HOST = struct.Struct(">16xiqi")


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records end to end, ready for a log."""

    #: The records; ``stamp_records`` needs it to be writable.
    data: bytearray | memoryview
    #: Where each record begins.
    starts: layout.Int64s

    def __len__(self) -> int:
        return len(self.starts)


def record_sizes(records: Records) -> layout.Int64s:
    """Return the sizes of the records, in bytes."""
    return np.diff(records.starts, append=len(records.data))


def join_records(parts: Sequence[Records]) -> Records:
    """Put records of several parts one after the other."""
    if len(parts) == 1:
        return parts[0]
    bases = np.cumsum([0, *(len(part.data) for part in parts)])
    starts = [part.starts + base for part, base in zip(parts, bases.tolist(), strict=False)]
    joined = np.concatenate(starts) if starts else np.empty(0, np.int64)
    return Records(bytearray().join(part.data for part in parts), joined)


def binary_column(values: Binaries) -> pa.BinaryArray:
    """View a column of byte strings or text as one Arrow array; null becomes empty."""
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    return column.fill_null(b"") if column.null_count else column


def checksums(bodies: Sequence[bytes]) -> layout.Int64s:
    """Return the CRC-32 of each body, as records hold it: without the sign bit."""
    return np.fromiter(map(zlib.crc32, bodies), np.int64, len(bodies)) & _HUGE


def encode_records(
    topic: str,
    queue_id: int,
    bodies: Binaries,
    properties: Binaries | bytes | None = None,
    born: layout.Int64s | int = 0,
) -> Records:
    r"""Make records of one queue from columns.

    Parameters
    ----------
    topic, queue_id
        Where the messages go.
    bodies
        One body for each message.
    properties
        One properties string for each message, or one for all.
    born
        When the messages were made, ms since 1970: one for each or one for all.

    Raises
    ------
    MessageRejectedError
        The topic's name or a message's properties are too long.
    MessageTooLargeError
        The records take more than 2 GiB together.

    Examples
    --------
    >>> records = encode_records("lines", 0, [b"to be", b"or not"], b"KEYS\x01k\x02")
    >>> len(records), record_sizes(records).tolist()
    (2, [108, 109])
    """
    if len(bodies) < layout.WORTH_COLUMNS:
        return _encode_few(topic, queue_id, bodies, properties, born)
    column = binary_column(bodies)
    head = np.zeros(len(column), layout.HEAD)
    head["queue_id"] = queue_id
    head["born"] = born
    head["crc"] = checksums(bodies if isinstance(bodies, list) else column.to_pylist())
    if properties is None:
        properties = b""
    if not isinstance(properties, bytes):
        properties = binary_column(properties)
    return assemble(topic, head, column, properties, LOCALHOST)


def _encode_few(
    topic: str,
    queue_id: int,
    bodies: Binaries,
    properties: Binaries | bytes | None,
    born: layout.Int64s | int,
) -> Records:
    """Make records one by one."""
    count = len(bodies)
    tails = [properties or b""] * count if isinstance(properties, bytes | None) else properties
    times = [born] * count if isinstance(born, int) else born
    data, starts = bytearray(), []
    for body, own, time in zip(_values(bodies), _values(tails), times, strict=True):
        starts.append(len(data))
        fields = RecordFields(queue_id=queue_id, born=int(time))
        data += b"".join(write_record(topic, body, own, fields))
        if len(data) > _HUGE:
            raise _too_many(count, topic, len(data))
    return Records(data, np.array(starts, np.int64))


def _too_many(count: int, topic: str, size: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"{count} messages for topic {topic!r} take {size} bytes in one block",
        hint=f"encode them in blocks of less than {_HUGE} bytes",
    )


def _values(column: Binaries) -> Sequence[bytes]:
    if isinstance(column, list) and (not column or isinstance(column[0], bytes)):
        return column
    values: Sequence[bytes] = binary_column(column).to_pylist()
    return values


def assemble(
    topic: str,
    head: npt.NDArray[np.void],
    bodies: pa.BinaryArray,
    properties: pa.BinaryArray | bytes,
    born_host: Host,
) -> Records:
    """Join heads, bodies and properties into records.

    Caller: ``encode_records`` and ``batch_to_records``, which fill the heads but for sizes,
    magic number and hosts.
    """
    count = len(head)
    if count == 0:
        return Records(bytearray(), np.empty(0, np.int64))
    magic, name = _topic_field(topic)
    host = pack_host(born_host)
    after, sizes = _after_body(name, properties, count)
    body_sizes = _lengths(bodies)
    sizes = sizes + body_sizes + (layout.HEAD_SIZE + len(host) - 8)
    ends = np.cumsum(sizes)
    if ends[-1] > _HUGE:
        raise _too_many(count, topic, int(ends[-1]))
    head["size"] = sizes
    head["sys_flag"] &= ~_HOST_FLAGS
    head["magic"] = magic
    head["body_size"] = body_sizes
    joined = pc.binary_join_element_wise(_heads(head, host), bodies, *after, b"")
    data = bytearray(memoryview(joined.buffers()[2])[: int(ends[-1])])
    return Records(data, ends - sizes)


@lru_cache(maxsize=4096)
def _topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic number that goes with a topic, and the topic as records hold it."""
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"topic {topic!r} is not valid text: {error}") from error
    if len(name) > _LONGEST_TOPIC:
        raise MessageRejectedError(f"a topic's name has {len(name)} bytes: {topic[:40]!r}...")
    if len(name) > _LONGEST_V1_TOPIC:
        return layout.MAGIC_V2, len(name).to_bytes(2) + name
    return layout.MAGIC, len(name).to_bytes(1) + name


def _lengths(column: pa.BinaryArray) -> layout.Int64s:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return np.diff(offsets[column.offset :][: len(column) + 1]).astype(np.int64)


def _too_long(size: int) -> MessageRejectedError:
    return MessageRejectedError(
        f"a message's properties take {size} bytes, {MAX_PROPERTIES} are possible",
        hint="put large values into the body",
    )


def _after_body(
    name: bytes, properties: pa.BinaryArray | bytes, count: int
) -> tuple[list[pa.BinaryArray | pa.BinaryScalar], layout.Int64s | int]:
    """Return what follows each body, in pieces, and how long it is."""
    if isinstance(properties, bytes):
        tail = name + _property_field(properties)
        return [pa.scalar(tail, pa.binary())], len(tail)
    lengths = _lengths(properties)
    if lengths.max() > MAX_PROPERTIES:
        raise _too_long(int(lengths.max()))
    middle = np.empty(count, [("name", f"V{len(name)}"), ("size", ">i2")])
    middle["name"] = np.void(name)
    middle["size"] = lengths
    return [_rows(middle), properties], lengths + middle.itemsize


def _property_field(properties: Buffer) -> bytes:
    if len(properties) > MAX_PROPERTIES:
        raise _too_long(len(properties))
    return len(properties).to_bytes(2) + properties


def _rows(rows: npt.NDArray[np.void]) -> pa.BinaryArray:
    """View equally long rows of bytes as a column."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.itemsize
    if offsets[-1] > _HUGE:
        raise MessageTooLargeError(f"{len(rows)} messages are too many for one block")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _heads(head: npt.NDArray[np.void], host: bytes) -> pa.BinaryArray:
    if len(host) == 8:
        head["born_ip"] = host[:4]
        head["born_port"] = int.from_bytes(host[4:], signed=True)
        return _rows(head)
    head["sys_flag"] |= layout.BORN_HOST_V6
    narrow = head.view((np.uint8, layout.HEAD_SIZE)).reshape(len(head), layout.HEAD_SIZE)
    wide = np.empty((len(head), layout.HEAD_SIZE + len(host) - 8), np.uint8)
    wide[:, :_BORN_HOST_AT] = narrow[:, :_BORN_HOST_AT]
    wide[:, _BORN_HOST_AT : _BORN_HOST_AT + len(host)] = np.frombuffer(host, np.uint8)
    wide[:, _BORN_HOST_AT + len(host) :] = narrow[:, _BORN_HOST_AT + 8 :]
    return _rows(wide.view(f"V{wide.shape[1]}").ravel())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFields:
    """Numbers and hosts of a record; what is not given is zero."""

    queue_id: int = 0
    #: When the message was made, ms since 1970, and on which host.
    born: int = 0
    born_host: Host = LOCALHOST
    #: The user's own number.
    flag: int = 0
    #: Bits of ``SysFlag``; those for the hosts follow from the hosts.
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


def encode_record(
    topic: str, body: Buffer, properties: bytes = b"", fields: RecordFields | None = None
) -> Records:
    """Make one record: for a message that comes alone.

    Raises
    ------
    MessageRejectedError
        The topic's name or the message's properties are too long, or a number is out of range.

    Examples
    --------
    >>> record = encode_record("lines", b"to be", fields=RecordFields(queue_id=3))
    >>> record.data == encode_records("lines", 3, [b"to be"]).data
    True
    """
    pieces = write_record(topic, body, properties, fields or RecordFields())
    return Records(bytearray().join(pieces), np.zeros(1, np.int64))


def write_record(topic: str, body: Buffer, properties: bytes, fields: RecordFields) -> list[Buffer]:
    """Write one record in pieces; raise as ``encode_record`` does."""
    host = pack_host(fields.born_host)
    magic, name = _topic_field(topic)
    tail = name + _property_field(properties)
    sys_flag = fields.sys_flag & ~_HOST_FLAGS
    if len(host) != 8:
        sys_flag |= layout.BORN_HOST_V6
    size = layout.HEAD_SIZE - 8 + len(host) + len(body) + len(tail)
    crc = zlib.crc32(body) & _HUGE
    numbers = fields.queue_id, fields.flag, 0, 0, sys_flag, fields.born
    try:
        before = _BEFORE_HOSTS.pack(size, magic, crc, *numbers)
        after = _AFTER_BORN_HOST.pack(fields.reconsume_times, fields.prepared_offset, len(body))
    except struct.error as error:
        raise MessageRejectedError(f"a field of a message is out of range: {error}") from error
    return [before, host, after, body, tail]


# Batches as producers send them, and the records that a broker makes of them.
#
# A batch is a sequence of mini messages: size (4 bytes), magic and CRC (4 each, unused), flag (4),
# body (4 and its bytes), properties (2 and their bytes).

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
    """Return where each mini message begins.

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
    more = layout.HEAD_SIZE + 4 + len(topic) + 1 + extra
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
    """Yield begin, end of the body, end and flag of each message, once its parts fill it."""
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


def _checked_parts(
    batch: Buffer, starts: layout.Int64s, body_ends: layout.Int64s
) -> npt.NDArray[np.void]:
    """Return the heads of the messages if body and properties fill each."""
    cells = layout.as_bytes(batch)
    mini = layout.at_each(cells, _MINI_HEAD, starts)
    ends = starts + mini["size"]
    fits = (mini["body_size"] >= 0) & (body_ends + 2 <= ends)
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    fits = layout.at_each(cells, ">i2", body_ends) == ends - body_ends - 2
    if not fits.all():
        raise _misfit(int(np.argmin(fits)))
    return mini


def _by_columns(batch: Buffer, topic: str, extra: bytes, fields: RecordFields) -> Records:
    starts = np.array(batch_starts(batch), np.int64)
    body_starts = starts + MINI_HEAD_SIZE
    sizes = layout.at_each(layout.as_bytes(batch), ">i4", starts + _KEPT_AT).astype(np.int64)
    body_ends = body_starts + sizes
    mini = _checked_parts(batch, starts, body_ends)
    bodies = layout.slices(batch, body_starts, body_ends)
    properties = layout.slices(batch, body_ends + 2, starts + mini["size"])
    head = np.zeros(len(starts), layout.HEAD)
    head["queue_id"] = fields.queue_id
    head["born"] = fields.born
    head["sys_flag"] = fields.sys_flag
    head["flag"] = np.where(mini["flag"] == 0, fields.flag, mini["flag"])
    head["crc"] = checksums(bodies.to_pylist())
    if extra:
        properties = pc.binary_join_element_wise(pa.scalar(extra, pa.binary()), properties, b"")
    return assemble(topic, head, bodies, properties, fields.born_host)
