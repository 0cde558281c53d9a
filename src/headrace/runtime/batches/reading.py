"""Reading a batch: messages of its ranges, as records or as columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.errors import HeadraceError, OffsetExpiredError, StateError
from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
from headrace.protocol.columns import property_column
from headrace.protocol.messages import Message
from headrace.runtime.batches.cutting import BATCH, CommittedBatch, Tags
from headrace.runtime.sources.messages import ranged, user_properties
from headrace.topology.low_level import BatchRecords, Record

if TYPE_CHECKING:
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Int64s
    from headrace.topology.operators.batches import BatchSink


# Positions: how far the batches of a sink are done, in a compaction topic of its own.
#
# One message says it all, because a batch is done in all queues or in none.  Offsets of a consumer
# group, which brokers keep queue by queue, could be torn: half of a batch would come again under the
# token of the whole one.

logger = logging.getLogger(__name__)


class SinkPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink is."""

    #: Last batch that is done.
    batch: int
    #: Where the next one begins, by queue; queues that are left out, at their first message.
    offsets: dict[str, int] = {}


class SinkPositions:
    """Keeps the position of one sink.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Name of the job.
    sink
        The sink.
    """

    def __init__(self, client: Client, job: str, sink: BatchSink) -> None:
        self._job = job
        self._sink = sink
        self._client = client
        self._producer = Producer(client)
        #: A group whose offsets follow, so that tools show how far behind the sink is.
        self.group = f"{job}-{sink.name}"
        self._follower = PullConsumer(client, self.group)

    def read(self) -> SinkPosition | None:
        """Return the newest position; None before the first."""
        (queue,) = self._client.queues(self._sink.done_topic)
        end = self._follower.end_offset(queue)
        if end <= self._follower.begin_offset(queue):
            return None
        message = [
            message
            for result in self._follower.blocks(queue, end - 1, end)
            for message in result.messages()
        ][-1]
        return msgspec.json.decode(message.body, type=SinkPosition)

    def write(self, position: SinkPosition) -> None:
        """Keep a position."""
        self._producer.send(
            Message(topic=self._sink.done_topic, body=msgspec.json.encode(position), keys="done")
        )
        try:
            parsed = {MessageQueue.parse(name): at for name, at in position.offsets.items()}
            self._follower.commit(parsed)
        except HeadraceError as error:
            logger.debug("the offsets of group %s stay behind: %s", self.group, error)

    def begins(
        self, position: SinkPosition, queues: list[MessageQueue], *, skip: bool
    ) -> Mapping[QueueName, int]:
        """Return where the next batch begins in each queue.

        Parameters
        ----------
        position
            Where the sink is.
        queues
            Queues of its topic.
        skip
            Go on at the first message that is left, where messages are gone.

        Raises
        ------
        OffsetExpiredError
            A queue does not hold messages that were never handed over, and ``skip`` is false.
        StateError
            The topic was made anew.
        """
        first = self._follower.begin_offsets(queues)
        last = self._follower.end_offsets(queues)
        ranges = {queue.name: (first[queue], last[queue]) for queue in queues}
        return begins_within(self._job, self._sink, position, ranges, skip=skip)


def begins_within(
    job: str,
    sink: BatchSink,
    position: SinkPosition,
    held: Mapping[QueueName, tuple[int, int]],
    *,
    skip: bool,
) -> dict[QueueName, int]:
    """Compare a position with the offsets that the broker holds, from and up to, by queue.

    Raises
    ------
    OffsetExpiredError
        A queue does not hold messages that were never handed over, and ``skip`` is false.
    StateError
        The topic was made anew.
    """
    what = f"{sink.label} '{sink.name}' of job '{job}'"
    found: dict[QueueName, int] = {}
    for queue, (first, end) in held.items():
        at = position.offsets.get(queue, 0)
        if at > end:
            raise StateError(
                f"{what} must go on at offset {at} of queue {queue}, which ends at {end}: the"
                " topic was made anew",
                hint=f"delete {sink.done_topic} too, or start the job under a new name",
            )
        if at < first and not skip:
            raise OffsetExpiredError(
                f"{what} must go on at offset {at} of queue {queue}, but the broker's first offset"
                f" is {first}: {first - at} records are gone that were never handed over",
                hint="start with on_expired_offset='earliest' to go on with what is left",
            )
        found[queue] = max(at, first)
    return found


_HEADERS = pa.map_(pa.string(), pa.string())
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_OWN = (KEYS, EXACT_KEY, BATCH)


@dataclass(frozen=True, slots=True)
class BatchMessages:
    """Messages of one queue and one batch."""

    queue: MessageQueue
    bodies: pa.BinaryArray
    #: Raw properties strings.
    properties: pa.BinaryArray
    #: ms since 1970.
    times: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.bodies)

    def keys(self) -> list[Any]:
        """Read the keys."""
        columns = (property_column(self.properties, name) for name in (KEYS, EXACT_KEY))
        return keys_from_columns(*columns)

    def headers(self) -> list[Mapping[str, str]]:
        """Read the headers."""
        found = [_NO_HEADERS] * len(self)
        pairs = pc.count_substring(self.properties, "\2").to_numpy(zero_copy_only=False)
        own = [property_column(self.properties, name).is_valid() for name in _OWN]
        counts = sum(each.to_numpy(zero_copy_only=False).astype(np.int32) for each in own)
        # Most messages have key and tag alone: only the others are looked at one by one.
        for row in np.flatnonzero(pairs != counts).tolist():
            found[row] = user_properties(self.properties[row].as_py()) or _NO_HEADERS
        return found

    def present(self) -> pa.BooleanArray:
        """Return which messages have a value."""
        return pa.array(Tags(property_column(self.properties, BATCH)).has_value)


