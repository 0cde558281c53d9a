"""Reading state topics: messages back into entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import MessageQueue, PullConsumer
from headrace.keys import EXACT_KEY, KEYS
from headrace.runtime.state.local import StateTopicBlock
from headrace.runtime.state.store import decode_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        Queues of each topic, in the order of the partitions.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        topics: Mapping[str, str],
        queues: Mapping[str, list[QueueName]],
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._queues = queues

    def read(self, store: str, partition: int, start: int, end: int) -> Iterator[StateTopicBlock]:
        """Give the messages of [start, end) in order."""
        queue = MessageQueue.parse(self._queues[self._topics[store]][partition])
        for result in self._consumer.blocks(queue, start, end, max_bytes=_BLOCK_BYTES):
            columns = result.columns()
            yield entries(columns, end)


def entries(columns: MessageColumns, end: int) -> StateTopicBlock:
    """Turn state messages below an offset into entries; a delete has the value None."""
    wanted = int(np.searchsorted(columns.queue_offset, end))
    bodies = columns.body.slice(0, wanted)
    next_offset = int(columns.queue_offset[wanted - 1]) + 1 if wanted else end
    properties = columns.property(_DELETE_MARKER).slice(0, wanted)
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
