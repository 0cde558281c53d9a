"""Compressed message bodies: ZLIB, LZ4 frames and ZSTD."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.protocol.codes import SysFlag

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


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
