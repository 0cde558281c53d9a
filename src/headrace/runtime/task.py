"""Tasks: one stage for one partition of one batch, from blocks to blocks.

An executor (Spark, or the test driver) brings the blocks and takes the results; everything that
a task does to the outside goes through :class:`~headrace.runtime.commit.transactions.BatchTransactions` and the
state copies.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError, RollbackError
from headrace.failpoints import failpoint
from headrace.protocol.transactions import Position, QueueName, StateSummary
from headrace.runtime.bolts.instances import Instances
from headrace.runtime.chunk import NEVER, Chunk
from headrace.runtime.control import (
    SUMMARY_STAGE,
    Block,
    BlockKind,
    Control,
    Heading,
    Summary,
    place_of,
)
from headrace.runtime.event_time.silence import milliseconds, operator_watermark
from headrace.runtime.event_time.watermarks import (
    OperatorWatermark,
    QueueWatermark,
    SourceWatermarks,
    TaskWatermark,
    pack_watermarks,
    task_watermarks,
    unpack_watermarks,
)
from headrace.runtime.sinks import state_messages
from headrace.runtime.stage import StageRunner, watermark_messages
from headrace.runtime.standing import RESTORE_TIME, RESTORED
from headrace.runtime.state.store import CopiedStore, StateCopies
from headrace.runtime.user_code import Finder, Original, RecordErrors, describe_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from headrace.runtime.commit.transactions import Attempt, QueueMessages, StageWriter
    from headrace.runtime.state.interface import StateStore
    from headrace.topology import StagePlan
    from headrace.topology.operators.core import Operator


@dataclass(slots=True)
class RuntimeContext:
    """What operators and sinks of one task see of it."""

    control: Control
    partition: int
    #: Finds the messages that records come from.
    finder: Finder
    copies: StateCopies
    plan: StagePlan
    #: Topic of each state store.
    state_topics: Mapping[str, str]
    #: Number of the attempt.
    attempt: int = 0
    #: Users' components that this process keeps from batch to batch.
    instances: Instances = field(default_factory=Instances)
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: Queues that the task reads; numbers in chunks of the first stage count them.
    source_queues: Sequence[QueueName] = ()
    #: How the clocks moved, and how far each origin is, for the commit.
    watermarks: list[QueueWatermark] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    #: Where outside systems have been read to, or what they were handed.
    positions: dict[str, Position] = field(default_factory=dict)
    #: Makes a store of a user's own kind, by operator and partition.
    own_store: Callable[[str, int], StateStore] | None = None
    _stores: dict[str, StateStore] = field(default_factory=dict)
    #: Tells where records come from, and takes those that fail.
    locator: RecordErrors = field(init=False)

    def __post_init__(self) -> None:
        control = self.control
        self.locator = RecordErrors(
            control.job, self.finder, self.queues, self.counters, control.clock
        )

    @property
    def partitions(self) -> int:
        """Partitions of the job."""
        return self.control.partitions

    @property
    def epoch_and_batch(self) -> tuple[int, int]:
        """Numbers of the driver and of the batch."""
        return self.control.epoch, self.control.batch

    def queues(self, topic: str) -> list[QueueName]:
        """Return the writable queues of a topic, in order."""
        return self.control.queues(topic)

    def retracts(self, operator: Operator) -> bool:
        """Return whether an operator must send the old value before each new one."""
        return self.plan.retracts(operator)

    def store(self, operator: Operator) -> StateStore:
        """Open an operator's store, once per task."""
        name = operator.name
        if name not in self._stores:
            store = self._made(name)
            self._stores[name] = store
            began = time.monotonic()
            store.recover(self._summary(name), self.control.lineage)
            store.wait_until_ready()
            if store.restored:
                self.counters[f"{RESTORED}:{name}"] += store.restored
                self.counters[f"{RESTORE_TIME}:{name}"] += round(1e6 * (time.monotonic() - began))
        return self._stores[name]

    def _made(self, name: str) -> StateStore:
        if self.own_store is not None:
            return self.own_store(name, self.partition)
        return CopiedStore(self.copies, name, self.partition)

    def settled(self, operator: Operator) -> int:
        """Return up to which event time an operator had done all there was to do, ms."""
        return NEVER if self._begins_epoch else self.control.progress.get(operator.name, NEVER)

    def settled_clock(self) -> tuple[int, int]:
        """Return the same for the wall clock, and how far it had come in the batch before."""
        before = self.control.clock_before
        return NEVER if self._begins_epoch else before, before

    @property
    def _begins_epoch(self) -> bool:
        lineage = self.control.lineage
        return bool(lineage) and lineage[-1][0] != self.control.epoch

    def operator_watermark(self, operator: Operator) -> OperatorWatermark:
        """Return an operator's watermark as of the last commit."""
        return operator_watermark(self.plan, operator, self.control.clocks, self.control.progress)

    @property
    def wall_clock(self) -> int:
        """Wall clock of the batch, ms since 1970."""
        return self.control.clock

    @property
    def max_future(self) -> int | None:
        """How far ahead a record may move watermarks where its operator does not say, ms."""
        return self.control.max_future

    def event_clock(self, operator: Operator, lateness: timedelta) -> SourceWatermarks | None:
        """Make the clock of an operator that sets its records' times; None if nobody asks."""
        if not self.plan.timed:
            return None
        control = self.control
        return SourceWatermarks(
            operator.name,
            milliseconds(lateness),
            control.watermarks,
            self.plan.time_step,
            control.idle,
        )

    def tell_time(self, found: list[QueueWatermark], current: Mapping[str, int]) -> None:
        """Note how a clock moved, for every later stage, and how far it is, for the commit."""
        self.watermarks += found
        self.moved.update(current)

    def task_watermarks(self) -> list[TaskWatermark]:
        """Return what later stages hear of the clocks: the lowest watermarks of this task."""
        control = self.control
        return task_watermarks(
            self.watermarks,
            control.origins,
            control.watermarks,
            control.idle,
            self.plan.time_step,
        )

    def _summary(self, store: str) -> StateSummary | None:
        for state in self.control.states:
            if state.store == store:
                return state
        return None

    def save_state(self, attempt: Attempt, writer: StageWriter) -> list[StateSummary]:
        """Stage the changes of every store and leave them for the next open of its copy."""
        summaries = []
        for name, store in self._stores.items():
            changes = store.persist((attempt.epoch, attempt.batch, attempt.number))
            failpoint("task.persisted")
            if not changes.keys:
                continue
            base = self._summary(name)
            base_offset = 0 if base is None else base.end_offset
            queue = self.queues(self.state_topics[name])[self.partition]
            sent_to = writer.stage(state_messages(queue, changes, self.control.clock))
            summaries.append(
                StateSummary(
                    store=name,
                    partition=self.partition,
                    count=changes.count,
                    checksum=changes.checksum,
                    size=changes.size,
                    epoch=attempt.epoch,
                    batch=attempt.batch,
                    attempt=attempt.number,
                    end_offset=sent_to or base_offset + len(changes.keys),
                )
            )
        return summaries

    def close(self) -> None:
        """Close the copies, so that other processes can open them."""
        for store in self._stores.values():
            store.close()