def read_cut(consumer: PullConsumer, cut: CommittedBatch) -> Iterator[BatchMessages]:
    """Read the messages of a batch, queue by queue, block by block.

    Raises
    ------
    OffsetExpiredError
        A queue no longer holds a message of the batch.
    """
    for name, (begin, end) in sorted(cut.ranges.items()):
        queue = MessageQueue.parse(name)
        for result in consumer.blocks(queue, begin, end):
            columns = ranged(result.columns(), begin, end)
            picks = np.flatnonzero(Tags(columns.property(BATCH)).of(cut.batch, cut.epoch))
            if not len(picks):
                continue
            places = pa.array(picks)
            yield BatchMessages(
                queue,
                columns.body.take(places),
                columns.properties.take(places),
                columns.born[picks],
                columns.queue_offset[picks],
            )


def batch_records(sink: BatchSink, messages: list[BatchMessages]) -> BatchRecords[Any, Any]:
    """Return messages as a user's function takes them."""
    return BatchRecords(
        sum(map(len, messages)),
        lambda: [record for part in messages for record in _records(sink, part)],
        lambda: pa.Table.from_batches(
            [batch_table(sink, part) for part in messages], table_schema(sink)
        ),
    )


def _records(sink: BatchSink, messages: BatchMessages) -> Iterator[Record[Any, Any]]:
    present = messages.present()
    values = iter(sink.value_serde.deserialize_many(messages.bodies.filter(present)))
    columns = (messages.keys(), present.to_pylist(), messages.times.tolist(), messages.headers())
    for key, is_there, time, headers in zip(*columns, strict=True):
        value = next(values) if is_there else None
        yield Record(key, value, datetime.fromtimestamp(time / 1000, UTC), headers)


def table_schema(sink: BatchSink) -> pa.Schema:
    """Return the columns of a sink's batches."""
    return pa.schema(
        [
            ("key", sink.key_type),
            ("value", sink.value_type),
            ("time", pa.timestamp("us", "UTC")),
            ("headers", _HEADERS),
            ("broker", pa.string()),
            ("queue", pa.int32()),
            ("offset", pa.int64()),
        ]
    )


def batch_table(sink: BatchSink, messages: BatchMessages) -> pa.RecordBatch:
    """Return messages as columns.

    Raises
    ------
    pyarrow.ArrowException
        A value does not fit the column of its type.
    """
    count = len(messages)
    schema = table_schema(sink)
    headers = [list(found.items()) if found else [] for found in messages.headers()]
    arrays = [
        _key_column(sink, messages),
        _value_column(sink, messages),
        pa.array(messages.times * 1000, pa.int64()).cast(schema.field("time").type),
        pa.array(headers, _HEADERS),
        pa.repeat(pa.scalar(messages.queue.broker), count),
        pa.repeat(pa.scalar(messages.queue.queue_id, pa.int32()), count),
        pa.array(messages.offsets, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _key_column(sink: BatchSink, messages: BatchMessages) -> pa.Array:
    if not pa.types.is_string(sink.key_type):
        return pa.array(messages.keys(), sink.key_type)
    # Keys that are not text are shown as tools show them.
    texts = property_column(messages.properties, KEYS).to_pylist()
    exact = property_column(messages.properties, EXACT_KEY)
    if exact.null_count < len(exact):
        read = messages.keys()
        pairs = zip(read, texts, strict=True)
        return pa.array([k if isinstance(k, str) else _text(text) for k, text in pairs])
    return pa.array([_text(text) for text in texts], pa.string())


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _value_column(sink: BatchSink, messages: BatchMessages) -> pa.Array:
    present = messages.present()
    bodies = messages.bodies.filter(present)
    column = _values(sink, bodies)
    if len(bodies) == len(messages):
        return column
    places = np.cumsum(present.to_numpy(zero_copy_only=False)) - 1
    missing = ~present.to_numpy(zero_copy_only=False)
    return column.take(pa.array(places, mask=missing))


def _values(sink: BatchSink, bodies: pa.BinaryArray) -> pa.Array:
    schema, serde = sink.schema, sink.value_serde
    if schema is None:
        return bodies.cast(sink.value_type)
    if serde.schema == schema:
        batch = serde.read_columns(bodies)
    else:
        batch = schema.batch(serde.deserialize_many(bodies))
    columns = [
        column.cast(kind) for column, (_, kind) in zip(batch.columns, schema.columns, strict=True)
    ]
    if schema.kind == "single":
        return columns[0]
    return pa.StructArray.from_arrays(columns, fields=list(sink.value_type))
