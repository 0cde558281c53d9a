"""A job in memory: its tasks, batch by batch, and what is left of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace.client import MessageQueue
from headrace.errors import StateError
from headrace.protocol.columns import MessageColumns
from headrace.protocol.transactions import CommitRecord, StagedPart, StateSummary
from headrace.runtime.batches.reading import BatchMessages, batch_records
from headrace.runtime.bolts.instances import Instances
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.commit.transactions import Attempt, QueueMessages
from headrace.runtime.control import (
    BatchControl,
    Block,
    BlockKind,
    Control,
    Heading,
    Summary,
    queue_runs,
)
from headrace.runtime.event_time.silence import (
    BatchTime,
    announcements,
    batch_time,
    committed_time,
    is_due,
    origins_of,
    owes_announcement,
)
from headrace.runtime.processors import Processor
from headrace.runtime.sources.messages import original_at
from headrace.runtime.sources.task import Run, SourceFeed
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.store import MemoryBase, StateCopies, StoreCopy
from headrace.runtime.task import RuntimeContext, Task
from headrace.runtime.testing.topics import Sent, TestRecord, Written, records_of
from headrace.topology.low_level import BatchRecords, BatchToken
from headrace.topology.operators.batches import BatchSink, ForEachBatch
from headrace.topology.operators.core import WATERMARK, Operator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace.runtime.state.interface import ChangeSet
    from headrace.runtime.user_code import Original
    from headrace.topology import Topology


# Committed batches in the test driver.

Batch = tuple[BatchToken, BatchRecords[Any, Any]]


class ReceivedBatches:
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
        """Hand over a batch that was committed."""
        by_topic: dict[str, list[QueueMessages]] = defaultdict(list)
        for messages in staged:
            by_topic[messages.queue.split("@")[0]].append(messages)
        for sink in self._sinks:
            if sink.topic in by_topic:
                self._hand_over(sink, BatchToken(self._job, batch), by_topic[sink.topic])

    def of(self, operator: str) -> list[Batch]:
        """Return the batches of one sink.

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


# What stands in for broker and disk: staged output and state, in memory.


class MemoryWriter:
    """Keeps what the tasks of a batch stage."""

    def __init__(self) -> None:
        self.staged: list[QueueMessages] = []

    def stage(self, messages: QueueMessages) -> int | None:
        """Keep messages of one queue."""
        self.staged.append(messages)
        return None

    def finish(self) -> StagedPart:
        """End a task."""
        return StagedPart(stage=0, partition=0, attempt=0, chunks=0, records=0)


class MemoryCopies:
    """Every partition of every state store, as of the last batch."""

    def __init__(self) -> None:
        self._bases: dict[tuple[str, int], MemoryBase] = {}

    def base(self, store: str, partition: int) -> MemoryBase:
        """Return one partition of a store."""
        return self._bases.setdefault((store, partition), MemoryBase())


@dataclass(slots=True)
class SavedChanges:
    """What the running batch changed, by store and partition."""

    changes: dict[tuple[str, int], ChangeSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchCopies:
    """The state copies as one batch sees them."""

    copies: MemoryCopies
    saved: SavedChanges

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> StoreCopy:
        """Open a store of one partition."""
        del summary, lineage
        return StoreCopy(self.copies.base(store, partition))

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Keep the changes until the batch is done."""
        del attempt, base
        self.saved.changes[store, partition] = changes


# What tests send, on its way into the first stage.


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
        """Return whether some source reads a topic; one that a pattern matches joins now."""
        if topic not in self.counts and any(source.reads(topic) for source in self._sources):
            self.counts[topic] = self._given.get(topic, 1)
        return topic in self.counts

    def name(self, topic: str, number: int) -> str:
        """Return the name of a queue."""
        return f"{topic}@test@{number}"

    @property
    def names(self) -> list[str]:
        """Names of all queues."""
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
        """Return the message that was sent with a mark, or None if there is none."""
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


# Taps: what operators send to their late outputs, kept for a test to read.

#: The output that takes late records.
LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tap(Operator):
    """Keeps the records of one output of its parent for the test driver."""

    label: ClassVar[str] = "tap"


@dataclass(slots=True)
class TappedContext(RuntimeContext):
    """A task that also keeps what taps take."""

    #: Chunks by the name of the operator that gave them.
    taken: dict[str, list[Chunk]] = field(default_factory=lambda: defaultdict(list))


class _TapProcessor(Processor[_Tap]):
    def process(self, chunk: Chunk) -> Chunk:
        """Keep the records."""
        assert isinstance(self.context, TappedContext)
        self.context.taken[self.operator.parents[0]].append(chunk)
        return Chunk.empty()


PROCESSORS[_Tap] = _TapProcessor


def tapped(topology: Topology) -> Topology:
    """Add a tap to the late output of every operator that goes by event time."""
    taps = tuple(
        _Tap(name=f"tap-{operator.name}", parents=(operator.name,), output=LATE)
        for operator in topology.stateful
        if operator.timed
    )
    return replace(topology, operators=(*topology.operators, *taps)) if taps else topology


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
        self.batches = ReceivedBatches(topology)
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
        """Return the partitions of an operator's store."""
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
        timed = committed_time(self._record, summaries)
        self._record = timed.committed(self._epoch, 0, states=list(self._states.values()))
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
        """Return the state copies as one batch sees them."""
        return BatchCopies(self._copies, saved)

    @property
    def written_topics(self) -> list[str]:
        """Return the topics of sinks and of dead letters."""
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
