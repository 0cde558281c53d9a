"""What the driver tells the tasks of a batch, and what they tell it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import count, groupby
from typing import Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.transactions import (
    Position,
    QueueName,
    StagedPart,
    StateSummary,
    split_queue_name,
)
from headrace.runtime.chunk import NEVER, Bools, Int64s
from headrace.runtime.event_time.watermarks import ClockTime

# Blocks: how records travel between stages.
#
# A block is a run of rows for one operator and one partition, as one binary value: Spark moves it
# without looking inside, so a shuffle costs per block, not per record.
#
# ===========  =========================================================================
# ``stage``    the stage that takes the block; others pass it on untouched
# ``kind``     :class:`BlockKind`
# ``port``     number of the parent that the rows come from, for operators with several
# ``attempt``  the attempt of a task that made the block, by which the coordinator sees that all parts
#              of a batch were computed from one another
# ``payload``  rows: the sender's partition (8 bytes), then an Arrow stream; control, summary,
#              watermarks, as JSON
# ===========  =========================================================================
#
# Rows carry key (canonical encoding), value, event time, mark, headers, and the two columns of a
# :class:`~headrace.runtime.chunk.Chunk` that tell late and retracted records.  They arrive in any
# order of blocks; a block's rows are in the order of their marks.  Records of one mark come in the
# order of their senders, and what was combined is merged in that order, so that what an operator sees
# hangs neither on which block was quicker nor on where a batch ends.

#: Stage number of blocks that go through to the driver.
SUMMARY_STAGE = 1 << 15

#: Of blocks that are the same whichever attempt hands them on: control, and failures.
ANY_ATTEMPT = -1

#: Big-endian, so that payloads sort by it; as many bytes as Arrow aligns columns to.
_SENDER_BYTES = 8


class BlockKind(IntEnum):
    """What a block holds."""

    #: Records, each encoded by the edge's serdes.
    RECORDS = 0
    #: Partial accumulators, combined before the shuffle.
    PARTIALS = 1
    #: What a partition must know of the batch; every partition gets one in every batch.
    CONTROL = 2
    #: What a task staged and counted.
    SUMMARY = 3
    #: A failure that no retry can mend, for the driver to raise.
    FAILURE = 4
    #: Event-time watermarks of a source queue.
    WATERMARKS = 5
    #: A run of tuples between components: see :mod:`headrace.runtime.bolts.bolts`.
    TUPLES = 6


@dataclass(frozen=True, slots=True)
class Block:
    """One value of the exchange between stages."""

    partition: int
    stage: int
    kind: BlockKind
    #: Operator that takes the rows; empty for blocks that are for the whole task.
    operator: str
    port: int
    payload: bytes
    #: Number of the attempt that made it: no other one of the batch has it.
    attempt: int = ANY_ATTEMPT


_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("time", pa.int64()),
        ("mark", pa.int64()),
        ("headers", pa.binary()),
        ("late_below", pa.int64()),
        ("retracts", pa.bool_()),
    ]
)


@dataclass(slots=True)
class Rows:
    """Encoded records in columns."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    times: Int64s
    marks: Int64s
    headers: list[dict[str, str] | None] | None = None
    late_below: Int64s | None = None
    retracts: Bools | None = None

    def __len__(self) -> int:
        return len(self.marks)

    def take(self, indices: np.ndarray[Any, np.dtype[np.intp]]) -> Rows:
        """Pick rows by index."""
        picks = pa.array(indices)
        return Rows(
            self.keys.take(picks),
            self.values.take(picks),
            self.times[indices],
            self.marks[indices],
            None if self.headers is None else [self.headers[i] for i in indices.tolist()],
            None if self.late_below is None else self.late_below[indices],
            None if self.retracts is None else self.retracts[indices],
        )

    def pack(self, sender: int = 0) -> bytes:
        """Encode the rows, behind the number of the partition that sends them."""
        headers = (
            pa.nulls(len(self), pa.binary())
            if self.headers is None
            else pa.array([h and orjson.dumps(h) for h in self.headers], pa.binary())
        )
        late_below, retracts = (
            pa.nulls(len(self), kind) if column is None else pa.array(column)
            for column, kind in ((self.late_below, pa.int64()), (self.retracts, pa.bool_()))
        )
        times, marks = pa.array(self.times), pa.array(self.marks)
        batch = pa.RecordBatch.from_arrays(
            [self.keys, self.values, times, marks, headers, late_below, retracts], schema=_SCHEMA
        )
        sink = pa.BufferOutputStream()
        sink.write(sender.to_bytes(_SENDER_BYTES, "big"))
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        payload: bytes = sink.getvalue().to_pybytes()
        return payload

    @classmethod
    def unpack(cls, payloads: list[bytes]) -> Rows:
        """Decode blocks; their rows come end to end, in the order of the senders."""
        streams = [pa.py_buffer(payload).slice(_SENDER_BYTES) for payload in sorted(payloads)]
        batches = [batch for stream in streams for batch in pa.ipc.open_stream(stream)]
        table = pa.Table.from_batches(batches, _SCHEMA).combine_chunks()
        keys, values, times, marks, headers, late_below, retracts = (
            column.chunk(0) if column.num_chunks else pa.array([], column.type)
            for column in table.columns
        )
        return cls(
            keys,
            values,
            times.to_numpy(zero_copy_only=False),
            marks.to_numpy(zero_copy_only=False),
            None
            if headers.null_count == len(headers)
            else [h and msgspec.json.decode(h) for h in headers.to_pylist()],
            _filled(late_below, default=NEVER),
            _filled(retracts, default=False),
        )

    def by_mark(self) -> Rows:
        """Bring the rows into the order of their marks."""
        if bool(np.all(self.marks[:-1] <= self.marks[1:])):
            return self
        return self.take(np.argsort(self.marks, kind="stable"))

    def by_key(self) -> tuple[list[bytes], Int64s, Int64s]:
        """Return the different keys in their order, which of them each row has, and the last rows.

        The last row of a key is the one with the highest mark; of several, the one that stands
        last.
        """
        encoded = self.keys.dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary)
        ranks = np.empty(len(order), np.intp)
        ranks[order.to_numpy()] = np.arange(len(order))
        groups = ranks[encoded.indices.to_numpy()]
        highest = np.full(len(order), np.iinfo(np.int64).min)
        np.maximum.at(highest, groups, self.marks)
        rows = np.flatnonzero(self.marks == highest[groups])
        last = np.zeros(len(order), np.intp)
        np.maximum.at(last, groups[rows], rows)
        return encoded.dictionary.take(order).to_pylist(), groups, last

    @classmethod
    def join(cls, parts: Iterable[Rows]) -> Rows:
        """Join runs of rows end to end."""
        full = [part for part in parts if len(part)]
        if len(full) == 1:
            return full[0]
        return cls.unpack([part.pack(place) for place, part in enumerate(full)])

    def split(self, partitions: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, Rows]]:
        """Group rows by partition, keeping their order within each."""
        if len(self) == 0:
            return []
        order = np.argsort(partitions, kind="stable")
        sorted_partitions = partitions[order]
        edges = np.flatnonzero(np.diff(sorted_partitions)) + 1
        starts = np.concatenate(([0], edges, [len(order)]))
        ordered = self if len(starts) == 2 else self.take(order)
        return [
            (int(sorted_partitions[a]), ordered.slice(int(a), int(b)))
            for a, b in itertools.pairwise(starts)
        ]

    def slice(self, start: int, stop: int) -> Rows:
        """Return a run of rows."""
        return Rows(
            self.keys.slice(start, stop - start),
            self.values.slice(start, stop - start),
            self.times[start:stop],
            self.marks[start:stop],
            None if self.headers is None else self.headers[start:stop],
            None if self.late_below is None else self.late_below[start:stop],
            None if self.retracts is None else self.retracts[start:stop],
        )


