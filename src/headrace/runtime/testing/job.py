"""A job in memory: its tasks, batch by batch, and what is left of them."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.protocol.columns import MessageColumns
from headrace.protocol.transactions import StateSummary
from headrace.runtime.blocks import BlockKind
from headrace.runtime.commits import Attempt
from headrace.runtime.messages import SourceReader, original_at
from headrace.runtime.task import Control, Summary, Task
from headrace.runtime.testing.memory import BatchCopies, MemoryCopies, MemoryWriter, SavedChanges
from headrace.runtime.testing.taps import TappedContext, tapped
from headrace.runtime.testing.topics import Sent, TestRecord, Written, records_of
from headrace.runtime.watermarks import origin_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.record_errors import Original
    from headrace.runtime.state import MemoryBase
    from headrace.topology import Topology

__all__ = ["MemoryJob"]


class MemoryJob:
    """Runs the tasks of a topology on messages in memory.

    Parameters
    ----------
    topology
        What to run.
    partitions
        Shares of the key space.
    queues
        Queues of source topics; those left out have one.
    """

    def __init__(self, topology: Topology, partitions: int, queues: Mapping[str, int]) -> None:
        self.topology = tapped(topology)
        self._partitions = partitions
        topics = sorted({source.topic for source in topology.sources})
        #: Number of queues of each source topic.
        self.queues = {topic: queues.get(topic, 1) for topic in topics}
        #: What was written, by topic.
        self.outputs: dict[str, list[Written]] = defaultdict(list)
        #: Records that came too late, by the operator that found them so.
        self.late: dict[str, list[TestRecord[Any, Any]]] = defaultdict(list)
        #: What tasks counted so far, and records that reached each operator.
        self.counters: dict[str, int] = defaultdict(int)
        self.records: dict[str, int] = defaultdict(int)
        self._copies = MemoryCopies()
        self._sent = _SentMessages()
        self._position = 0
        self._offsets: dict[tuple[str, int], int] = defaultdict(int)
        self._batch = 0
        self._clock = 0
        self._states: dict[tuple[str, int], StateSummary] = {}
        self._watermarks: dict[str, int] = {}
        self._progress: dict[str, int] = {}

    def state(self, operator: str) -> list[MemoryBase]:
        """Give the partitions of an operator's store."""
        return [self._copies.base(operator, number) for number in range(self._partitions)]

    def run(self, sent: list[Sent], clock: int) -> None:
        """Run one batch; nothing of it is kept when it fails."""
        self._batch += 1
        self._clock = clock
        writer = MemoryWriter()
        saved = SavedChanges()
        taken: dict[str, list[Chunk]] = defaultdict(list)
        blocks: list[Block] = []
        for stage in self.topology.plan.stages:
            tasks = [0] if stage.number == 0 else range(self._partitions)
            for partition in tasks:
                task = self._task(stage.number, partition, writer, saved, taken)
                if stage.number == 0:
                    self._feed_sources(task, sent)
                task.absorb(
                    block
                    for block in blocks
                    if (block.stage, block.partition) == (stage.number, partition)
                )
                blocks += task.finish()
        self._commit(writer, saved)
        for operator, chunks in taken.items():
            self.late[operator] += chain.from_iterable(map(records_of, chunks))
        for block in blocks:
            if block.kind is BlockKind.SUMMARY:
                self._note(msgspec.json.decode(block.payload, type=Summary))

    def _note(self, summary: Summary) -> None:
        self._watermarks.update(summary.watermarks)
        self._progress.update(summary.progress)
        for totals, more in ((self.counters, summary.counters), (self.records, summary.records)):
            for name, count in more.items():
                totals[name] += count

    def _task(
        self,
        stage: int,
        partition: int,
        writer: MemoryWriter,
        saved: SavedChanges,
        taken: dict[str, list[Chunk]],
    ) -> Task:
        topics = [*self._written_topics(), *self.topology.state_topics.values()]
        control = Control(
            job=self.topology.name,
            epoch=1,
            batch=self._batch,
            partitions=self._partitions,
            clock=self._clock,
            queues={
                topic: [f"{topic}@test@{number}" for number in range(self._partitions)]
                for topic in topics
            },
            states=list(self._states.values()),
            origins=[
                origin_name(source.name, queue)
                for source in self.topology.sources
                for queue in self._queue_names(source.topic)
            ],
            watermarks=self._watermarks,
            progress=self._progress,
        )
        context = TappedContext(
            control=control,
            partition=partition,
            finder=self._sent,
            copies=BatchCopies(self._copies, saved),
            plan=self.topology.plan,
            state_topics=self.topology.state_topics,
            taken=taken,
        )
        attempt = Attempt(
            job=self.topology.name,
            epoch=1,
            batch=self._batch,
            stage=stage,
            partition=partition,
            number=partition,
        )
        return Task(context, attempt, writer)

    def _written_topics(self) -> list[str]:
        written = [topic for sink in self.topology.sinks for topic in sink.topics]
        return [*written, *self.topology.dead_letter_topics]

    def _queue_names(self, topic: str) -> list[str]:
        return [f"{topic}@test@{number}" for number in range(self.queues[topic])]

    def _feed_sources(self, task: Task, sent: list[Sent]) -> None:
        marks = np.arange(len(sent), dtype=np.int64) + self._position
        self._position += len(sent)
        for topic in dict.fromkeys(message.topic for message in sent):
            own = [number for number, message in enumerate(sent) if message.topic == topic]
            columns = self._columns([sent[number] for number in own], marks[own])
            self._sent.keep(topic, columns)
            chunks: dict[str, Chunk] = {
                source.name: SourceReader(source, task, forwards_headers=True).read(topic, columns)
                for source in self.topology.sources
                if source.topic == topic
            }
            self._move_watermarks(task, columns, chunks)
            task.feed(chunks)

    def _move_watermarks(
        self, task: Task, columns: MessageColumns, chunks: Mapping[str, Chunk]
    ) -> None:
        if not self.topology.timed:
            return
        for source in self.topology.sources:
            chunk = chunks.get(source.name)
            if chunk is None or not len(chunk):
                continue
            clock = task.clock(source, int(source.allowed_lateness.total_seconds() * 1000))
            numbers = columns.queue_id.astype(np.intp)
            chunk.queues = numbers[np.searchsorted(columns.position, chunk.marks)]
            found, chunk.late_below = clock.observe(
                self._queue_names(source.topic), chunk.queues, chunk.times, chunk.marks
            )
            task.move_watermarks(found, clock.current)

    def _columns(self, messages: list[Sent], marks: Int64s) -> MessageColumns:
        times = np.array([message.time for message in messages], np.int64)
        return MessageColumns(
            np.array([self._next_offset(message) for message in messages], np.int64),
            marks,
            times,
            times,
            np.array([message.queue for message in messages], np.int32),
            np.zeros(len(messages), np.int32),
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([message.properties for message in messages], pa.binary()),
        )

    def _next_offset(self, message: Sent) -> int:
        offset = self._offsets[message.topic, message.queue]
        self._offsets[message.topic, message.queue] += 1
        return offset

    def _commit(self, writer: MemoryWriter, saved: SavedChanges) -> None:
        state_topics = set(self.topology.state_topics.values())
        for messages in writer.staged:
            topic = messages.queue.split("@")[0]
            if topic not in state_topics:
                self.outputs[topic] += Written.unpack(messages)
        for (store, partition), changes in saved.changes.items():
            self._copies.base(store, partition).apply(changes)
            before = self._states.get((store, partition))
            self._states[store, partition] = StateSummary(
                store=store,
                partition=partition,
                count=changes.count,
                checksum=changes.checksum,
                epoch=1,
                batch=self._batch,
                attempt=partition,
                end_offset=(before.end_offset if before else 0) + len(changes.keys),
            )


class _SentMessages:
    """Everything that a test sent: what the log is to a broker."""

    def __init__(self) -> None:
        self._by_mark: dict[int, tuple[str, MessageColumns, int]] = {}

    def keep(self, topic: str, columns: MessageColumns) -> None:
        for index, mark in enumerate(columns.position.tolist()):
            self._by_mark[mark] = (topic, columns, index)

    def find(self, mark: int) -> Original | None:
        found = self._by_mark.get(mark)
        return None if found is None else original_at(*found)
