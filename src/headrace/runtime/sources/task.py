"""The first stage of a task: read queues, make records, run the operators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import MessageQueue, PullResult, PullStatus
from headrace.errors import OffsetExpiredError, RollbackError
from headrace.runtime.chunk import NEVER, Chunk, Marks
from headrace.runtime.outside import MessageReader
from headrace.runtime.sources.messages import (
    SourceReader,
    joined,
    newest_times,
    observe,
    original_at,
    ranged,
    without_watermarks,
)
from headrace.runtime.stage import ThroughReader
from headrace.topology.operators.core import MessageSource, Source, ThroughSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.control import Block
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.planning import OffsetRange, Split
    from headrace.runtime.task import Task
    from headrace.runtime.user_code import Finder, Original


#: Some so many messages are decoded and run through the operators at once.
_CHUNK_MESSAGES = 1 << 16
#: Or so many bytes of bodies, if those are reached before.
_CHUNK_BYTES = 32 << 20
_PULL_BYTES = 8 << 20
#: Beyond every mark.
_ALL = 1 << 62


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
        for runs in _read(job, split.ranges, marks, in_order=feed.in_order):
            finder.runs = runs
            feed.take(runs)
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

    @property
    def in_order(self) -> bool:
        """Whether messages must come in the order of their marks, and not queue by queue."""
        return any(reader.in_order for reader in self._readers)

    def take(self, runs: Iterable[Run]) -> None:
        """Run messages through the sources that read their topics, and on through the stage.

        The topics' records go together, so that operators behind several get them in the order of
        their marks; each call must bring higher marks than the one before.
        """
        chunks: dict[str, list[Chunk]] = defaultdict(list)
        for run in runs:
            records = without_watermarks(run.columns)
            for reader in self._readers:
                if reader.source.reads(run.topic):
                    chunk = reader.read(run.topic, records)
                    self._tell_time(reader, run, chunk)
                    chunks[reader.source.name].append(chunk)
            self._task.counters["records_in"] += len(records)
        self._task.feed({name: Chunk.merge(parts) for name, parts in chunks.items()})

    def _tell_time(self, reader: SourceReader, run: Run, chunk: Chunk) -> None:
        clock = self._clocks[reader.source.name]
        if clock is None and not reader.names_queues:
            return
        context, source = self._task.context, reader.source
        marks = run.columns.position
        order = None if reader.in_order else np.argsort(marks, kind="stable")
        places = np.searchsorted(marks, chunk.marks, sorter=order)
        if order is not None:
            places = order[places]
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


class _QueueAhead:
    """What was read of a queue and is not handed on yet.

    Parameters
    ----------
    number
        Number of the queue among those that the task reads.
    topic
        Its topic.
    blocks
        Its messages, with marks in place of positions.
    """

    def __init__(self, number: int, topic: str, blocks: Iterator[MessageColumns]) -> None:
        self.number = number
        self.topic = topic
        self._blocks = blocks
        self._held: list[MessageColumns] = []
        #: All messages up to this mark are held or were handed on.
        self.known_to = NEVER

    def read_on(self) -> None:
        """Hold one block more."""
        block = next(self._blocks, None)
        if block is None:
            self.known_to = _ALL
        elif len(block):
            self._held.append(block)
            self.known_to = int(block.position[-1])

    def held(self) -> tuple[int, int]:
        """Return how many messages are held, and the bytes of their bodies."""
        return sum(map(len, self._held)), sum(block.body.nbytes for block in self._held)

    def held_to(self, mark: int) -> int:
        """Return how many messages are held up to a mark."""
        return sum(_count_to(block, mark) for block in self._held)

    def take(self, mark: int) -> list[MessageColumns]:
        """Take out what is held up to a mark, and return it."""
        held, self._held = self._held, []
        taken: list[MessageColumns] = []
        for block in held:
            count = _count_to(block, mark)
            if count:
                taken.append(block.slice(0, count))
            if count < len(block):
                self._held.append(block.slice(count, len(block)))
        return taken


def _count_to(block: MessageColumns, mark: int) -> int:
    return int(np.searchsorted(block.position, mark, side="right"))


def _read(
    job: JobConnection, ranges: Iterable[OffsetRange], marks: Marks, *, in_order: bool
) -> Iterator[list[Run]]:
    """Yield the messages of the ranges in steps, each a run per topic.

    All marks of a step are above those of the steps before it, whichever queues they come from:
    a message is held back until every queue is known as far as that.  Within a run they rise only
    ``in_order``; else they do within each queue.
    """
    queues = [
        _QueueAhead(number, MessageQueue.parse(part.queue).topic, _blocks(job, part, marks))
        for number, part in enumerate(ranges)
    ]
    while queues:
        behind = min(queues, key=_known_to)
        if behind.known_to != _ALL:
            behind.read_on()
            if not _fills_step(queues):
                continue
        step = _step(queues, min(map(_known_to, queues)), in_order=in_order)
        if step:
            yield step
        queues = [queue for queue in queues if queue.known_to != _ALL or queue.held()[0]]


def _known_to(queue: _QueueAhead) -> int:
    return queue.known_to


def _fills_step(queues: list[_QueueAhead]) -> bool:
    """Return whether enough is held for a step, of which most need not wait for other queues."""
    held = [queue.held() for queue in queues]
    count, volume = (sum(own[of] for own in held) for of in (0, 1))
    if count < _CHUNK_MESSAGES and volume < _CHUNK_BYTES:
        return False
    known_to = min(map(_known_to, queues))
    return 2 * sum(queue.held_to(known_to) for queue in queues) >= count


def _blocks(job: JobConnection, part: OffsetRange, marks: Marks) -> Iterator[MessageColumns]:
    broker = MessageQueue.parse(part.queue).broker
    for result in read_range(job, part):
        for piece in result.pieces():
            columns = ranged(piece, part.begin, part.end)
            yield replace(columns, position=marks.of(broker, columns.position))


def _step(queues: list[_QueueAhead], mark: int, *, in_order: bool) -> list[Run]:
    parts: dict[str, list[MessageColumns]] = defaultdict(list)
    numbers: dict[str, list[int]] = defaultdict(list)
    for queue in queues:
        taken = queue.take(mark)
        parts[queue.topic] += taken
        numbers[queue.topic] += [queue.number] * len(taken)
    return [
        _joined_run(topic, own, numbers[topic], in_order=in_order)
        for topic, own in parts.items()
        if own
    ]


def read_range(job: JobConnection, part: OffsetRange) -> Iterator[PullResult]:
    """Read a range that a batch was planned with.

    Raises
    ------
    RollbackError
        Some of it is gone since.
    """
    queue = MessageQueue.parse(part.queue)
    if part.messages:
        yield PullResult(queue, PullStatus.FOUND, part.messages, part.end, part.begin, part.end)
        return
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


def _joined_run(
    topic: str, parts: list[MessageColumns], numbers: list[int], *, in_order: bool
) -> Run:
    columns, of_message = joined(parts, in_order=in_order)
    return Run(topic, columns, np.array(numbers, np.intp)[of_message])


class _SplitFinder:
    """Finds a message among those that are being processed."""

    runs: Sequence[Run] = ()

    def find(self, mark: int) -> Original | None:
        for run in self.runs:
            found = np.flatnonzero(run.columns.position == mark)
            if len(found):
                return original_at(run.topic, run.columns, int(found[0]))
        return None
