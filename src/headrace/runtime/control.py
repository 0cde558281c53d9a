"""What the driver tells the tasks of a batch, and what they tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, groupby

import msgspec

from headrace.protocol.transactions import (
    Position,
    QueueName,
    StagedPart,
    StateSummary,
    split_queue_name,
)
from headrace.runtime.blocks import Block, BlockKind
from headrace.runtime.chunk import NEVER
from headrace.runtime.event_time.watermarks import ClockTime


class QueueRun(msgspec.Struct, frozen=True, array_like=True):
    """Queues of a topic on one broker, with numbers that follow each other."""

    broker: str
    first: int
    count: int


def queue_runs(queues: Sequence[QueueName]) -> tuple[QueueRun, ...]:
    """Return the queues of one topic, in their order, in few words.

    Examples
    --------
    >>> queue_runs(["t@a@0", "t@a@1", "t@b@0"])
    (QueueRun(broker='a', first=0, count=2), QueueRun(broker='b', first=0, count=1))
    """
    places = [place[1:] for queue in queues if (place := split_queue_name(queue)) is not None]
    assert len(places) == len(queues), "queues have names that were made by us"
    steps = count()
    runs = [list(run) for _, run in groupby(places, lambda at: (at[0], at[1] - next(steps)))]
    return tuple(QueueRun(*run[0], len(run)) for run in runs)


@lru_cache(maxsize=256)
def _queue_names(topic: str, runs: tuple[QueueRun, ...]) -> list[QueueName]:
    return [
        f"{topic}@{run.broker}@{number}"
        for run in runs
        for number in range(run.first, run.first + run.count)
    ]


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What the first split of a batch does or hands on for all tasks."""

    #: Since when each origin of event time has been silent, ms since 1970.
    seen: dict[str, int] = {}
    #: Origins that have been silent for too long.
    idle: list[str] = []
    #: Watermarks that it announces, by the operator that writes a topic of the job's own.
    announced: dict[str, int] = {}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of a batch must know; made from the commit that the batch builds on.

    It tells a task of its own place only, so that what a batch tells all of them grows with the
    number of partitions, and not with its square.
    """

    job: str
    #: First epoch of the driver's life; 0: this one.
    life: int = 0
    epoch: int
    batch: int
    partitions: int
    #: Wall clock of the batch, and of the one before, ms since 1970.
    clock: int
    clock_before: int = NEVER
    #: Writable queues of every sink and state topic, in order.
    topics: dict[str, tuple[QueueRun, ...]]
    #: Brokers that hold the source queues.
    brokers: list[str] = []
    lineage: list[list[int]] = []
    #: How far each clock of event time has come, where some operator is timed.
    clocks: dict[str, ClockTime] = {}
    #: How far event time had come for each timed operator.
    progress: dict[str, int] = {}
    #: How far ahead of its store time a record may move watermarks, where its source does not
    #: say, ms; None: any.
    max_future: int | None = None
    #: State stores of the task's partition as of the last commit.
    states: list[StateSummary] = []
    #: Origins of event time that the task moves: every source and queue that it reads, and clocks
    #: of an operator's own.
    origins: list[str] = []
    #: Their watermarks as of the last commit, and those that have been silent for too long.
    watermarks: dict[str, int] = {}
    idle: list[str] = []
    #: For the first split only.
    heading: Heading | None = None

    def queues(self, topic: str) -> list[QueueName]:
        """Return the writable queues of a topic, in order; the list is shared."""
        return _queue_names(topic, self.topics[topic])


class BatchControl(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a batch before it runs; every task is told its own part of it."""

    #: What all tasks are told.
    common: Control
    #: State stores of all partitions.
    states: list[StateSummary] = []
    #: Every origin of event time, and the watermark of each that has one.
    origins: list[str] = []
    watermarks: dict[str, int] = {}
    heading: Heading = Heading()

    def of_splits(self, splits: Sequence[Collection[QueueName]]) -> list[Control]:
        """Tell the tasks of the first stage, by the queues that each reads, about the batch."""
        first, *others = self._told(enumerate(splits))
        return [msgspec.structs.replace(first, heading=self.heading), *others]

    def of_partitions(self) -> list[Control]:
        """Tell the task of each partition, in any later stage, about the batch."""
        return list(self._told((number, [str(number)]) for number in range(self.common.partitions)))

    def _told(self, tasks: Iterable[tuple[int, Collection[str]]]) -> Iterator[Control]:
        """Tell tasks about the batch, by their numbers and the places whose time they move."""
        states: dict[int, list[StateSummary]] = defaultdict(list)
        for state in self.states:
            states[state.partition].append(state)
        origins: dict[str, list[str]] = defaultdict(list)
        for origin in self.origins:
            origins[origin.partition("/")[2]].append(origin)
        idle = set(self.heading.idle)
        for number, places in tasks:
            own = [origin for place in places for origin in origins.get(place, ())]
            yield msgspec.structs.replace(
                self.common,
                states=states.get(number, []),
                origins=own,
                watermarks={name: self.watermarks[name] for name in own if name in self.watermarks},
                idle=[name for name in own if name in idle],
            )


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did, for the driver to commit."""

    part: StagedPart
    states: list[StateSummary] = []
    #: Ends of queues that the next batch reads, where something was sent there at once.
    sent: dict[QueueName, int] = {}
    #: Records that reached each operator of the stage.
    records: dict[str, int] = {}
    #: Records that each operator gave.
    given: dict[str, int] = {}
    counters: dict[str, int] = {}
    #: Tuples that it sent to each port of a bolt over a shuffle, and those that it took there.
    tuples_sent: dict[str, int] = {}
    tuples_taken: dict[str, int] = {}
    #: Blocks that it made for each task of a later stage (see :func:`place_of`), and those that it
    #: took, by the attempt that made them.
    blocks_sent: dict[str, int] = {}
    blocks_taken: dict[int, int] = {}
    #: Where outside systems are read to behind the batch, or what they were handed, by partition.
    positions: dict[str, Position] = {}
    #: Of the first split only: splits of the batch, and where the batch ends, by queue.
    splits: int = 0
    ends: dict[QueueName, int] | None = None
    #: Of the first split only: since when each origin had been silent when the batch began.
    seen: dict[str, int] | None = None
    #: Of the first split only: origins that had been silent for too long when the batch began.
    idle: list[str] = []
    #: Wall clock of the batch, ms since 1970.
    clock: int = 0
    #: When an operator wants a batch by the wall clock, ms since 1970.
    due: int | None = None
    #: Event-time watermarks that the task moved, by origin.
    watermarks: dict[str, int] = {}
    #: How far event time came for each timed operator of the stage.
    progress: dict[str, int] = {}


def place_of(stage: int, partition: int) -> str:
    """Name a task of a batch, whichever attempt of it counts."""
    return f"{stage}:{partition}"


def control_blocks(control: BatchControl, stages: int) -> Iterator[Block]:
    """Tell every partition of every stage but the first about the batch."""
    payloads = [msgspec.json.encode(own) for own in control.of_partitions()]
    for stage in range(1, stages):
        for partition, payload in enumerate(payloads):
            yield Block(partition, stage, BlockKind.CONTROL, "", 0, payload)
