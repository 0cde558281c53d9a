"""Staging on RocketMQ: what an attempt makes waits in the journal topic for its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.failpoints import failpoint
from headrace.protocol.messages import Message
from headrace.protocol.transactions import StagedPart
from headrace.runtime.commit.journal.chunks import encode_chunk, pieces, size_of

if TYPE_CHECKING:
    from headrace.client import MessageQueue, Producer
    from headrace.runtime.commit.transactions import Attempt, QueueMessages

__all__ = ["JournalWriter", "Send"]

#: A stock broker takes messages of 4 MiB; small ones keep the publisher's memory small.
_CHUNK_BYTES = 1 << 20

Send = Callable[["QueueMessages"], int]
"""Sends messages at once and gives the next offset of their queue."""


class JournalWriter:
    """Takes what one attempt makes, and appends it to the journal, chunk by chunk.

    A chunk that arrives twice does no harm: the commit names the places of those that count.

    Parameters
    ----------
    attempt
        Names the attempt.
    queue
        The queue of the journal that its partition writes.
    producer
        Sends to the journal.
    send
        Sends output at once instead of staging it (at least once); state is staged all the same.
    """

    def __init__(
        self, attempt: Attempt, queue: MessageQueue, producer: Producer, send: Send | None
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._producer = producer
        self._send = send
        self._waiting: list[QueueMessages] = []
        self._bytes = 0
        self._places: list[int] = []
        self._counts: Counter[str] = Counter()

    def stage(self, messages: QueueMessages) -> int | None:
        """Hand over messages of one queue."""
        if self._send is not None and not messages.is_state:
            return self._send(messages)
        self._counts[messages.queue] += len(messages)
        for piece in pieces(messages, _CHUNK_BYTES):
            size = size_of(piece)
            if self._bytes + size > _CHUNK_BYTES:
                self._flush()
            self._waiting.append(piece)
            self._bytes += size
        return None

    def finish(self) -> StagedPart:
        """Hand over the rest and say what was staged, and where."""
        self._flush()
        failpoint("journal.staged")
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=len(self._places),
            records=self._counts.total(),
            journal=self._queue.name,
            places=self._places,
            counts=dict(self._counts),
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        body = encode_chunk(self._waiting)
        self._waiting, self._bytes = [], 0
        message = Message(topic=self._queue.topic, body=body, properties=self._properties())
        self._places.append(self._producer.send(message, self._queue).offset)

    def _properties(self) -> dict[str, str]:
        attempt = self._attempt
        return {
            "job": attempt.job,
            "epoch": str(attempt.epoch),
            "batch": str(attempt.batch),
            "stage": str(attempt.stage),
            "partition": str(attempt.partition),
            "attempt": str(attempt.number),
            "chunk": str(len(self._places)),
        }