class Task:
    """Runs one stage for one partition.

    Parameters
    ----------
    context
        Topology, control, state and places.
    attempt
        The name under which everything is staged.
    writer
        Takes what is staged.
    """

    def __init__(self, context: RuntimeContext, attempt: Attempt, writer: StageWriter) -> None:
        self._context = context
        self._attempt = attempt
        self._writer = writer
        self._runner = StageRunner(context.plan, attempt.stage, context, self._emit)
        self._stages = len(context.plan.stages)
        self.counters = context.counters
        self._loops = {
            queue for sink in context.plan.throughs for queue in context.queues(sink.topic)
        }
        self._sent: dict[QueueName, int] = {}
        self._blocks_sent: Counter[str] = Counter()
        self._blocks_taken: Counter[int] = Counter()

    def _emit(self, messages: QueueMessages) -> None:
        self.counters["records_out"] += len(messages)
        self._publish(messages)

    def _publish(self, messages: QueueMessages) -> None:
        end = self._writer.stage(messages)
        if end is not None and messages.queue in self._loops:
            self._sent[messages.queue] = max(end, self._sent.get(messages.queue, 0))

    def feed(self, inputs: Mapping[str, Chunk]) -> None:
        """Run records that sources read through the stage."""
        self._runner.feed(inputs)

    @property
    def context(self) -> RuntimeContext:
        """What the operators of the task see of it."""
        return self._context

    @property
    def wall_clock(self) -> int:
        """Wall clock of the batch, ms since 1970."""
        return self._context.wall_clock

    def queues(self, topic: str) -> list[QueueName]:
        """Return the writable queues of a topic, in order."""
        return self._context.queues(topic)

    def divert_message(self, operator: Operator, original: Original, error: Exception) -> None:
        """Follow an operator's policy with a message of which no record could be made."""
        self._context.locator.divert_message(operator, original, error)

    def absorb(self, blocks: Iterable[Block]) -> None:
        """Take what earlier stages sent, operator by operator."""
        rows: dict[tuple[str, int, BlockKind], list[bytes]] = defaultdict(list)
        watermarks: list[bytes] = []
        for block in blocks:
            self._blocks_taken[block.attempt] += 1
            if block.kind is BlockKind.WATERMARKS:
                watermarks.append(block.payload)
            else:
                rows[block.operator, block.port, block.kind].append(block.payload)
        self._runner.absorb(rows, unpack_watermarks(watermarks))

    def finish(
        self, splits: int = 0, ends: Mapping[QueueName, int] | None = None
    ) -> Iterator[Block]:
        """End the batch, and return blocks for later stages and the summary for the driver."""
        yield from self._counted(self._runner.finish(self._context.partitions))
        if ends is not None:
            self._runner.reached(ends)
        yield from self._counted(self._watermark_blocks())
        heading = Heading()
        if ends is not None:
            heading = self._context.control.heading or heading
        announced = self._announce(heading.announced)
        for messages in self._context.locator.dead_letters():
            self._writer.stage(messages)
        failpoint("task.processed")
        states = self._context.save_state(self._attempt, self._writer)
        part = self._writer.finish()
        failpoint("task.staged")
        summary = Summary(
            part=part,
            states=states,
            sent=self._sent,
            records=dict(self._runner.records),
            given=dict(self._runner.given),
            counters=dict(self.counters),
            tuples_sent=dict(self._runner.tuples_sent),
            tuples_taken=dict(self._runner.tuples_taken),
            blocks_sent=dict(self._blocks_sent),
            blocks_taken=dict(self._blocks_taken),
            splits=splits,
            ends=None if ends is None else dict(ends),
            seen=None if ends is None else heading.seen,
            idle=heading.idle,
            clock=self._context.wall_clock,
            due=self._runner.due,
            watermarks=self._context.moved,
            positions=self._context.positions,
            progress={**self._runner.progress, **announced},
        )
        yield Block(
            self._context.partition % self._context.partitions,
            SUMMARY_STAGE,
            BlockKind.SUMMARY,
            "",
            0,
            msgspec.json.encode(summary),
            self._attempt.number,
        )

    def _counted(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self._blocks_sent[place_of(block.stage, block.partition)] += 1
            yield block

    def _announce(self, announced: dict[str, int]) -> dict[str, int]:
        """Announce how far event time has come behind the job's own topics; one task does so."""
        context = self._context
        for messages in watermark_messages(context.control, context.plan.throughs, announced):
            self._publish(messages)
        return announced

    def _watermark_blocks(self) -> Iterator[Block]:
        context, number = self._context, self._attempt.number
        if not context.watermarks or not (steps := context.task_watermarks()):
            return
        payload = pack_watermarks(steps)
        for stage in range(self._attempt.stage + 1, self._stages):
            for partition in range(context.partitions):
                yield Block(partition, stage, BlockKind.WATERMARKS, "", 0, payload, number)

    def close(self) -> None:
        """Release the state copies, also after a failure."""
        self._context.close()


def guarded(partition: int, run: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    """Run a task; a failure that no other attempt can mend becomes a block for the driver.

    Spark would run the task again and wrap the error in its own; the driver raises it as it was.
    A roll-back is the driver's too: the whole batch starts again, not the one task.
    """
    try:
        yield from list(run())
    except HeadraceError as error:
        if error.retriable and not isinstance(error, RollbackError):
            raise
        yield Block(partition, SUMMARY_STAGE, BlockKind.FAILURE, "", 0, describe_failure(error))
