"""Records from outside systems and messages to them: columns in, columns out, positions kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import ColumnValues
from headrace.keys import (
    EXACT_KEY,
    KEYS,
    encode_keys,
    key_hashes,
    key_properties,
    keys_from_columns,
    text_or_bytes,
)
from headrace.protocol.columns import MessageColumns, property_column, rows_with_others
from headrace.protocol.transactions import Position, QueueName
from headrace.runtime.chunk import Chunk, Int64s, spout_mark
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.sources.messages import NOT_CARRIED, SourceReader, carried_properties
from headrace.topology.operators import core
from headrace.topology.operators.core import Delivery, Feed, FeedSink, Operator

if TYPE_CHECKING:
    from headrace.runtime.sinks import SinkContext


# What of a message goes outside beside its body: its key, and its properties.

_NOT_CARRIED: Final = frozenset(name.encode() for name in NOT_CARRIED)
_PAIRS: Final = pa.map_(pa.string(), pa.string())


def property_pairs(raw: pa.BinaryArray) -> pa.MapArray:
    r"""Read the properties that go along with messages.

    >>> property_pairs(pa.array([b"TAGS\x01red\x02", b""], pa.binary())).to_pylist()
    [[('TAGS', 'red')], None]
    """
    rows = rows_with_others(raw, _NOT_CARRIED)
    if not len(rows):
        return pa.nulls(len(raw), _PAIRS)
    pairs: list[list[tuple[str, str]] | None] = [None] * len(raw)
    for row in rows.tolist():
        found = carried_properties(raw[row].as_py())
        pairs[row] = None if found is None else list(found.items())
    return pa.array(pairs, _PAIRS)


def key_bytes(raw: pa.BinaryArray) -> pa.BinaryArray:
    r"""Read the keys of messages out of their properties, as bytes.

    >>> key_bytes(pa.array([b"KEYS\x01k\x02", b""], pa.binary())).to_pylist()
    [b'k', None]
    """
    keys, exact = property_column(raw, KEYS), property_column(raw, EXACT_KEY)
    if exact.null_count == len(exact):
        return keys
    return pa.array(list(map(_as_bytes, keys_from_columns(keys, exact))), pa.binary())


def _as_bytes(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else orjson.dumps(key, default=str)


# Records that come from outside, and the messages that they become.


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
        """Yield the messages, grouped by queue."""
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
    """Return the properties in which keys travel, and the queue of each record.

    Bytes that are text are the key of that text, so that pipelines read it as such.
    """
    count = len(keys)
    numbers = np.full(count, turn % queues, np.int64)
    if keys.null_count == count:
        return None, numbers
    given = [key if key is None else text_or_bytes(key) for key in keys.to_pylist()]
    encoded = encode_keys(given)
    hashes = key_hashes(encoded).astype(np.int64) % queues
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(key_properties(given, encoded), pa.binary()), np.where(has_key, hashes, numbers)


# Messages that are handed over to an outside system, before the batch is committed.


class DeliveryProcessor(Processor[Delivery]):
    """Hands over what comes, and has it made sure of at the end of the batch."""

    def __init__(self, operator: Delivery, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._handed = False

    def process(self, chunk: Chunk) -> Chunk:
        """Hand over messages, queue by queue, each with the name of its queue."""
        assert chunk.queues is not None, "messages come with their queues"
        if np.any(chunk.queues[:-1] > chunk.queues[1:]):
            chunk = chunk.take(np.argsort(chunk.queues, kind="stable"))
        assert isinstance(chunk.values, ColumnValues), "messages come in columns"
        names = pa.DictionaryArray.from_arrays(
            pa.array(chunk.queues, pa.int32()), pa.array(self.context.source_queues, pa.string())
        )
        batch = chunk.values.batch
        messages = pa.RecordBatch.from_arrays(
            [names, *batch.columns], ["queue", *batch.schema.names]
        )
        assert self.operator.outlet is not None, "somebody takes them"
        self.operator.outlet.put(*self.context.epoch_and_batch, messages)
        self._handed = True
        counters, size = self.context.counters, byte_count(batch.column("body"))
        counters["outside_bytes"] = counters.get("outside_bytes", 0) + size
        return Chunk.empty()

    def finish(self) -> Chunk:
        """Flush the batch, and pass on what was refused."""
        outlet = self.operator.outlet
        if not self._handed or outlet is None:
            return Chunk.empty()
        outlet.flush(*self.context.epoch_and_batch)
        refused = outlet.refused(*self.context.epoch_and_batch)
        return Chunk.empty() if refused is None else chunk_of(refused, self.context.partition)

    def reached(self, ends: Mapping[QueueName, int]) -> None:
        """Keep how far each queue has been handed over: here, or as the outside says by itself."""
        generation = self.operator.generation
        for queue, offset in ends.items():
            if offset:
                self.context.positions[queue] = Position(offset=offset, generation=generation)


# Messages on their way out, as they were read: nobody deserializes them here.


class MessageReader(SourceReader):
    """A reader of the messages of a topic, as columns."""

    names_queues: ClassVar[bool] = True
    # Outside each queue counts for itself, and few long runs of a queue are quicker.
    in_order: ClassVar[bool] = False

    def read(self, topic: str, columns: MessageColumns) -> Chunk:
        """Put messages into columns: offset, body, properties, timestamp, system flag."""
        del topic
        batch = pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(columns.queue_offset),
                "body": columns.body,
                "properties": columns.properties,
                "timestamp": pa.array(columns.born),
                "sys_flag": pa.array(columns.sys_flag),
            }
        )
        values: Any = ColumnValues(batch)
        return Chunk(None, values, columns.born, columns.position)


#: Operator to processor.
OUTSIDE: Mapping[type[Operator], type[Processor[Any]]] = {
    core.Delivery: DeliveryProcessor,
    core.Feed: FeedProcessor,
}
