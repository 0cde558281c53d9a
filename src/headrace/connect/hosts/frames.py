"""Frames of the data channel: a header of JSON, and Arrow where there are records.

A frame is the length of the header (u32, big endian), the header, the length of the records (u32)
and the records as an Arrow IPC stream; a length of 0 means that there are none.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EndOfChannelError", "packed", "receive", "send", "unpacked"]

_LENGTH = struct.Struct(">I")


class EndOfChannelError(ConnectionError):
    """The other side is gone, perhaps in the middle of a frame."""


def send(
    channel: socket.socket, header: dict[str, Any], records: pa.RecordBatch | None = None
) -> None:
    """Send a frame."""
    text = orjson.dumps(header)
    if records is None:
        channel.sendall(_LENGTH.pack(len(text)) + text + _LENGTH.pack(0))
        return
    body = packed(records)
    channel.sendall(_LENGTH.pack(len(text)) + text + _LENGTH.pack(body.size))
    channel.sendall(memoryview(body))


def packed(records: pa.RecordBatch) -> pa.Buffer:
    """Write records as an Arrow IPC stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return sink.getvalue()


def receive(channel: socket.socket) -> tuple[dict[str, Any], pa.RecordBatch | None]:
    """Wait for a frame.

    Raises
    ------
    EndOfChannelError
        The other side is gone.
    """
    header: dict[str, Any] = orjson.loads(_exactly(channel, _length(channel)))
    length = _length(channel)
    return header, unpacked(_exactly(channel, length)) if length else None


def _length(channel: socket.socket) -> int:
    length: int = _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]
    return length


def _exactly(channel: socket.socket, length: int) -> bytearray:
    received = bytearray(length)
    rest = memoryview(received)
    while rest:
        got = channel.recv_into(rest)
        if not got:
            raise EndOfChannelError("the other side of the data channel is gone")
        rest = rest[got:]
    return received


def unpacked(body: bytearray) -> pa.RecordBatch:
    """Read what :func:`packed` has written."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_next_batch()
