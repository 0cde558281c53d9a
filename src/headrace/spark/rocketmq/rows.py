"""Messages as rows: pulled blocks become Arrow record batches, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import MessageQueue, PullConsumer
from headrace.encoding import decode
from headrace.errors import DeserializationError, OffsetExpiredError
from headrace.keys import EXACT_KEY
from headrace.protocol.properties import KEYS, TAGS
from headrace.spark.rocketmq.cluster import connect
from headrace.spark.rocketmq.headers import headers_column, text_column

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns
    from headrace.spark.rocketmq.options import ClusterOptions
    from headrace.spark.rocketmq.ranges import ReadRange

__all__ = ["RangeReader", "record_batch"]


@dataclass(frozen=True, slots=True)
class _Block:
    """Messages of one queue that are to become rows: the first ``count`` of a pulled block."""

    queue: MessageQueue
    columns: MessageColumns
    count: int

    def __len__(self) -> int:
        return self.count


_Maker = Callable[[_Block, pa.DataType], pa.Array]


def _key(block: _Block, kind: pa.DataType) -> pa.Array:
    columns = block.columns
    keys = columns.property(KEYS)[: len(block)]
    exact = columns.property(EXACT_KEY)[: len(block)]
    if exact.null_count == len(exact):
        return keys
    # Rare: keys that are not text, or too long for KEYS.
    pairs = zip(keys.to_pylist(), exact.to_pylist(), strict=True)
    return pa.array([key if data is None else _exact_key(key, data) for key, data in pairs], kind)


def _exact_key(key: bytes | None, data: bytes) -> bytes | None:
    """Read a key of bytes or text as it was; others stay in the hex that KEYS shows."""
    try:
        found = decode(bytes.fromhex(data.decode("ascii")))
    except (ValueError, DeserializationError):
        return key
    if isinstance(found, str):
        return found.encode("utf-8", "surrogatepass")
    return found if isinstance(found, bytes) else key


def _value(block: _Block, _: pa.DataType) -> pa.Array:
    packed = block.columns.packed[: len(block)]
    bodies = block.columns.body[: len(block)]
    return pc.if_else(packed, None, bodies) if packed.any() else bodies


def _constant(value: object, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _milliseconds(times: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times * 1000)])


_MAKERS: Mapping[str, _Maker] = {
    "key": _key,
    "value": _value,
    "topic": lambda block, kind: _constant(block.queue.topic, len(block), kind),
    "broker": lambda block, kind: _constant(block.queue.broker, len(block), kind),
    "queue": lambda block, kind: _constant(block.queue.queue_id, len(block), kind),
    "offset": lambda block, kind: pa.array(block.columns.queue_offset[: len(block)], kind),
    "timestamp": lambda block, kind: _milliseconds(block.columns.stored[: len(block)], kind),
    "bornTimestamp": lambda block, kind: _milliseconds(block.columns.born[: len(block)], kind),
    "tags": lambda block, _: text_column(block.columns.property(TAGS)[: len(block)]),
    "headers": lambda block, kind: headers_column(block.columns.properties[: len(block)], kind),
}


def record_batch(
    queue: MessageQueue, columns: MessageColumns, end: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Make rows of the messages with offsets below ``end``, with the columns of a schema."""
    block = _Block(queue, columns, int(np.searchsorted(columns.queue_offset, end)))
    arrays = [_MAKERS[field.name](block, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges of queues as rows.

    Examples
    --------
    >>> from headrace.spark.rocketmq.schema import arrow_schema, read_schema
    >>> def count(cluster: ClusterOptions, part: ReadRange) -> int:
    ...     reader = RangeReader(cluster, arrow_schema(read_schema(headers=False)))
    ...     return sum(batch.num_rows for batch in reader.read(part))
    """

    cluster: ClusterOptions
    #: The columns to give.
    schema: pa.Schema
    #: Whether a message that is gone is an error, or passed over.
    fail_on_data_loss: bool = True
    #: Whether only what is committed of what jobs write is given.
    committed: bool = False

    def read(self, part: ReadRange) -> Iterator[pa.RecordBatch]:
        """Give the rows of a range, in order.

        Raises
        ------
        OffsetExpiredError
            The queue no longer holds a message of the range, and that is an error.
        """
        consumer = PullConsumer(connect(self.cluster), committed=self.committed)
        left = part
        while len(left) > 0:
            try:
                for result in consumer.blocks(left.queue, left.begin, left.end):
                    batches = [
                        record_batch(left.queue, piece, left.end, self.schema)
                        for piece in result.pieces()
                    ]
                    left = replace(left, begin=result.next_offset)
                    yield from (batch for batch in batches if batch.num_rows)
                return
            except OffsetExpiredError as error:
                held = left if self.fail_on_data_loss else _still_held(consumer, left)
                if held == left:
                    raise _gone(error) from None
                left = held


def _still_held(consumer: PullConsumer, part: ReadRange) -> ReadRange:
    begin = max(part.begin, consumer.begin_offset(part.queue))
    return replace(part, begin=begin, end=min(part.end, consumer.end_offset(part.queue)))


def _gone(error: OffsetExpiredError) -> OffsetExpiredError:
    return OffsetExpiredError(
        error.message,
        hint="the broker's retention deleted messages before they were read, or the topic was made"
        " anew; set failOnDataLoss to false to pass over what is missing",
    )
