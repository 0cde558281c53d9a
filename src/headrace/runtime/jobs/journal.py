"""What a job has staged in its journal, on a stock RocketMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client import PullConsumer
from headrace.errors import ProtocolError, TopicNotFoundError
from headrace.protocol.transactions import StagedBatch
from headrace.runtime.commit.journal.chunks import decode_chunk
from headrace.topology.names import journal_topic

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.protocol.messages import StoredMessage
    from headrace.protocol.transactions import CommitRecord

__all__ = ["staged_in_journal"]

#: Messages of a queue of the journal that are looked at, where the last batch does not say where
#: its own end.
_LOOK = 64

_Chunk = tuple[str, str, str, str]


def staged_in_journal(client: Client, record: CommitRecord) -> list[StagedBatch]:
    """Sum up what waits behind the last commit; what older epochs staged is void, and left out."""
    try:
        queues = client.queues(journal_topic(record.job))
    except TopicNotFoundError:
        return []
    consumer = PullConsumer(client)
    behind = {part.journal: part.places[-1] + 1 for part in record.parts if part.places}
    found: dict[int, dict[_Chunk, tuple[int, int]]] = {}
    for queue in queues:
        end = consumer.end_offset(queue)
        begin = max(consumer.begin_offset(queue), behind.get(queue.name, end - _LOOK))
        for result in consumer.blocks(queue, begin, end):
            for message in result.messages():
                batch = int(message.properties.get("batch", 0))
                if batch > record.batch and message.properties.get("epoch") == str(record.epoch):
                    chunks = found.setdefault(batch, {})
                    # A chunk that arrived twice counts once.
                    chunks[_chunk_of(message)] = (_records(message), len(message.body))
    return [
        StagedBatch(
            epoch=record.epoch,
            batch=batch,
            parts=len({chunk[:3] for chunk in chunks}),
            records=sum(records for records, _ in chunks.values()),
            size=sum(size for _, size in chunks.values()),
        )
        for batch, chunks in sorted(found.items())
    ]


def _chunk_of(message: StoredMessage) -> _Chunk:
    given = message.properties
    names = ("stage", "partition", "attempt", "chunk")
    stage, partition, attempt, chunk = (given.get(name, "") for name in names)
    return stage, partition, attempt, chunk


def _records(message: StoredMessage) -> int:
    try:
        return sum(map(len, decode_chunk(message.body)))
    except ProtocolError:
        return 0
