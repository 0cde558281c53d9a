"""Stored messages written field by field, as a reference, and strategies that make them."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st

from headrace.protocol.codes import SysFlag
from headrace.protocol.layout import MAGIC, MAGIC_V2
from headrace.protocol.messages import StoredMessage

LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)

#: Bodies full of what a search for records could trip over.
TRAP = struct.pack(">iii", 91, MAGIC, 0) + b"\xda" * 40


def packed(body: bytes, sys_flag: int) -> bytes:
    """Compress a body as its flags say."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    codec = {SysFlag.LZ4: "lz4", SysFlag.ZSTD: "zstd"}.get(SysFlag(sys_flag & SysFlag.ZLIB))
    if codec is None:
        return zlib.compress(body, 5)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def packed_host(host: tuple[str, int]) -> bytes:
    family = socket.AF_INET6 if ":" in host[0] else socket.AF_INET
    return socket.inet_pton(family, host[0]) + struct.pack(">i", host[1])


def raw_properties(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def stored_bytes(message: StoredMessage) -> bytes:
    """Write a message in the stored layout; its size and CRC are worked out anew."""
    body = packed(message.body, message.sys_flag)
    topic = message.topic.encode()
    properties = raw_properties(message.properties)
    wide = len(topic) > 127
    parts = [
        struct.pack(">i", MAGIC_V2 if wide else MAGIC),
        struct.pack(">i", zlib.crc32(body) & 0x7FFF_FFFF),
        struct.pack(">ii", message.queue_id, message.flag),
        struct.pack(">qq", message.queue_offset, message.position),
        struct.pack(">i", message.sys_flag),
        struct.pack(">q", message.born),
        packed_host(message.born_host),
        struct.pack(">q", message.stored),
        packed_host(message.store_host),
        struct.pack(">iq", message.reconsume_times, message.prepared_offset),
        struct.pack(">i", len(body)),
        body,
        struct.pack(">H" if wide else ">B", len(topic)),
        topic,
        struct.pack(">h", len(properties)),
        properties,
    ]
    rest = b"".join(parts)
    return struct.pack(">i", 4 + len(rest)) + rest


def block_of(messages: Sequence[StoredMessage]) -> bytes:
    return b"".join(map(stored_bytes, messages))


def as_read(message: StoredMessage) -> StoredMessage:
    """Give a message as it is read: its body is not compressed any more."""
    return replace(message, sys_flag=message.sys_flag & ~SysFlag.COMPRESSED)


def hosts() -> st.SearchStrategy[tuple[str, int]]:
    addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
    return st.tuples(addresses, st.integers(0, 65_535))


def property_texts() -> st.SearchStrategy[str]:
    letters = st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])
    return st.text(letters, min_size=1, max_size=8)


def properties() -> st.SearchStrategy[dict[str, str]]:
    names = st.one_of(st.sampled_from(["KEYS", "TAGS", "XKEYS", "KEYSX"]), property_texts())
    return st.dictionaries(names, property_texts(), max_size=4)


def bodies() -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=60), st.just(TRAP), st.just(b"x" * 20))


def flags_of(message: StoredMessage, compression: int) -> int:
    v6 = [":" in message.born_host[0], ":" in message.store_host[0]]
    return compression | v6[0] * SysFlag.BORN_HOST_V6 | v6[1] * SysFlag.STORE_HOST_V6


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    message = StoredMessage(
        topic=draw(st.sampled_from(["lines", "t", "%RETRY%g", "d" * 200])),
        queue_id=draw(INT),
        queue_offset=draw(LONG),
        position=draw(LONG),
        body=draw(bodies()),
        properties=draw(properties()),
        flag=draw(INT),
        born=draw(LONG),
        born_host=draw(hosts()),
        stored=draw(LONG),
        store_host=draw(hosts()),
        reconsume_times=draw(INT),
        prepared_offset=draw(LONG),
    )
    compression = draw(st.sampled_from([0, 0, 0, 0x001, 0x101, 0x201, 0x301, 0x00C]))
    fields = {name: getattr(message, name) for name in StoredMessage.__slots__}
    fields["sys_flag"] = flags_of(message, compression)
    body = packed(message.body, fields["sys_flag"])
    fields["body_crc"] = zlib.crc32(body) & 0x7FFF_FFFF
    fields["size"] = len(stored_bytes(StoredMessage(**fields)))
    return StoredMessage(**fields)


@st.composite
def damaged(draw: st.DrawFn, block: bytes) -> bytes:
    """Change a few bytes of a block, or cut something out of it."""
    cells = bytearray(block)
    for _ in range(draw(st.integers(0, 3))):
        if cells:
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()) and cells:
        start = draw(st.integers(0, len(cells) - 1))
        del cells[start : start + draw(st.integers(1, 200))]
    return bytes(cells)
