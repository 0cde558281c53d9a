"""The first stage of a task: read queues, make records, run the operators."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import MessageQueue, PullConsumer
from headrace.runtime.messages import SourceReader, joined, ranged
from headrace.topology.operators import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.protocol.columns import MessageColumns
    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.planning import QueueRange, Split
    from headrace.runtime.task import Task
    from headrace.runtime.user_code import Locator

__all__ = ["run_source"]

#: So many messages are decoded and run through the operators at once.
_CHUNK_MESSAGES = 1 << 16
_PULL_BYTES = 8 << 20


def run_source(
    job: JobConnection, split: Split, make_task: Callable[[Locator], Task]
) -> list[Block]:
    """Run the first stage on the messages of one split."""
    locator = _SplitLocator()
    task = make_task(locator)
    try:
        readers = _readers(job, task)
        for topic, columns in _read(job.consumer, split.ranges):
            locator.topic, locator.columns = topic, columns
            chunks: dict[str, Chunk] = {}
            for reader in readers[topic]:
                chunks[reader.source.name] = reader.read(topic, columns)
            task.counters["records_in"] += len(columns)
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


def _read(
    consumer: PullConsumer, ranges: Iterable[QueueRange]
) -> Iterator[tuple[str, MessageColumns]]:
    """Give the messages of the ranges by topic, in runs that are in the order of the log."""
    by_topic: dict[str, list[QueueRange]] = defaultdict(list)
    for part in ranges:
        by_topic[MessageQueue.parse(part.queue).topic].append(part)
    for topic, parts in by_topic.items():
        run: list[MessageColumns] = []
        size = 0
        for part in parts:
            queue = MessageQueue.parse(part.queue)
            for result in consumer.blocks(queue, part.begin, part.end, max_bytes=_PULL_BYTES):
                columns = ranged(result.columns(), part.begin, part.end)
                run.append(columns)
                size += len(columns)
                if size >= _CHUNK_MESSAGES:
                    yield topic, joined(run)
                    run, size = [], 0
        if size:
            yield topic, joined(run)


class _SplitLocator:
    """Finds a record among the messages that are being processed."""

    topic = ""
    columns: MessageColumns | None = None

    def locate(self, mark: int) -> str:
        columns = self.columns
        assert columns is not None
        found = np.flatnonzero(columns.position == mark)
        if not len(found):
            return f"commit-log position {mark}"
        index = int(found[0])
        return (
            f"topic '{self.topic}', queue {columns.queue_id[index]},"
            f" offset {columns.queue_offset[index]}"
        )
