"""Records and state changes into messages, grouped by queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SerializationError
from headrace.keys import (
    EXACT_KEY,
    KEYS,
    encode_keys,
    hex_key,
    hex_keys,
    key_hashes,
    key_properties,
)
from headrace.protocol.properties import encode_properties
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.user_code import Locator, UserFunction, salvaged, writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.state.interface import ChangeSet
    from headrace.topology.operators.core import RecordFunction, Sink


# Where the records of a sink go, where the user's functions decide it.


class Placing:
    """Calls the functions of a sink that choose topic, key and queue of each record.

    Parameters
    ----------
    sink
        Has at least one such function.
    queues
        Writable queues of each of its topics.
    locator
        Takes records that cannot be placed, where the sink's policy is to go on.
    """

    def __init__(
        self, sink: Sink, queues: Mapping[str, Sequence[object]], locator: Locator
    ) -> None:
        self._sink = sink
        self._queues = queues
        functions = (sink.choose, sink.message_key, sink.queue_number)
        first = next(each for each in functions if each is not None)
        self._calls = UserFunction(sink, first.function, locator)

    def by_topic(self, chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
        """Yield the records of each topic, with the keys and queue numbers of their messages."""
        keys = chunk.key_list()
        kept, places = self._calls.each(chunk, keys, chunk.values, step=self._place)
        if self._sink.message_key is not None:
            kept = kept.with_keys([key for _, key, _ in places])
        if self._sink.queue_number is not None:
            kept = replace(kept, queues=np.array([number for _, _, number in places], np.intp))
        for topic in self._queues:
            picks = [index for index, place in enumerate(places) if place[0] == topic]
            if picks:
                yield topic, kept.take(np.array(picks, np.intp))

    def _place(self, key: Any, value: Any) -> tuple[str, Any, int]:
        sink = self._sink
        topic = sink.topic if sink.choose is None else _called(sink.choose, key, value)
        if topic not in self._queues:
            message = f"it chose topic {topic!r:.100}, not one of topics={list(sink.choices)}"
            raise ValueError(message)
        number = 0
        if sink.queue_number is not None:
            number = _called(sink.queue_number, key, value)
            count = len(self._queues[topic])
            if type(number) is not int or not 0 <= number < count:
                message = f"it gave {number!r:.100} for a queue of '{topic}': 0 to {count - 1}"
                raise ValueError(message)
        if sink.message_key is not None:
            key = _called(sink.message_key, key, value)
        return topic, key, number


def _called(function: RecordFunction, key: Any, value: Any) -> Any:
    return function.function(key, value) if function.takes_key else function.function(value)


class SinkContext(Protocol):
    """What a sink asks of its task."""

    @property
    def locator(self) -> Locator:
        """What tells where a record comes from, and takes out those that cannot be written."""

    @property
    def partition(self) -> int:
        """Number of the task."""

    @property
    def epoch_and_batch(self) -> tuple[int, int]:
        """Numbers of the driver and of the batch."""

    def queues(self, topic: str) -> list[QueueName]:
        """Return the writable queues of a topic, in order."""


class SinkWriter:
    """Turns the records of one sink into messages of its topics.

    A record's key decides its queue by the same hash that decides partitions; records without a
    key go to one queue per task.  A record without a value becomes a message without a body.

    Parameters
    ----------
    sink
        Topics and serializer.
    context
        Queues of the topics, and the number of the task.
    """

    def __init__(self, sink: Sink, context: SinkContext) -> None:
        self._sink = sink
        self._locator = context.locator
        self._spread = context.partition
        self._queues = {topic: context.queues(topic) for topic in sink.topics}
        self._placing = Placing(sink, self._queues, context.locator) if sink.places else None

    def messages(self, chunk: Chunk) -> Iterator[QueueMessages]:
        """Encode records, grouped by queue."""
        if not len(chunk):
            return
        if self._placing is None:
            yield from self._of_topic(self._sink.topic, chunk)
            return
        for topic, part in self._placing.by_topic(chunk):
            yield from self._of_topic(topic, part)

    def _of_topic(self, topic: str, chunk: Chunk) -> Iterator[QueueMessages]:
        queues = self._queues[topic]
        try:
            bodies, properties, numbers = self._encoded(chunk, len(queues))
        except SerializationError:
            if self._sink.on_error == "fail":
                raise
            chunk = salvaged(
                self._sink, chunk, lambda one: self._encoded(one, len(queues)), self._locator
            )
            bodies, properties, numbers = self._encoded(chunk, len(queues))
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(len(queues) + 1))
        for number, queue in enumerate(queues):
            picks = order[edges[number] : edges[number + 1]]
            if len(picks):
                indices = pa.array(picks)
                yield QueueMessages(
                    queue, bodies.take(indices), properties.take(indices), chunk.times[picks]
                )

    def _encoded(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, pa.BinaryArray, Int64s]:
        properties, numbers = self._properties(chunk, queues)
        if self._sink.queue_number is not None:
            assert chunk.queues is not None, "the function was called for every record"
            numbers = chunk.queues
        return self._bodies(chunk), properties, numbers

    def _bodies(self, chunk: Chunk) -> pa.BinaryArray:
        serialize = self._sink.serializer
        live = [value is not None for value in chunk.values]
        with writing(self._sink, "a value"):
            if all(live):
                return serialize.serialize_many(chunk.key_list(), chunk.values)
            kept = chunk.take(np.flatnonzero(live))
            encoded = iter(serialize.serialize_many(kept.key_list(), kept.values).to_pylist())
        return pa.array([next(encoded) if keep else b"" for keep in live], pa.binary())

    def _properties(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, Int64s]:
        headers = chunk.headers
        if chunk.keys is None:
            numbers = np.full(len(chunk), self._spread % queues, np.int64)
            encoded = [b""] * len(chunk)
        else:
            with writing(self._sink, "a key"):
                keys = encode_keys(chunk.keys)
            numbers = key_hashes(keys).astype(np.int64) % queues
            with writing(self._sink, "a key"):
                encoded = key_properties(chunk.keys, keys)
        if headers is not None:
            encoded = _with_headers(encoded, headers)
        return pa.array(encoded, pa.binary()), numbers


def _with_headers(encoded: list[bytes], headers: Sequence[Mapping[str, str] | None]) -> list[bytes]:
    # Results of one window share their headers.
    shared: dict[int, bytes] = {}
    for index, more in enumerate(headers):
        if more:
            data = shared.get(id(more))
            if data is None:
                data = shared[id(more)] = encode_properties(more)
            encoded[index] += data
    return encoded


def state_messages(queue: QueueName, changes: ChangeSet, timestamp: int) -> QueueMessages:
    """Encode the changes of one partition as messages of its queue of the state topic."""
    times = np.full(len(changes.keys), timestamp, np.int64)
    return QueueMessages(
        queue, changes.bodies, _state_properties(changes.keys), times, is_state=True
    )


def _state_properties(keys: list[bytes]) -> pa.BinaryArray:
    hexes = hex_keys(keys)
    if hexes is None:
        return pa.array(list(map(_long_properties, keys)), pa.binary())
    return pc.binary_join_element_wise(f"{KEYS}\1".encode(), hexes, b"\2", b"")


def _long_properties(key: bytes) -> bytes:
    text = hex_key(key)
    if len(text) == 2 * len(key):
        return f"{KEYS}\1{text}\2".encode()
    # A delete has no body, so the key itself must stand in a property.
    return f"{KEYS}\1{text}\2{EXACT_KEY}\1{key.hex()}\2".encode()
