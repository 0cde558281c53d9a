"""The first stage of a task: read queues, make records, run the operators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import MessageQueue, PullConsumer
from headrace.runtime.messages import SourceReader, joined, original_at, ranged
from headrace.topology.operators import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.planning import QueueRange, Split
    from headrace.runtime.record_errors import Finder, Original
    from headrace.runtime.task import Task
    from headrace.runtime.watermarks import SourceWatermarks

__all__ = ["run_source"]

#: So many messages are decoded and run through the operators at once.
_CHUNK_MESSAGES = 1 << 16
_PULL_BYTES = 8 << 20


def run_source(
    job: JobConnection, split: Split, make_task: Callable[[Finder], Task]
) -> list[Block]:
    """Run the first stage on the messages of one split."""
    finder = _SplitFinder()
    task = make_task(finder)
    try:
        readers = _readers(job, task)
        clocks = _clocks(job, task)
        for run in _read(job.consumer, split.ranges):
            finder.run = run
            chunks: dict[str, Chunk] = {}
            for reader in readers[run.topic]:
                source = reader.source.name
                chunk = reader.read(run.topic, run.columns)
                if source in clocks:
                    run.move(clocks[source], chunk, task)
                chunks[source] = chunk
            task.counters["records_in"] += len(run.columns)
            task.feed(chunks)
        blocks = list(task.finish(split.of, split.ends))
    finally:
        task.close()
    return blocks


def _readers(job: JobConnection, task: Task) -> dict[str, list[SourceReader]]:
    readers: dict[str, list[SourceReader]] = defaultdict(list)
    for operator in job.plan.topology.operators:
        if isinstance(operator, Source):
            needs_headers = job.plan.forwards_headers(operator)
            readers[operator.topic].append(
                SourceReader(operator, task, forwards_headers=needs_headers)
            )
    return readers


def _clocks(job: JobConnection, task: Task) -> dict[str, SourceWatermarks]:
    if not job.plan.topology.timed:
        return {}
    return {
        source.name: task.clock(source, int(source.allowed_lateness.total_seconds() * 1000))
        for source in job.plan.topology.sources
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """Messages of one topic, in the order of the log."""

    topic: str
    columns: MessageColumns
    #: Queues that were read, and the number of each message's queue among them.
    queues: list[QueueName]
    numbers: npt.NDArray[np.intp]

    def move(self, clock: SourceWatermarks, chunk: Chunk, task: Task) -> None:
        """Move a source's watermarks by the records that it made of the messages."""
        if len(chunk):
            chunk.queues = self.numbers[np.searchsorted(self.columns.position, chunk.marks)]
            found, chunk.late_below = clock.observe(
                self.queues, chunk.queues, chunk.times, chunk.marks
            )
            task.move_watermarks(found, clock.current)


def _read(consumer: PullConsumer, ranges: Iterable[QueueRange]) -> Iterator[_Run]:
    """Give the messages of the ranges by topic, in runs that are in the order of the log."""
    by_topic: dict[str, list[QueueRange]] = defaultdict(list)
    for part in ranges:
        by_topic[MessageQueue.parse(part.queue).topic].append(part)
    for topic, parts in by_topic.items():
        run: list[MessageColumns] = []
        queues: list[QueueName] = []
        size = 0
        for part in parts:
            queue = MessageQueue.parse(part.queue)
            for result in consumer.blocks(queue, part.begin, part.end, max_bytes=_PULL_BYTES):
                columns = ranged(result.columns(), part.begin, part.end)
                run.append(columns)
                queues.append(part.queue)
                size += len(columns)
                if size >= _CHUNK_MESSAGES:
                    yield _joined_run(topic, run, queues)
                    run, queues, size = [], [], 0
        if size:
            yield _joined_run(topic, run, queues)


def _joined_run(topic: str, parts: list[MessageColumns], queues: list[QueueName]) -> _Run:
    columns, numbers = joined(parts)
    distinct = list(dict.fromkeys(queues))
    of_part = np.array([distinct.index(queue) for queue in queues], np.intp)
    return _Run(topic, columns, distinct, of_part[numbers])


class _SplitFinder:
    """Finds a message among those that are being processed."""

    run: _Run | None = None

    def find(self, mark: int) -> Original | None:
        assert self.run is not None
        found = np.flatnonzero(self.run.columns.position == mark)
        if not len(found):
            return None
        return original_at(self.run.topic, self.run.columns, int(found[0]))