def _filled(column: pa.Array, *, default: int) -> np.ndarray[Any, Any] | None:
    if column.null_count == len(column):
        return None
    filled: np.ndarray[Any, Any] = column.fill_null(default).to_numpy(zero_copy_only=False)
    return filled


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
        """Return what the tasks of the first stage are told, by the queues that each reads."""
        first, *others = self._told(enumerate(splits))
        return [msgspec.structs.replace(first, heading=self.heading), *others]

    def of_partitions(self) -> list[Control]:
        """Return what the task of each partition is told, in any later stage."""
        return list(self._told((number, [str(number)]) for number in range(self.common.partitions)))

    def _told(self, tasks: Iterable[tuple[int, Collection[str]]]) -> Iterator[Control]:
        """Yield what tasks are told, by their numbers and the places whose time they move."""
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
    """Return the name of a task of a batch, whichever attempt of it counts."""
    return f"{stage}:{partition}"


def control_blocks(control: BatchControl, stages: int) -> Iterator[Block]:
    """Yield what tells every partition of every stage but the first about the batch."""
    payloads = [msgspec.json.encode(own) for own in control.of_partitions()]
    for stage in range(1, stages):
        for partition, payload in enumerate(payloads):
            yield Block(partition, stage, BlockKind.CONTROL, "", 0, payload)
