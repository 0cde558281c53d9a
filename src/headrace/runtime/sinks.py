"""Records and state changes into messages, grouped by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.errors import SerializationError
from headrace.keys import EXACT_KEY, KEYS, encode_keys, hex_key, key_hashes, key_properties
from headrace.protocol.properties import encode_properties
from headrace.runtime.commits import QueueMessages
from headrace.runtime.record_errors import salvaged
from headrace.runtime.writing import writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.state import ChangeSet
    from headrace.runtime.user_code import Locator
    from headrace.topology.operators import Sink

__all__ = ["SinkWriter", "state_messages"]


class SinkWriter:
    """Turns the records of one sink into messages of its topic.

    A record's key decides its queue by the same hash that decides partitions; records without a
    key go to one queue per task.

    Parameters
    ----------
    sink
        Topic and serializer.
    queues
        Writable queues of the topic, in order.
    locator
        Takes records that cannot be written, where the sink's policy is to go on.
    spread
        Number that picks the queue of records without a key.
    """

    def __init__(
        self, sink: Sink, queues: Sequence[QueueName], spread: int, locator: Locator
    ) -> None:
        self._locator = locator
        self._sink = sink
        self._queues = queues
        self._spread = spread % len(queues)

    def messages(self, chunk: Chunk) -> Iterator[QueueMessages]:
        """Encode records, grouped by queue."""
        if not len(chunk):
            return
        try:
            bodies, properties, queues = self._encoded(chunk)
        except SerializationError:
            if self._sink.on_error == "fail":
                raise
            chunk = salvaged(self._sink, chunk, self._encoded, self._locator)
            bodies, properties, queues = self._encoded(chunk)
        order = np.argsort(queues, kind="stable")
        edges = np.searchsorted(queues[order], np.arange(len(self._queues) + 1))
        for number, queue in enumerate(self._queues):
            picks = order[edges[number] : edges[number + 1]]
            if len(picks):
                indices = pa.array(picks)
                yield QueueMessages(
                    queue, bodies.take(indices), properties.take(indices), chunk.times[picks]
                )

    def _encoded(self, chunk: Chunk) -> tuple[pa.BinaryArray, pa.BinaryArray, Int64s]:
        return self._bodies(chunk), *self._properties(chunk)

    def _bodies(self, chunk: Chunk) -> pa.BinaryArray:
        serialize = self._sink.serializer
        live = [value is not None for value in chunk.values]
        with writing(self._sink, "a value"):
            if all(live):
                return serialize.serialize_many(chunk.key_list(), chunk.values)
            kept = chunk.take(np.flatnonzero(live))
            encoded = iter(serialize.serialize_many(kept.key_list(), kept.values).to_pylist())
        return pa.array([next(encoded) if keep else b"" for keep in live], pa.binary())

    def _properties(self, chunk: Chunk) -> tuple[pa.BinaryArray, Int64s]:
        headers = chunk.headers
        if chunk.keys is None:
            queues = np.full(len(chunk), self._spread, np.int64)
            encoded = [b""] * len(chunk)
        else:
            with writing(self._sink, "a key"):
                keys = encode_keys(chunk.keys)
            queues = key_hashes(keys).astype(np.int64) % len(self._queues)
            with writing(self._sink, "a key"):
                encoded = key_properties(chunk.keys, keys)
        if headers is not None:
            encoded = [_with_headers(own, more) for own, more in zip(encoded, headers, strict=True)]
        return pa.array(encoded, pa.binary()), queues


def _with_headers(own: bytes, headers: Mapping[str, str] | None) -> bytes:
    return own + encode_properties(headers) if headers else own


def state_messages(queue: QueueName, changes: ChangeSet, timestamp: int) -> QueueMessages:
    """Encode the changes of one partition as messages of its queue of the state topic."""
    properties = list(map(_state_properties, changes.keys))
    times = np.full(len(changes.keys), timestamp, np.int64)
    return QueueMessages(
        queue, changes.bodies, pa.array(properties, pa.binary()), times, is_state=True
    )


def _state_properties(key: bytes) -> bytes:
    text = hex_key(key)
    if len(text) == 2 * len(key):
        return b"KEYS\x01" + text.encode() + b"\x02"
    # A delete has no body, so the key itself must stand in a property.
    return f"{KEYS}\x01{text}\x02{EXACT_KEY}\x01{key.hex()}\x02".encode()
