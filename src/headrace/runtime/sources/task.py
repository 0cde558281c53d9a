"""The first stage of a task: read queues, make records, run the operators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import MessageQueue
from headrace.errors import OffsetExpiredError, RollbackError
from headrace.runtime.event_time.timestamps import newest_times, observe
from headrace.runtime.outside.messages import MessageReader
from headrace.runtime.sources.messages import (
    SourceReader,
    joined,
    original_at,
    ranged,
    without_watermarks,
)
from headrace.runtime.through import ThroughReader
from headrace.topology.operators.outside import MessageSource
from headrace.topology.operators.through import ThroughSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from headrace.client import PullResult
    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.marks import Marks
    from headrace.runtime.planning import QueueRange, Split
    from headrace.runtime.task import Task
    from headrace.runtime.user_code.errors import Finder, Original
    from headrace.topology.operators.core import Source

__all__ = ["Run", "SourceFeed", "read_range", "run_source"]

#: So many messages are decoded and run through the operators at once.
_CHUNK_MESSAGES = 1 << 16
#: Or so many bytes of bodies, if those are reached before.
_CHUNK_BYTES = 32 << 20
_PULL_BYTES = 8 << 20


def run_source(
    job: JobConnection, split: Split, marks: Marks, make_task: Callable[[Finder], Task]
) -> list[Block]:
    """Run the first stage on the messages of one split."""
    finder = _SplitFinder()
    task = make_task(finder)
    queues = [part.queue for part in split.ranges]
    feed = SourceFeed(
        task,
        job.plan.topology.sources,
        queues,
        forwards_headers=job.plan.forwards_headers,
    )
    try:
        for run in _read(job, split.ranges, marks):
            finder.run = run
            feed.take(run)
        blocks = list(task.finish(split.of, split.ends))
    finally:
        task.close()
    return blocks


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one topic, in the order of their marks."""

    topic: str
    #: With a mark in place of each position.
    columns: MessageColumns
    #: Number of each message's queue among those that the task reads.
    numbers: npt.NDArray[np.intp]


class SourceFeed:
    """The sources of a task: messages become records, with their times and how late they may be.

    Parameters
    ----------
    task
        Takes the records.
    sources
        All sources of the topology.
    queues
        The queues that the task reads.
    forwards_headers
        Tells whether some sink passes a source's message properties on.
    """

    def __init__(
        self,
        task: Task,
        sources: Iterable[Source],
        queues: list[QueueName],
        *,
        forwards_headers: Callable[[Source], bool],
    ) -> None:
        self._task = task
        task.context.source_queues = queues
        self._readers = [
            _reader(source, task, forwards_headers=forwards_headers(source)) for source in sources
        ]
        self._clocks = {
            source.name: task.context.event_clock(source, source.allowed_lateness)
            for source in sources
        }

    def take(self, run: Run) -> None:
        """Run messages through the sources that read their topic, and on through the stage."""
        records = without_watermarks(run.columns)
        chunks: dict[str, Chunk] = {}
        for reader in self._readers:
            if reader.source.reads(run.topic):
                chunk = reader.read(run.topic, records)
                self._tell_time(reader, run, chunk)
                chunks[reader.source.name] = chunk
        self._task.counters["records_in"] += len(records)
        self._task.feed(chunks)

    def _tell_time(self, reader: SourceReader, run: Run, chunk: Chunk) -> None:
        clock = self._clocks[reader.source.name]
        if clock is None and not reader.names_queues:
            return
        context, source = self._task.context, reader.source
        places = np.searchsorted(run.columns.position, chunk.marks)
        chunk.queues = run.numbers[places]
        if clock is None:
            return
        if isinstance(reader, ThroughReader):
            told = reader.watermarks(run.columns, context.source_queues, run.numbers)
            context.tell_time(clock.take(told), clock.current)
        elif len(chunk):
            # The wall clock runs ahead of every message, and of an old one by any time.
            by_wall = source.timestamp == "wall"
            newest = None if by_wall else newest_times(source, context, run.columns.stored[places])
            observe(context, clock, context.source_queues, chunk, newest)


def _reader(source: Source, task: Task, *, forwards_headers: bool) -> SourceReader:
    if isinstance(source, MessageSource):
        return MessageReader(source, task, forwards_headers=False)
    if isinstance(source, ThroughSource):
        job = task.context.control.job
        return ThroughReader(source, task, job=job, forwards_headers=forwards_headers)
    return SourceReader(source, task, forwards_headers=forwards_headers)


def _read(job: JobConnection, ranges: Iterable[QueueRange], marks: Marks) -> Iterator[Run]:
    """Give the messages of the ranges by topic, in runs that are in the order of their marks."""
    by_topic: dict[str, list[tuple[int, QueueRange]]] = defaultdict(list)
    for number, part in enumerate(ranges):
        by_topic[MessageQueue.parse(part.queue).topic].append((number, part))
    for topic, parts in by_topic.items():
        run: list[MessageColumns] = []
        numbers: list[int] = []
        size = volume = 0
        for number, part in parts:
            broker = MessageQueue.parse(part.queue).broker
            for result in read_range(job, part):
                columns = ranged(result.columns(), part.begin, part.end)
                of_broker = marks.of(broker, columns.position)
                run.append(replace(columns, position=of_broker))
                numbers.append(number)
                size += len(columns)
                volume += columns.body.nbytes
                if size >= _CHUNK_MESSAGES or volume >= _CHUNK_BYTES:
                    yield _joined_run(topic, run, numbers)
                    run, numbers, size, volume = [], [], 0, 0
        if size:
            yield _joined_run(topic, run, numbers)


def read_range(job: JobConnection, part: QueueRange) -> Iterator[PullResult]:
    """Read a range that a batch was planned with.

    Raises
    ------
    RollbackError
        Some of it is gone since.
    """
    queue = MessageQueue.parse(part.queue)
    consumer, gapless = job.reader(queue.topic), job.is_gapless(queue)
    try:
        yield from consumer.blocks(
            queue, part.begin, part.end, max_bytes=_PULL_BYTES, gapless=gapless
        )
    except OffsetExpiredError as error:
        raise RollbackError(
            f"messages went while a batch was about to read them: {error.message}",
            hint="the job goes back to its last commit, and looks from there what is left",
        ) from error


def _joined_run(topic: str, parts: list[MessageColumns], numbers: list[int]) -> Run:
    columns, of_message = joined(parts)
    return Run(topic, columns, np.array(numbers, np.intp)[of_message])


class _SplitFinder:
    """Finds a message among those that are being processed."""

    run: Run | None = None

    def find(self, mark: int) -> Original | None:
        assert self.run is not None
        found = np.flatnonzero(self.run.columns.position == mark)
        if not len(found):
            return None
        return original_at(self.run.topic, self.run.columns, int(found[0]))
