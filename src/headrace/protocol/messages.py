"""Messages one by one: what a user sends, and what a broker stored.

Columns are the way for many messages; this is the way for few.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.layout import BORN_HOST_V6, MAGIC_V2, MIN_RECORD, record_parts
from headrace.protocol.properties import (
    DELAY,
    KEYS,
    LOCALHOST,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    Host,
    decode_properties,
    encode_offset_id,
    encode_properties,
    unpack_host,
)
from headrace.protocol.records import write_mini_message

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


# Compressed message bodies: ZLIB, LZ4 frames and ZSTD.

#: Longest body that is unpacked: sixteen times what a broker takes by default, so that a small
#: message cannot fill the memory.
MAX_BODY = 64 * 1024 * 1024

# A plain number: the flags of an enum are slow to combine.
_COMPRESSED = int(SysFlag.COMPRESSED)
_STREAMS = {int(SysFlag.LZ4): "lz4", int(SysFlag.ZSTD): "zstd"}
_LEVEL = 5
_LEAST_PIECE = 1024
_LARGEST_PIECE = 256 * 1024


def compress(body: bytes) -> bytes:
    """Pack a body as Java producers do by default; it goes with the flags COMPRESSED | ZLIB."""
    return zlib.compress(body, _LEVEL)


def decompress(body: Buffer, sys_flag: int, limit: int = MAX_BODY) -> bytes:
    """Unpack a body by the compression that its message's system flag names.

    Raises
    ------
    ProtocolError
        The body is damaged or longer than the limit.

    Examples
    --------
    >>> decompress(compress(b"water"), SysFlag.COMPRESSED | SysFlag.ZLIB)
    b'water'
    """
    codec = _STREAMS.get(sys_flag & int(SysFlag.ZLIB))
    try:
        unpacked = _inflate(body, limit) if codec is None else _stream(body, codec, limit)
    except (zlib.error, pa.ArrowException, OSError) as error:
        raise ProtocolError(f"a {codec or 'zlib'} body cannot be unpacked: {error}") from error
    if len(unpacked) > limit:
        raise ProtocolError(
            f"a body unpacks to more than {limit} bytes", hint="send smaller messages"
        )
    return unpacked


def readable(body: Buffer, sys_flag: int, limit: int = MAX_BODY) -> bytes:
    """Return a body as its producer wrote it: unpacked, where the system flag says it is packed.

    Raises
    ------
    ProtocolError
        The body is damaged or longer than the limit.
    """
    return decompress(body, sys_flag, limit) if sys_flag & _COMPRESSED else bytes(body)


def _inflate(body: Buffer, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    unpacked = inflater.decompress(body, limit + 1)
    if not inflater.eof and len(unpacked) <= limit:
        raise zlib.error("the stream is cut short")
    return unpacked


def _stream(body: Buffer, codec: str, limit: int) -> bytes:
    unpacked = bytearray()
    # Not read(): it loses the memory of its result when the body is damaged.
    piece = memoryview(bytearray(min(limit + 1, _LEAST_PIECE + 4 * len(body), _LARGEST_PIECE)))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), codec) as stream:
        while len(unpacked) <= limit and (size := stream.readinto(piece)):
            unpacked += piece[:size]
    return bytes(unpacked)


_BEFORE_HOSTS = struct.Struct(">iiiiiqqiq")
_AFTER_HOSTS = struct.Struct(">iqi")
_LONG = struct.Struct(">q")
_V6_MORE = 12
# Plain numbers: the flags of an enum are slow to combine.


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    r"""A message to send.

    >>> Message(topic="lines", body=b"to be", keys="k1").encoded_properties()
    b'KEYS\x01k1\x02'
    """

    topic: str
    body: bytes = b""
    #: Keys by which a message can be found again, separated by spaces; the key of the stream.
    keys: str | None = None
    #: A single word by which consumers can choose.
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    #: When the message was made, ms since 1970; None: when it is sent.
    born: int | None = None
    #: A number of the user's, carried along.
    flag: int = 0
    #: 1 to 18: the broker shows the message 1 s to 2 h later; 0: at once.
    delay_level: int = 0
    #: The broker shows the message so much later; RocketMQ rounds to seconds.
    delay: timedelta | None = None
    #: The broker shows the message at this time, or at once if it has passed.
    deliver_at: datetime | None = None
    #: Messages of one sharding key go to one queue, and so stay in order.
    sharding_key: str | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether the broker holds the message back for a time."""
        return bool(self.delay_level or self.delay is not None or self.deliver_at is not None)

    def encoded_properties(self, extra: Mapping[str, str] | None = None) -> bytes:
        """Write the message's properties with its keys, tags and delay among them.

        Raises
        ------
        MessageRejectedError
            A name or value is empty or holds a separator, all are too long, or the message has
            two delays.
        """
        properties = dict(self.properties)
        if self.keys:
            properties[KEYS] = self.keys
        if self.tags:
            properties[TAGS] = self.tags
        if self.sharding_key:
            properties[SHARDING_KEY] = self.sharding_key
        if self.is_delayed:
            properties.update(self._delay_properties())
        if extra:
            properties.update(extra)
        return encode_properties(properties)

    def _delay_properties(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.delay_level:
            found[DELAY] = str(self.delay_level)
        if self.delay is not None:
            found[TIMER_DELAY_MS] = str(max(0, self.delay // timedelta(milliseconds=1)))
        if self.deliver_at is not None:
            found[TIMER_DELIVER_MS] = str(round(self.deliver_at.timestamp() * 1000))
        if len(found) > 1:
            raise MessageRejectedError(
                f"a message for topic {self.topic!r} has two delays: {', '.join(sorted(found))}",
                hint="give one of delay_level, delay and deliver_at",
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as a broker stored it."""

    topic: str
    queue_id: int = 0
    queue_offset: int = 0
    #: Place in the broker's commit log.
    position: int = 0
    #: Decompressed; as stored where that was not asked for or cannot be done: see ``is_packed``.
    body: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    #: Without the bit of compression once the body is decompressed.
    sys_flag: int = 0
    #: When the producer made it, ms since 1970, and on which host.
    born: int = 0
    born_host: Host = LOCALHOST
    #: When the broker stored it, ms since 1970, and the broker's address.
    stored: int = 0
    store_host: Host = LOCALHOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    #: CRC-32 of the body as stored, without the sign bit.
    body_crc: int = 0
    #: Bytes that the record takes.
    size: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether ``body`` is still compressed: one that was to be read is damaged or too long."""
        return bool(self.sys_flag & _COMPRESSED)

    @property
    def keys(self) -> str | None:
        """Keys of the message, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def tags(self) -> str | None:
        """Tag of the message."""
        return self.properties.get(TAGS)

    @property
    def sharding_key(self) -> str | None:
        """Key whose messages are kept in order."""
        return self.properties.get(SHARDING_KEY)

    @property
    def unique_key(self) -> str | None:
        """Id that the producer gave the message."""
        return self.properties.get(UNIQ_KEY)

    @property
    def offset_id(self) -> str:
        """Id that leads to the message: its broker's address and its place in the log."""
        return encode_offset_id(self.store_host, self.position)


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The body of one batch send."""

    body: Buffer
    #: Messages in it.
    count: int


def encode_batch(messages: Iterable[Message]) -> bytes:
    """Write the body of a batch; all messages must have one topic.

    Raises
    ------
    MessageRejectedError
        A message's properties cannot be written.
    """
    pieces: list[Buffer] = []
    for message in messages:
        pieces += write_mini_message(message.body, message.encoded_properties(), message.flag)
    return b"".join(pieces)


def encode_batches(messages: Iterable[Message], limit: int) -> Iterator[BatchBody]:
    """Cut messages of one topic into bodies of batch sends of at most ``limit`` bytes, in order.

    A message that is larger has a body of its own.

    Raises
    ------
    MessageRejectedError
        A message's properties cannot be written.

    Examples
    --------
    >>> lines = [Message(topic="lines", body=b"a" * 50)] * 5
    >>> [batch.count for batch in encode_batches(lines, 150)]
    [2, 2, 1]
    """
    pieces: list[Buffer] = []
    size = count = 0
    for message in messages:
        own = write_mini_message(message.body, message.encoded_properties(), message.flag)
        more = sum(map(len, own))
        if count and size + more > limit:
            yield BatchBody(b"".join(pieces), count)
            pieces, size, count = [], 0, 0
        pieces += own
        size += more
        count += 1
    if count:
        yield BatchBody(b"".join(pieces), count)


def decode_messages(block: Buffer, *, unpack: bool = True) -> list[StoredMessage]:
    """Read a block of stored messages, as a pull returns it; ``unpack=False`` leaves bodies as stored.

    A body that cannot be unpacked stays as stored, and its message ``is_packed``.

    Raises
    ------
    ProtocolError
        The block is not a sequence of whole records.

    Examples
    --------
    >>> from headrace.protocol.records import encode_record
    >>> [message.body for message in decode_messages(encode_record("t", b"to be").data)]
    [b'to be']
    """
    view = memoryview(block)
    messages: list[StoredMessage] = []
    at = 0
    while at < len(view):
        left = len(view) - at
        size = int.from_bytes(view[at : at + 4], signed=True)
        if not MIN_RECORD <= size <= left:
            raise ProtocolError(f"the record at byte {at} claims {size} bytes of {left}")
        messages.append(_decode(view[at : at + size], at, unpack=unpack))
        at += size
    return messages


def _decode(record: memoryview, at: int, *, unpack: bool) -> StoredMessage:
    body_start, body_end, topic_end = record_parts(record, at)
    size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born = (
        _BEFORE_HOSTS.unpack_from(record)
    )
    born_end = 56 + (_V6_MORE if sys_flag & BORN_HOST_V6 else 0)
    store_end = body_start - _AFTER_HOSTS.size
    (stored,) = _LONG.unpack_from(record, born_end)
    reconsume_times, prepared_offset, _ = _AFTER_HOSTS.unpack_from(record, store_end)
    body = bytes(record[body_start:body_end])
    if unpack and sys_flag & _COMPRESSED:
        with suppress(ProtocolError):
            body = readable(body, sys_flag)
            sys_flag &= ~_COMPRESSED
    topic = record[body_end + (2 if magic == MAGIC_V2 else 1) : topic_end]
    return StoredMessage(
        topic=str(topic, "utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        position=position,
        body=body,
        properties=decode_properties(record[topic_end + 2 :]),
        flag=flag,
        sys_flag=sys_flag,
        born=born,
        born_host=unpack_host(bytes(record[48:born_end])),
        stored=stored,
        store_host=unpack_host(bytes(record[born_end + 8 : store_end])),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body_crc=crc,
        size=size,
    )
