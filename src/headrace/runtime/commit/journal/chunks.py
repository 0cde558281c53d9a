"""Chunks: messages of the journal topic, each a run of what an attempt stages.

A chunk is an Arrow stream of one batch, the messages of all its sections end to end; the schema's
metadata says how many of them belong to which queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProtocolError
from headrace.runtime.commit.transactions import QueueMessages

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

__all__ = ["decode_chunk", "encode_chunk", "part_of", "pieces", "size_of"]

_SECTIONS = b"sections"
_FIXED = 64


class _Section(msgspec.Struct, frozen=True, array_like=True):
    queue: str
    is_state: bool
    count: int


def encode_chunk(sections: list[QueueMessages]) -> bytes:
    """Encode messages of several queues as one body.

    Examples
    --------
    >>> times = np.array([1, 2])
    >>> column = pa.array([b"a", b"b"])
    >>> body = encode_chunk([QueueMessages("t@b@0", column, column, times, is_state=True)])
    >>> [(each.queue, each.is_state, len(each)) for each in decode_chunk(body)]
    [('t@b@0', True, 2)]
    """
    notes = [_Section(each.queue, each.is_state, len(each)) for each in sections]
    batch = pa.record_batch(
        {
            "body": pa.concat_arrays([each.bodies for each in sections]),
            "properties": pa.concat_arrays([each.properties for each in sections]),
            "time": np.concatenate([each.times for each in sections]),
        }
    ).replace_schema_metadata({_SECTIONS: msgspec.json.encode(notes)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_chunk(body: Buffer) -> Iterator[QueueMessages]:
    """Decode what :func:`encode_chunk` made.

    Raises
    ------
    ProtocolError
        The body is no chunk.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch = reader.read_next_batch()
        notes = msgspec.json.decode(batch.schema.metadata[_SECTIONS], type=list[_Section])
    except (pa.ArrowInvalid, StopIteration, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ProtocolError(f"a message of the journal is no chunk: {error}") from error
    if sum(note.count for note in notes) != len(batch):
        raise ProtocolError("a chunk of the journal does not hold what it says")
    bodies, properties, times = batch.columns
    numbers = times.to_numpy()
    at = 0
    for note in notes:
        part = slice(at, at + note.count)
        at += note.count
        yield QueueMessages(
            note.queue, bodies[part], properties[part], numbers[part], is_state=note.is_state
        )


def size_of(messages: QueueMessages) -> int:
    """Give the bytes that messages take, about."""
    return int(messages.bodies.nbytes + messages.properties.nbytes) + _FIXED * len(messages)


def pieces(messages: QueueMessages, limit: int) -> Iterable[QueueMessages]:
    """Cut messages so that each piece takes at most so many bytes, or is one message.

    >>> column = pa.array([b"x" * 100] * 5)
    >>> run = QueueMessages("t@b@0", column, column, np.arange(5))
    >>> [len(piece) for piece in pieces(run, 600)]
    [2, 2, 1]
    """
    if size_of(messages) <= limit:
        return [messages]
    sizes = pc.add(pc.binary_length(messages.bodies), pc.binary_length(messages.properties))
    ends = np.cumsum(sizes.to_numpy().astype(np.int64) + _FIXED)
    found, begin = [], 0
    while begin < len(messages):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        found.append(part_of(messages, begin, end))
        begin = end
    return found


def part_of(messages: QueueMessages, begin: int, end: int | None = None) -> QueueMessages:
    """Take the messages from one place to before another."""
    part = slice(begin, end)
    return QueueMessages(
        messages.queue,
        messages.bodies[part],
        messages.properties[part],
        messages.times[part],
        is_state=messages.is_state,
    )
