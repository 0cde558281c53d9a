"""Reading state topics: messages back into entries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import MessageQueue, PullConsumer
from headrace.keys import EXACT_KEY, KEYS
from headrace.protocol.journal_tags import TAG, FirstCopies, parse_tags
from headrace.runtime.state.local import StateTopicBlock
from headrace.runtime.state.store import decode_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName

__all__ = ["StateTopicReader", "entries"]

_BLOCK_BYTES = 8 << 20
#: RIP-58 marks a delete by this property where the body may not be empty.
_DELETE_MARKER = "empty_body"


class StateTopicReader:
    """Gives the entries of state topics, queue by queue.

    Parameters
    ----------
    consumer
        Reads the cluster.
    topics
        Topic of each store.
    queues
        Gives the queues of a topic, in the order of the partitions.
    tags_of
        The job whose tags the messages have, on RocketMQ.  There, offsets count the messages that
        the job published, and a queue may hold more: late repetitions, which are left out.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        topics: Mapping[str, str],
        queues: Callable[[str], Sequence[QueueName]],
        tags_of: str | None = None,
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._queues = queues
        self._tags_of = tags_of

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        """Give the messages of [start, end) in order, none of a batch after ``batch``."""
        queue = MessageQueue.parse(self._queues(self._topics[store])[partition])
        if self._tags_of is not None:
            yield from self._tagged(queue, start, end, batch)
            return
        for result in self._consumer.blocks(queue, start, end, max_bytes=_BLOCK_BYTES):
            yield entries(result.columns().before(end), end)

    def _tagged(
        self, queue: MessageQueue, start: int, end: int, batch: int | None
    ) -> Iterator[StateTopicBlock]:
        """Read on to the queue's end: what the job published may lie behind repetitions."""
        first_copies = FirstCopies()
        stop = self._consumer.end_offset(queue)
        for result in self._consumer.blocks(queue, start, stop, max_bytes=_BLOCK_BYTES):
            columns = result.columns().before(stop)
            tags = parse_tags(columns.property(TAG))
            wanted = first_copies.among(tags)
            if batch is not None:
                wanted &= tags.batch <= batch
            block = entries(columns if wanted.all() else columns.take(wanted), end)
            yield replace(block, next_offset=min(int(columns.queue_offset[-1]) + 1, end))


def entries(columns: MessageColumns, end: int) -> StateTopicBlock:
    """Turn state messages into entries; a delete has the value None."""
    bodies = columns.body
    next_offset = int(columns.queue_offset[-1]) + 1 if len(columns) else end
    properties = columns.property(_DELETE_MARKER)
    live = pc.and_(pc.greater(pc.binary_length(bodies), 0), pc.is_null(properties))
    if pc.all(live).as_py() in (True, None):
        keys, values = decode_entries(bodies)
        return StateTopicBlock(keys, list(values), next_offset)
    return _with_deletes(columns, bodies, live, next_offset)


def _with_deletes(
    columns: MessageColumns, bodies: pa.BinaryArray, live: pa.BooleanArray, next_offset: int
) -> StateTopicBlock:
    found = iter(zip(*decode_entries(pa.concat_arrays([bodies.filter(live)])), strict=True))
    texts = columns.property(KEYS).to_pylist()
    exact = columns.property(EXACT_KEY).to_pylist()
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for index, is_live in enumerate(live.to_pylist()):
        if is_live:
            key, value = next(found)
            keys.append(key)
            values.append(value)
        else:
            keys.append(bytes.fromhex((exact[index] or texts[index]).decode()))
            values.append(None)
    return StateTopicBlock(keys, values, next_offset)
