"""A job in memory: its tasks, batch by batch, and what is left of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client import MessageQueue
from headrace.protocol.transactions import CommitRecord, StateSummary, lineage_with
from headrace.runtime.blocks import BlockKind
from headrace.runtime.bolts.instances import Instances
from headrace.runtime.commit.transactions import Attempt
from headrace.runtime.control import BatchControl, Control, Heading, Summary, queue_runs
from headrace.runtime.event_time.announcing import announcements, owes_announcement
from headrace.runtime.event_time.silence import (
    BatchTime,
    batch_time,
    committed_time,
    is_due,
    origins_of,
)
from headrace.runtime.task import Task
from headrace.runtime.testing.batches import CommittedBatches
from headrace.runtime.testing.memory import BatchCopies, MemoryCopies, MemoryWriter, SavedChanges
from headrace.runtime.testing.reading import SourceQueues
from headrace.runtime.testing.taps import TappedContext, tapped
from headrace.runtime.testing.topics import Sent, TestRecord, Written, records_of
from headrace.topology.operators.through import WATERMARK

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.state.copies import StateCopies
    from headrace.runtime.state.store import MemoryBase
    from headrace.topology import Topology

__all__ = ["MemoryJob"]

_FIRST_EPOCH = 1


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
    began
        When the job begins, ms since 1970.
    """

    def __init__(
        self, topology: Topology, partitions: int, queues: Mapping[str, int], began: int
    ) -> None:
        self.topology = tapped(topology)
        self._partitions = partitions
        self.queues = SourceQueues(self.topology, queues)
        #: What was written, by topic.
        self.outputs: dict[str, list[Written]] = defaultdict(list)
        #: Records that came too late, by the operator that found them so.
        self.late: dict[str, list[TestRecord[Any, Any]]] = defaultdict(list)
        #: What tasks counted so far, and records that reached each operator.
        self.counters: dict[str, int] = defaultdict(int)
        self.records: dict[str, int] = defaultdict(int)
        #: Blocks that the tasks of the last batch gave, by kind.
        self.blocks: Counter[BlockKind] = Counter()
        #: Batches of sinks that take whole ones.
        self.batches = CommittedBatches(topology)
        self._copies = MemoryCopies()
        self._began = began
        #: What was published for the next batch to read.
        self._looping: list[Sent] = []
        self._states: dict[tuple[str, int], StateSummary] = {}
        self._instances = Instances()
        #: Tasks of the first stage: one that reads, and those of spouts.
        spouts = [min(spout.parallelism, partitions) for spout in topology.spouts]
        self._splits = max(spouts, default=1)
        #: A batch that fails ends an epoch, as it does in a driver's life.
        self._epoch = _FIRST_EPOCH
        self._record = CommitRecord(
            job=topology.name, kind="commit", epoch=_FIRST_EPOCH, batch=0, clock=began
        )

    def close(self) -> None:
        """Clean up what users' components hold."""
        self._instances.close()

    def state(self, operator: str) -> list[MemoryBase]:
        """Give the partitions of an operator's store."""
        return [self._copies.base(operator, number) for number in range(self._partitions)]

    def run(self, sent: list[Sent], clock: int) -> None:
        """Run one batch, then those that read what goes through topics of the job's own."""
        self._run(sent, clock)
        self._settle(clock)

    def _settle(self, clock: int) -> None:
        while self._looping or owes_announcement(
            self.topology.plan, self._time(clock), self._record
        ):
            looping, self._looping = self._looping, []
            self._run(looping, clock)

    def _run(self, sent: list[Sent], clock: int) -> None:
        """Run one batch; nothing of it is kept when it fails."""
        try:
            self._run_batch(sent, clock)
        except Exception:
            self._epoch += 1
            raise

    def _run_batch(self, sent: list[Sent], clock: int) -> None:
        batch = self._control(sent, clock)
        # The first task reads all queues.
        splits = batch.of_splits([self.queues.names, *[()] * (self._splits - 1)])
        partitions = batch.of_partitions()
        control = batch.common
        writer = MemoryWriter()
        saved = SavedChanges()
        taken: dict[str, list[Chunk]] = defaultdict(list)
        blocks: list[Block] = []
        for stage in self.topology.plan.stages:
            for partition, told in enumerate(partitions if stage.number else splits):
                task = self._task(told, stage.number, partition, writer, saved, taken)
                first = not stage.number and not partition
                if first:
                    self.queues.feed(task, sent, clock)
                task.absorb(
                    block
                    for block in blocks
                    if (block.stage, block.partition) == (stage.number, partition)
                )
                blocks += task.finish(self._splits, {} if first else None)
                task.close()
        self.blocks = Counter(block.kind for block in blocks)
        self._commit(control, writer, saved)
        self.batches.commit(control.batch, writer.staged)
        for operator, chunks in taken.items():
            self.late[operator] += chain.from_iterable(map(records_of, chunks))
        summaries = [
            msgspec.json.decode(block.payload, type=Summary)
            for block in blocks
            if block.kind is BlockKind.SUMMARY
        ]
        self._record = msgspec.structs.replace(
            committed_time(self._record, summaries),
            epoch=self._epoch,
            batch=control.batch,
            states=list(self._states.values()),
            lineage=lineage_with(self._record.lineage, self._epoch, control.batch),
        )
        for summary in summaries:
            self._note(summary)

    def run_due(self, clock: int) -> None:
        """Run the batches that are due without a message until the clock gets there.

        Spouts that still emit are due at once, again and again: they run once.
        """
        due = self._record.due
        if due is None and self.topology.spouts:
            due = self._record.clock
        while due is not None and due <= clock:
            before = self._record.clock
            self.run([], max(due, before))
            due = self._record.due
            if due is not None and due <= max(before, self._record.clock):
                break
        time = self._time(clock)
        if is_due(self.topology.plan, time, self._record, clock):
            self.run([], clock)
        self._settle(clock)

    def _time(self, clock: int, unread: Collection[str] = ()) -> BatchTime:
        origins = origins_of(self.topology.plan, self.queues.names, self._partitions)
        return batch_time(origins, self._record, unread, clock, self._began)

    def _note(self, summary: Summary) -> None:
        for totals, more in ((self.counters, summary.counters), (self.records, summary.records)):
            for name, count in more.items():
                totals[name] += count

    def _control(self, sent: list[Sent], clock: int) -> BatchControl:
        topics = [*self.written_topics, *self.topology.state_topics.values()]
        unread = {self.queues.name(message.topic, message.queue) for message in sent}
        time = self._time(clock, unread)
        readers = dict.fromkeys(self.queues.names, 0)
        common = Control(
            job=self.topology.name,
            life=_FIRST_EPOCH,
            epoch=self._epoch,
            batch=self._record.batch + 1,
            partitions=self._partitions,
            clock=clock,
            clock_before=self._record.clock,
            topics={
                topic: queue_runs(
                    [
                        self.queues.name(topic, number)
                        for number in range(self.queues.counts.get(topic, self._partitions))
                    ]
                )
                for topic in topics
            },
            lineage=self._record.lineage,
            clocks=time.clocks(self.topology.plan, readers),
            progress=self._record.progress,
        )
        return BatchControl(
            common=common,
            states=list(self._states.values()),
            origins=time.origins,
            watermarks=time.watermarks,
            heading=Heading(
                seen=time.seen,
                idle=time.idle,
                announced=announcements(self.topology.plan, time, self._record),
            ),
        )

    def _task(
        self,
        control: Control,
        stage: int,
        partition: int,
        writer: MemoryWriter,
        saved: SavedChanges,
        taken: dict[str, list[Chunk]],
    ) -> Task:
        context = TappedContext(
            control=control,
            partition=partition,
            finder=self.queues,
            copies=self._batch_copies(saved),
            plan=self.topology.plan,
            state_topics=self.topology.state_topics,
            taken=taken,
            attempt=partition,
            instances=self._instances,
        )
        attempt = Attempt(
            job=self.topology.name,
            epoch=self._epoch,
            batch=control.batch,
            stage=stage,
            partition=partition,
            number=partition,
        )
        return Task(context, attempt, writer)

    def _batch_copies(self, saved: SavedChanges) -> StateCopies:
        """Give the state copies as one batch sees them."""
        return BatchCopies(self._copies, saved)

    @property
    def written_topics(self) -> list[str]:
        """Name the topics of sinks and of dead letters."""
        written = [topic for sink in self.topology.sinks for topic in sink.topics]
        return [*written, *self.topology.dead_letter_topics]

    def _commit(self, control: Control, writer: MemoryWriter, saved: SavedChanges) -> None:
        state_topics = set(self.topology.state_topics.values())
        loops = {sink.topic for sink in self.topology.throughs}
        for messages in writer.staged:
            topic = MessageQueue.parse(messages.queue).topic
            if topic not in state_topics:
                written = Written.unpack(messages)
                self.outputs[topic] += [one for one in written if WATERMARK not in one.properties]
            if topic in loops:
                number = control.queues(topic).index(messages.queue)
                self._looping += Sent.unpack(messages, topic, number)
        for (store, partition), changes in saved.changes.items():
            self._copies.base(store, partition).apply(changes)
            before = self._states.get((store, partition))
            self._states[store, partition] = StateSummary(
                store=store,
                partition=partition,
                count=changes.count,
                checksum=changes.checksum,
                size=changes.size,
                epoch=self._epoch,
                batch=control.batch,
                attempt=partition,
                end_offset=(before.end_offset if before else 0) + len(changes.keys),
            )
