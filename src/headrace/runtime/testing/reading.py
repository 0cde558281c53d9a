"""What tests send, on its way into the first stage."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.protocol.columns import MessageColumns
from headrace.runtime.sources.messages import original_at
from headrace.runtime.sources.task import Run, SourceFeed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.runtime.chunk import Int64s
    from headrace.runtime.task import Task
    from headrace.runtime.testing.topics import Sent
    from headrace.runtime.user_code.errors import Original
    from headrace.topology import Topology

__all__ = ["SourceQueues"]


class SourceQueues:
    """The queues of a topology's source topics, and how far each was written.

    Parameters
    ----------
    topology
        Whose sources read them.
    counts
        Queues of topics; those left out have one.
    """

    def __init__(self, topology: Topology, counts: Mapping[str, int]) -> None:
        self._sources = topology.sources
        self._given = counts
        topics = sorted({topic for source in topology.sources for topic in source.topics})
        own = {sink.topic: sink.queues for sink in topology.throughs}
        #: Number of queues of each topic that is read.
        self.counts = {topic: counts.get(topic, own.get(topic, 1)) for topic in topics}
        self._position = 0
        self._offsets: dict[str, int] = defaultdict(int)
        #: Everything that a test sent: what the log is to a broker.
        self._by_mark: dict[int, tuple[str, MessageColumns, int]] = {}

    def reads(self, topic: str) -> bool:
        """Tell whether some source reads a topic; one that a pattern matches joins now."""
        if topic not in self.counts and any(source.reads(topic) for source in self._sources):
            self.counts[topic] = self._given.get(topic, 1)
        return topic in self.counts

    def name(self, topic: str, number: int) -> str:
        """Name a queue."""
        return f"{topic}@test@{number}"

    @property
    def names(self) -> list[str]:
        """Name every queue."""
        return [self.name(topic, number) for topic, n in self.counts.items() for number in range(n)]

    def feed(self, task: Task, sent: list[Sent], clock: int) -> None:
        """Run messages through the first stage, stored at this time of the clock."""
        names = self.names
        feed = SourceFeed(task, self._sources, names, forwards_headers=lambda _: True)
        marks = np.arange(len(sent), dtype=np.int64) + self._position
        self._position += len(sent)
        runs = []
        for topic in dict.fromkeys(message.topic for message in sent):
            own = [number for number, message in enumerate(sent) if message.topic == topic]
            messages = [sent[number] for number in own]
            numbers = np.array([names.index(self.name(topic, m.queue)) for m in messages], np.intp)
            columns = self._columns(messages, marks[own], clock)
            for index, mark in enumerate(columns.position.tolist()):
                self._by_mark[mark] = (topic, columns, index)
            runs.append(Run(topic, columns, numbers))
        feed.take(runs)

    def find(self, mark: int) -> Original | None:
        """Find a message that was sent by its mark."""
        found = self._by_mark.get(mark)
        return None if found is None else original_at(*found)

    def _columns(self, messages: list[Sent], marks: Int64s, clock: int) -> MessageColumns:
        return MessageColumns(
            np.array(list(self._next_offsets(messages)), np.int64),
            marks,
            np.array([message.time for message in messages], np.int64),
            np.full(len(messages), clock, np.int64),
            np.array([message.queue for message in messages], np.int32),
            np.zeros(len(messages), np.int32),
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([message.properties for message in messages], pa.binary()),
        )

    def _next_offsets(self, messages: Iterable[Sent]) -> Iterable[int]:
        for message in messages:
            name = self.name(message.topic, message.queue)
            yield self._offsets[name]
            self._offsets[name] += 1
