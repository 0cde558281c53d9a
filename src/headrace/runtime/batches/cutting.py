"""Cutting: which messages of a topic are the next committed batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from headrace.client import MessageQueue
from headrace.errors import OffsetExpiredError
from headrace.runtime.batches.tags import BATCH, Tags, winner

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import CommitRecord, QueueName

__all__ = ["Block", "BlockReader", "Cut", "Cutter"]

Offsets = Mapping["QueueName", int]


class Block(Protocol):
    """Some messages of a queue."""

    def columns(self) -> MessageColumns:
        """Give them field by field."""


class BlockReader(Protocol):
    """Reads queues, as a pull consumer does."""

    def blocks(self, queue: MessageQueue, begin: int, end: int) -> Iterable[Block]:
        """Read messages from ``begin`` up to ``end``; the last block may hold more."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One committed batch: where its messages lie, and how to know them."""

    batch: int
    #: Epoch that committed it; messages of another one are left overs of a batch that failed.
    epoch: int | None
    #: From, and up to, by queue; queues without messages of the batch are left out.
    ranges: dict[str, tuple[int, int]]


class Cutter:
    """Finds the batches of a topic, one after the other.

    Parameters
    ----------
    consumer
        Reads the topic.
    exact
        The topic holds committed batches and nothing else, in their order.
    """

    def __init__(self, consumer: BlockReader, *, exact: bool) -> None:
        self._consumer = consumer
        self._exact = exact

    def next(self, begins: Offsets, ends: Offsets, record: CommitRecord) -> Cut | None:
        """Give the next batch, if the job has committed it.

        Parameters
        ----------
        begins
            Where the next batch begins, by queue.
        ends
            Where the queues end.
        record
            The newest commit record that was read before the ends.

        Raises
        ------
        OffsetExpiredError
            A queue does not hold the message where the next batch begins, or ends before it.
        """
        for queue, end in ends.items():
            if end < begins[queue]:
                raise OffsetExpiredError(f"queue {queue} ends at {end}, before {begins[queue]}")
        unread = [queue for queue, end in ends.items() if end > begins[queue]]
        heads = {queue: self._batch_at(queue, begins[queue]) for queue in unread}
        batch = min(heads.values(), default=record.batch + 1)
        if batch > record.batch:
            return None
        ranges = {
            queue: (begins[queue], self._end_of(batch, queue, begins[queue], ends[queue]))
            for queue, first in heads.items()
            if first == batch
        }
        return Cut(batch=batch, epoch=winner(record.lineage, batch), ranges=ranges)

    def _end_of(self, batch: int, queue: QueueName, begin: int, end: int) -> int:
        """Find the first message of a later batch."""
        if not self._exact:
            return self._scanned(batch, queue, begin, end)
        if self._batch_at(queue, end - 1) <= batch:
            return end
        step = 1
        while begin + step < end and self._batch_at(queue, begin + step) <= batch:
            begin, step = begin + step, step * 2
        # The message at begin is of the batch, the one at stop is not.
        stop = min(begin + step, end - 1)
        while stop - begin > 1:
            middle = (begin + stop) // 2
            if self._batch_at(queue, middle) <= batch:
                begin = middle
            else:
                stop = middle
        return stop

    def _scanned(self, batch: int, queue: QueueName, begin: int, end: int) -> int:
        # What a batch left that failed may stand anywhere, so every message is looked at.
        for result in self._consumer.blocks(MessageQueue.parse(queue), begin, end):
            columns = result.columns()
            later = np.flatnonzero(Tags(columns.property(BATCH)).batches > batch)
            if len(later):
                return min(int(columns.queue_offset[later[0]]), end)
        return end

    def _batch_at(self, queue: QueueName, offset: int) -> int:
        blocks = self._consumer.blocks(MessageQueue.parse(queue), offset, offset + 1)
        for result in blocks:
            return int(Tags(result.columns().property(BATCH)).batches[0])
        return 0
