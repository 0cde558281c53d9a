"""Several brokers below the test driver, whose first stage reads queues as a job on Spark does.

Each broker counts the positions of its log from zero.  Successive messages for brokers in the
order of their names stand at one position, each in its own log, so the order of sending is the
order of places: a record is before another one wherever batches are cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from headrace.client import MessageQueue
from headrace.protocol.columns import MessageColumns
from headrace.runtime.chunk import Int64s, LogPlace, Marks
from headrace.runtime.control import Block
from headrace.runtime.planning import OffsetRange, Split
from headrace.runtime.sources.messages import original_at
from headrace.runtime.sources.task import run_source
from headrace.runtime.task import Task
from headrace.runtime.testing import job
from headrace.runtime.testing.job import SourceQueues
from headrace.runtime.testing.topics import Sent
from headrace.runtime.user_code import Finder, Original
from headrace.topology import Topology

__all__ = ["brokers_below", "without_brokers"]

#: Messages that a reader gets at once.
_BLOCK = 5


class _BrokerQueues(SourceQueues):
    """The queues of source topics, dealt out to brokers.

    Parameters
    ----------
    brokers
        How many there are.
    topology, counts
        As of :class:`SourceQueues`.
    """

    def __init__(self, brokers: int, topology: Topology, counts: Mapping[str, int]) -> None:
        super().__init__(topology, counts)
        self._brokers = [f"broker-{number}" for number in range(brokers)]
        self._marks = Marks(self._brokers)
        self._logs: dict[str, list[MessageColumns]] = defaultdict(list)
        self._by_place: dict[LogPlace, tuple[str, MessageColumns]] = {}
        #: Of the newest message.
        self._last = (0, -1)
        self._finder: Finder | None = None

    def name(self, topic: str, number: int) -> str:
        queue, broker = divmod(number, len(self._brokers))
        return MessageQueue(topic, self._brokers[broker], queue).name

    def feed(self, task: Task, sent: list[Sent], clock: int) -> None:
        begins = {name: len(self._logs[name]) for name in self.names}
        for message in sent:
            self._append(message, clock)
        ranges = tuple(
            OffsetRange(name, begin, len(self._logs[name]))
            for name, begin in begins.items()
            if begin < len(self._logs[name])
        )
        read: Any = SimpleNamespace(
            plan=SimpleNamespace(
                topology=SimpleNamespace(sources=self._sources), forwards_headers=lambda _: True
            ),
            reader=lambda _: self,
            is_gapless=lambda _: True,
        )

        def make_task(finder: Finder) -> Any:
            self._finder = finder
            return _Unended(task)

        run_source(read, Split(0, 1, ranges), self._marks, make_task)
        self._finder = None

    def _append(self, message: Sent, clock: int) -> None:
        name = self.name(message.topic, message.queue)
        queue = MessageQueue.parse(name)
        number = self._brokers.index(queue.broker)
        position, before = self._last
        self._last = (position if number > before else position + 1, number)
        stored = message.__class__(
            message.topic, queue.queue_id, message.body, message.properties, message.time
        )
        columns = self._columns([stored], np.array([self._last[0]], np.int64), clock)
        columns.queue_offset[0] = len(self._logs[name])
        self._logs[name].append(columns)
        self._by_place[LogPlace(queue.broker, self._last[0])] = (message.topic, columns)

    def blocks(self, queue: MessageQueue, begin: int, end: int, **_: Any) -> Iterator[Any]:
        """Read a range, as a consumer does."""
        log = self._logs[queue.name]
        for start in range(begin, end, _BLOCK):
            columns = MessageColumns.concat(log[start : min(start + _BLOCK, end)])
            yield SimpleNamespace(pieces=lambda columns=columns: iter([columns]))

    def find(self, mark: int) -> Original | None:
        """Find a message as the stage does that runs: among those that it reads, or at its place."""
        if self._finder is not None:
            return self._finder.find(mark)
        place = self._marks.place(mark)
        found = None if place is None else self._by_place.get(place)
        return None if found is None else original_at(*found, 0)


class _Unended:
    """A task that goes on behind its source."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def finish(self, *_: object) -> list[Block]:
        return []

    def close(self) -> None:
        """Leave it open."""


@contextmanager
def brokers_below(count: int) -> Iterator[None]:
    """Let the test drivers that are made meanwhile read from so many brokers."""

    def queues(topology: Topology, counts: Mapping[str, int]) -> SourceQueues:
        return _BrokerQueues(count, topology, counts)

    with patch.object(job, "SourceQueues", queues):
        yield


def _position_alone(_: Marks, __: str, positions: Int64s) -> Int64s:
    return positions << 10


@contextmanager
def without_brokers() -> Iterator[None]:
    """Break it for a while: a place is a position, of whichever broker."""
    with patch.object(Marks, "of", _position_alone):
        yield
