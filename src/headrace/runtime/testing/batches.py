"""Committed batches in the test driver."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.client import MessageQueue
from headrace.errors import StateError
from headrace.runtime.batches.reading import BatchMessages, batch_records
from headrace.topology.batches import BatchRecords, BatchToken
from headrace.topology.operators.batches import ForEachBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.runtime.commit.transactions import QueueMessages
    from headrace.topology import Topology
    from headrace.topology.operators.batches import BatchSink

__all__ = ["CommittedBatches"]

Batch = tuple[BatchToken, BatchRecords[Any, Any]]


class CommittedBatches:
    """What sinks that take whole batches got, and the calls of their functions.

    Parameters
    ----------
    topology
        The job.
    """

    def __init__(self, topology: Topology) -> None:
        self._job = topology.name
        self._sinks = topology.batch_sinks
        self._found: dict[str, list[Batch]] = {sink.name: [] for sink in self._sinks}
        self._ends: dict[str, int] = defaultdict(int)
        #: Whether functions are called.
        self.calls = True

    def commit(self, batch: int, staged: Iterable[QueueMessages]) -> None:
        """Hand a batch over that was committed."""
        by_topic: dict[str, list[QueueMessages]] = defaultdict(list)
        for messages in staged:
            by_topic[messages.queue.split("@")[0]].append(messages)
        for sink in self._sinks:
            if sink.topic in by_topic:
                self._hand_over(sink, BatchToken(self._job, batch), by_topic[sink.topic])

    def of(self, operator: str) -> list[Batch]:
        """Give the batches of one sink.

        Raises
        ------
        StateError
            There is none of this name.
        """
        if operator not in self._found:
            raise StateError(
                f"topology '{self._job}' has no operator '{operator}' that takes batches",
                hint=f"it has {', '.join(self._found) or 'none'}",
            )
        return self._found[operator]

    def _hand_over(self, sink: BatchSink, token: BatchToken, parts: list[QueueMessages]) -> None:
        parts = sorted(parts, key=lambda part: part.queue)
        records = batch_records(sink, [self._placed(part) for part in parts])
        self._found[sink.name].append((token, records))
        if self.calls and isinstance(sink, ForEachBatch):
            sink.function(records, token)

    def _placed(self, part: QueueMessages) -> BatchMessages:
        begin = self._ends[part.queue]
        self._ends[part.queue] += len(part)
        offsets = np.arange(begin, begin + len(part), dtype=np.int64)
        queue = MessageQueue.parse(part.queue)
        return BatchMessages(queue, part.bodies, part.properties, part.times, offsets)
