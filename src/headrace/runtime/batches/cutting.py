"""Cutting: which messages of a topic are the next committed batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import MessageQueue
from headrace.errors import OffsetExpiredError
from headrace.runtime.sinks import SinkContext, SinkWriter

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import CommitRecord, QueueName
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.topology.operators.batches import BatchSink


# Tags: which batch a message belongs to, as a property of the message.

BATCH = "HEADRACE_BATCH"
"""Property of a message: epoch and batch that wrote it, and whether it has a value."""

_HAS_VALUE, _NO_VALUE = "v", "n"


def make_tag(epoch: int, batch: int, *, has_value: bool) -> bytes:
    r"""Return the raw property of a message.

    Examples
    --------
    >>> make_tag(2, 17, has_value=True)
    b'HEADRACE_BATCH\x012.17.v\x02'
    """
    return f"{BATCH}\1{epoch}.{batch}.{_HAS_VALUE if has_value else _NO_VALUE}\2".encode()


class Tags:
    """The tags of many messages.

    Parameters
    ----------
    column
        The property of each message, null where it has none; such a message is of no batch.

    Examples
    --------
    >>> tags = Tags(pa.array([b"1.7.v", b"2.7.n", None], pa.binary()))
    >>> tags.batches.tolist(), tags.of(7, 2).tolist(), tags.has_value.tolist()
    ([7, 7, 0], [False, True, False], [True, False, False])
    """

    def __init__(self, column: pa.BinaryArray) -> None:
        # Messages that lie together have the same tag: few texts are looked at.
        found = column.dictionary_encode()
        known = [_parsed(text) for text in found.dictionary.to_pylist()]
        table = np.array([*known, (0, 0, 0)], np.int64).reshape(-1, 3)
        picks = pc.fill_null(found.indices, len(known)).to_numpy(zero_copy_only=False)
        self.epochs = table[picks, 0]
        self.batches = table[picks, 1]
        self.has_value = table[picks, 2].astype(np.bool_)

    def of(self, batch: int, epoch: int | None) -> npt.NDArray[np.bool_]:
        """Return which messages are of a batch, as the given epoch wrote it; None means any."""
        same: npt.NDArray[np.bool_] = self.batches == batch
        return same if epoch is None else same & (self.epochs == epoch)


def _parsed(text: bytes) -> tuple[int, int, int]:
    parts = text.split(b".")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return 0, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2] == _HAS_VALUE.encode())


def winner(lineage: Sequence[Sequence[int]], batch: int) -> int | None:
    """Return which epoch committed a batch, or None if that is no longer remembered.

    Examples
    --------
    >>> lineage = [[1, 1], [3, 5]]
    >>> winner(lineage, 4), winner(lineage, 5), winner([[9, 100]], 4)
    (1, 3, None)
    """
    owners = [epoch for epoch, first in lineage if first <= batch]
    return owners[-1] if owners else None


# Records of a sink whose batches are read back: each message says its batch.


class BatchSinkWriter(SinkWriter):
    """Turns records into messages that carry the tag of their batch.

    Parameters
    ----------
    sink
        Topic and serializer.
    context
        Queues, and the numbers of the batch.
    """

    def __init__(self, sink: BatchSink, context: SinkContext) -> None:
        super().__init__(sink, context)
        epoch, batch = context.epoch_and_batch
        self._with_value = make_tag(epoch, batch, has_value=True)
        self._without = make_tag(epoch, batch, has_value=False)

    def _properties(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, Int64s]:
        properties, numbers = super()._properties(chunk, queues)
        tags = [self._without if value is None else self._with_value for value in chunk.values]
        return pc.binary_join_element_wise(properties, pa.array(tags, pa.binary()), b""), numbers


Offsets = Mapping["QueueName", int]


class MessageBlock(Protocol):
    """Some messages of a queue."""

    def columns(self) -> MessageColumns:
        """Return them field by field."""


class BlockReader(Protocol):
    """Reads queues, as a pull consumer does."""

    def blocks(self, queue: MessageQueue, begin: int, end: int) -> Iterable[MessageBlock]:
        """Read messages from ``begin`` up to ``end``; the last block may hold more."""


class CommittedBatch(msgspec.Struct, frozen=True, kw_only=True):
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

    def next(self, begins: Offsets, ends: Offsets, record: CommitRecord) -> CommittedBatch | None:
        """Return the next batch, if the job has committed it.

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
        return CommittedBatch(batch=batch, epoch=winner(record.lineage, batch), ranges=ranges)

    def _end_of(self, batch: int, queue: QueueName, begin: int, end: int) -> int:
        """Return the offset of the first message of a later batch."""
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
