"""Records that come from outside, and the messages that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import ColumnValues
from headrace.keys import encode_keys, key_hashes, key_properties
from headrace.protocol.transactions import Position
from headrace.runtime.chunk import Chunk
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.marks import spout_mark
from headrace.runtime.processors import Processor
from headrace.topology.operators.outside import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.chunk import Int64s
    from headrace.runtime.sinks import SinkContext
    from headrace.topology.operators.outside import FeedSink

__all__ = ["FeedProcessor", "FeedWriter", "byte_count", "chunk_of"]


class FeedProcessor(Processor[Feed]):
    """Takes the records of the batch; one task does."""

    def process(self, chunk: Chunk) -> Chunk:
        """Pass on what is fed in, where there is no intake."""
        return chunk

    def finish(self) -> Chunk:
        """Take what the intake has, and keep where it has come to."""
        context, intake = self.context, self.operator.intake
        if context.partition or intake is None:
            return Chunk.empty()
        taken = intake.take(*context.epoch_and_batch)
        for partition, offset in taken.positions:
            context.positions[partition] = Position(
                offset=offset, generation=self.operator.generation
            )
        count = taken.records.num_rows
        size = byte_count(taken.records.column("key"), taken.records.column("value"))
        for name, number in (("records_in", count), ("outside_bytes", size)):
            context.counters[name] = context.counters.get(name, 0) + number
        return chunk_of(taken.records, context.partition)


def chunk_of(records: pa.RecordBatch, partition: int) -> Chunk:
    """Make a chunk of records in the columns of an intake; no message of ours caused them."""
    values: Any = ColumnValues(records)
    first = spout_mark(partition)
    marks = np.arange(first, first + records.num_rows)
    return Chunk(None, values, records.column("timestamp").to_numpy(), marks)


def byte_count(*columns: pa.BinaryArray) -> int:
    """Count the bytes of values.

    Examples
    --------
    >>> byte_count(pa.array([b"ab", None]), pa.array([None, None], pa.binary()))
    2
    """
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


class FeedWriter:
    """Turns records of a feed into messages of the topics that they name.

    A record goes to the queue that it names, else to the one of its key, by the same hash as
    everywhere; without either, to one queue per batch, in turn.

    Parameters
    ----------
    sink
        Stands behind the feed.
    context
        Queues of the topics, and the number of the task.
    """

    def __init__(self, sink: FeedSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._turn = context.epoch_and_batch[1]

    def messages(self, chunk: Chunk) -> Iterator[QueueMessages]:
        """Give the messages, grouped by queue."""
        if not len(chunk):
            return
        assert isinstance(chunk.values, ColumnValues), "a feed gives columns"
        records = chunk.values.batch
        topics = records.column("topic").dictionary_encode()
        if len(topics.dictionary) == 1:
            yield from self._of_topic(topics.dictionary[0].as_py(), records)
            return
        places = topics.indices.to_numpy()
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            picks = pa.array(np.flatnonzero(places == number))
            yield from self._of_topic(topic, records.take(picks))

    def _of_topic(self, topic: str, records: pa.RecordBatch) -> Iterator[QueueMessages]:
        queues = self._context.queues(topic)
        keys, numbers = _keys(records.column("key"), len(queues), self._turn)
        chosen = records.column("queue")
        if chosen.null_count < len(chosen):
            numbers = pc.coalesce(chosen, pa.array(numbers, pa.int32())).to_numpy() % len(queues)
        properties = records.column("properties")
        if keys is not None:
            properties = pc.binary_join_element_wise(keys, properties, b"")
        bodies = pc.fill_null(records.column("value"), b"")
        times = records.column("timestamp").to_numpy()
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(len(queues) + 1))
        for number, queue in enumerate(queues):
            picks = order[edges[number] : edges[number + 1]]
            if len(picks):
                at = pa.array(picks)
                yield QueueMessages(queue, bodies.take(at), properties.take(at), times[picks])


def _keys(keys: pa.BinaryArray, queues: int, turn: int) -> tuple[pa.BinaryArray | None, Int64s]:
    """Give the properties in which keys travel, and the queue of each record.

    Bytes that are text are the key of that text, so that pipelines read it as such.
    """
    count = len(keys)
    numbers = np.full(count, turn % queues, np.int64)
    if keys.null_count == count:
        return None, numbers
    given = [key if key is None else _as_key(key) for key in keys.to_pylist()]
    encoded = encode_keys(given)
    hashes = key_hashes(encoded).astype(np.int64) % queues
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(key_properties(given, encoded), pa.binary()), np.where(has_key, hashes, numbers)


def _as_key(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
