"""Jobs whose driver plans the batches: each batch is one row of a stream in Spark's memory.

A data source has a planner process of its own beside the driver, of some 60 MB.  A worker of
Connect runs a hundred small queries, so there the driver plans, in the thread that looks after the
query, and a *tick* carries what the planner would have returned.  The tasks, the commit and
everything after it are the same; see decision 0014.
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.protocol.transactions import CommitRecord
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.task import guarded
from headrace.spark.source import (
    ROW_SCHEMA,
    JobReader,
    QueryStart,
    SplitPartition,
    later_stages,
    rows_of,
    run_split,
    stop_query,
)
from headrace.spark.worker import end_of_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.runtime.planning import Split
    from headrace.spark.statistics import PlanHandle


# Turns of the batches of many jobs, so that few run at once and none holds up the others.
#
# A turn goes to the job that has used the least time, not to the one that asked first.  Jobs are of
# three kinds, by their batches so far, and each kind has turns of its own.  So a job that keeps up
# with its input does not wait for one with a backlog, and neither waits for a job that has yet to
# show that its batches end at all.

#: How often a waiting batch looks whether it must still wait, s.
_TURNS_LOOK_SECONDS = 0.2
#: Batches that take less than this are quick, s; those of a job that keeps up may take longer.
_QUICK_SECONDS, _LIVE_SECONDS = 0.25, 1.0
#: A quick job keeps a turn for this multiple of its batches' duration, and at least this long, s.
_KEPT_TIMES, _KEPT_SECONDS = 4, 0.1
#: A job on trial keeps a turn this long, s.
_TRIAL_SECONDS = 1.0
#: After a batch that takes longer than this, the next one has fewer records, s.
_LONG_SECONDS = 1.0
#: The limit of records for the first batch of a run, and the lowest limit for any batch.
_FIRST_RECORDS, _FEWEST_RECORDS = 10_000, 1_000
#: The weight of the last batch in the average duration.
_WEIGHT = 0.25


class JobBatches(Enum):
    """The kinds of jobs, by the duration of their batches."""

    QUICK = "quick"
    SLOW = "slow"
    #: No batch has ended yet.
    ON_TRIAL = "on trial"


class Turns:
    """Limits how many batches of each kind run at once, apart from those that take long.

    Spark has more slots than there are turns: a batch with code that hangs keeps its slot, but its
    turn goes to another one.

    Parameters
    ----------
    most
        How many batches of a kind have a turn at the same time.
    clock
        Returns the time, in seconds.

    Examples
    --------
    >>> turns = Turns(1)
    >>> with turns.taker(60).turn():
    ...     with turns.taker(60).turn(unless=lambda: True) as mine:
    ...         mine
    False
    """

    def __init__(self, most: int, *, clock: Callable[[], float] | None = None) -> None:
        self._most = most
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        #: Batches that wait, in the order in which they asked.
        self._waiting: list[_Turn] = []
        #: Batches that have a turn.
        self._running: list[_Turn] = []
        #: For each kind, the time used by the last job that got a turn, s: nobody can save up more.
        self._used = dict.fromkeys(JobBatches, 0.0)

    def taker(self, lasting: float) -> TurnTaker:
        """Return the object with which a job takes its turns.

        Parameters
        ----------
        lasting
            After this many seconds another job may have the turn, although the batch goes on; the
            turn of a quick job, or of one on trial, ends earlier.
        """
        return TurnTaker(self, lasting)

    @contextmanager
    def have(self, taker: TurnTaker, unless: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn and keep it for the block; yield whether there was one."""
        with self._lock:
            mine = _Turn(taker, taker.kind)
            taker.join(mine.kind, self._used[mine.kind])
            self._waiting.append(mine)
            self._hand_out()
        begin = None
        try:
            while not (got := mine.come.wait(_TURNS_LOOK_SECONDS)) and not unless():
                with self._lock:
                    self._hand_out()
            begin = self._clock()
            yield got
        finally:
            with self._lock:
                if begin is not None:
                    taker.note(self._clock() - begin)
                for those in (self._waiting, self._running):
                    if mine in those:
                        those.remove(mine)
                self._hand_out()

    def _hand_out(self) -> None:
        """Hand turns to batches that wait, also those that others have had for too long."""
        now = self._clock()
        for kind in {turn.kind for turn in self._waiting}:
            waiting = [turn for turn in self._waiting if turn.kind is kind]
            kept = [turn for turn in self._running if turn.kind is kind and turn.until > now]
            self._running = [turn for turn in self._running if turn.kind is not kind] + kept
            waiting.sort(key=lambda turn: turn.taker.used)
            for turn in waiting[: max(0, self._most - len(kept))]:
                self._used[kind] = max(self._used[kind], turn.taker.used)
                turn.until = now + turn.taker.kept_seconds
                self._waiting.remove(turn)
                self._running.append(turn)
                turn.come.set()


@dataclass(slots=True)
class BatchPace:
    """The number of records that a batch may have, so that others do not wait long for it.

    Examples
    --------
    >>> pace = BatchPace()
    >>> pace.note(pace.most, seconds=0.2)
    >>> pace.most
    40000
    >>> pace.note(40_000, seconds=4.0)
    >>> pace.most
    10000
    """

    most: int = _FIRST_RECORDS

    def note(self, records: int, seconds: float) -> None:
        """Record how many records a batch had, and how long it took."""
        if seconds > _LONG_SECONDS:
            self.most = max(_FEWEST_RECORDS, min(self.most, int(records * _LONG_SECONDS / seconds)))
        elif records >= self.most and seconds < _LONG_SECONDS / 2:
            self.most *= 2 if seconds > _LONG_SECONDS / 4 else 4


@dataclass(slots=True, eq=False)
class TurnTaker:
    """One job, and the turns that it has had."""

    turns: Turns
    lasting: float
    #: The time that its batches have taken, s, plus what the others had used when it joined.
    used: float = 0.0
    #: The average duration of its batches, s; None if none has ended.
    usual: float | None = None
    #: The duration of the last batch, s.
    last: float = 0.0
    #: Whether the last batch took all that there was, and that was not much.
    live: bool = False
    #: The number of records that the next batch may have, if the driver chooses it.
    pace: BatchPace = field(default_factory=BatchPace)
    #: The kind that the job had when it last asked.
    joined: JobBatches | None = None

    @property
    def kind(self) -> JobBatches:
        """The kind of the job, by the duration of its batches."""
        if self.usual is None:
            return JobBatches.ON_TRIAL
        quick = self.usual < (_LIVE_SECONDS if self.live else _QUICK_SECONDS)
        return JobBatches.QUICK if quick else JobBatches.SLOW

    @property
    def kept_seconds(self) -> float:
        """How long the job keeps a turn for which others wait, s."""
        if self.usual is None:
            return min(self.lasting, _TRIAL_SECONDS)
        if self.kind is JobBatches.SLOW:
            return self.lasting
        return min(self.lasting, max(_KEPT_SECONDS, _KEPT_TIMES * self.usual))

    def turn(self, *, unless: Callable[[], bool] = lambda: False) -> AbstractContextManager[bool]:
        """Wait for a turn and keep it for the block; yield whether there was one.

        Parameters
        ----------
        unless
            Returns whether to stop waiting, so that the block runs without a turn.
        """
        return self.turns.have(self, unless)

    def committed(self, records: int) -> None:
        """Record how many records the last batch had."""
        self.live = records < min(self.pace.most, _FIRST_RECORDS)
        self.pace.note(records, self.last)

    def join(self, kind: JobBatches, used: float) -> None:
        """Join a kind, whose last job with a turn had used this much time, s."""
        self.used = max(self.used, used) if kind is self.joined else used
        self.joined = kind

    def note(self, seconds: float) -> None:
        """Record how long a batch took."""
        self.used += seconds
        self.last = seconds
        if self.usual is None:
            self.usual = seconds
        else:
            self.usual += _WEIGHT * (seconds - self.usual)


@dataclass(slots=True, eq=False)
class _Turn:
    """The turn of one batch, while it waits and while it runs."""

    taker: TurnTaker
    kind: JobBatches
    #: Nobody else gets the turn before this time.
    until: float = 0.0
    come: threading.Event = field(default_factory=threading.Event)


#: The longest wait for news, s, so that a stop is noticed soon.
_PATIENCE = 0.5
#: How often to check that a query still runs, s; each check costs a call into Java.
_LOOK_SECONDS = 1.0
#: How often a held job looks whether it is still held, s.
_HELD_SECONDS = 0.1


class Batch(Protocol):
    """A batch whose tasks run when it is read, such as a data frame."""

    def toArrow(self) -> pa.Table:
        """Run the tasks and return their reports."""


class Impulse(Protocol):
    """Finds out when there is something for the next batch."""

    @property
    def waiting(self) -> int:
        """How many records there were at the last look."""

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait for news; return the topics that they are for, or None if there is no news."""


class Opening(Protocol):
    """Decides where to begin in queues that appear while the job runs."""

    def learn(self, queues: Collection[str], offsets: Mapping[str, int]) -> bool:
        """Note all queues and how far each was read; return whether some are new."""

    def begins(self) -> Mapping[str, int]:
        """Return the offsets of new queues that do not begin at their first message."""


@dataclass(frozen=True, slots=True)
class TickedBatch:
    """A planned batch, for the work that runs in place of the first stage."""

    handle: PlanHandle
    #: The control of all tasks, as JSON.
    control: bytes
    splits: Sequence[Split]


class BatchWork(Protocol):
    """Runs batches with Spark's own data frames, in place of the first and only stage."""

    def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
        """Run a batch and return the reports of its tasks, as rows of blocks.

        Caller: the thread of the query.  A batch that was not committed may come again, with the
        same beginning but other splits.
        """


@dataclass(frozen=True, slots=True)
class Ticks:
    """What begins and runs a driver's batches, besides messages in the job's topics."""

    #: What begins a batch; None: messages in the job's topics do.
    impulse: Impulse | None = None
    #: Where to begin in new queues; None: at their first message.
    opening: Opening | None = None
    #: Called with the open record of each epoch before its first batch is planned, when nobody
    #: else can commit any more.
    opened: Callable[[CommitRecord], None] = lambda _: None
    #: Returns the partitions that other commit records still have.  The commit must mark these as
    #: gone if they are; it leaves out all others that are gone.
    elsewhere: Callable[[], Collection[str]] | None = None
    #: No batch begins while it is set.
    hold: threading.Event = field(default_factory=threading.Event)
    #: Set while the job is held and no batch is under way.
    rests: threading.Event = field(default_factory=threading.Event)
    #: Returns the writable queues of topics that the job is about to write; makes missing topics.
    provide: Callable[[Sequence[str]], Mapping[str, list[str]]] = lambda _: {}
    #: What runs the batches; None: the first stage does.
    work: BatchWork | None = None
    #: Limits how many batches run at once among jobs that share turns; a job alone never waits.
    turns: TurnTaker = field(default_factory=lambda: Turns(1).taker(30.0))


def run_ticking(
    session: SparkSession,
    launch: QueryStart,
    *,
    ticks: Ticks,
    stages: int,
    checkpoint: str,
    on_batch: Callable[[Batch, int], None],
    wait: Callable[[float], bool],
    committed: Callable[[int, float], bool],
) -> None:
    """Run a job's query until it fails, or until ``wait`` raises or returns True.

    ``wait`` takes the longest time to wait, in seconds, and returns whether the query must end;
    ``committed`` takes a batch and the time to wait for its commit, and returns whether it came.
    """
    ticks.opened(msgspec.json.decode(launch.record, type=CommitRecord))
    stream = TickStream(session)
    frame = later_stages(
        stream.frame.mapInArrow(_first_stage(launch.handle), ROW_SCHEMA),
        launch.handle,
        stages,
        launch.splits,
    )
    planner = _Planner(JobReader(launch, idle_wait=round(_PATIENCE * 1000)), ticks)
    gate = _Gate()

    def run(rows: DataFrame, number: int) -> None:
        with gate.batch():
            batch = _batch(rows, launch.handle, planner.parts, ticks.work)
            on_batch(_InTurn(batch, ticks, gate.over), number)

    writer = frame.writeStream.foreachBatch(run).option("checkpointLocation", checkpoint)
    watch = _Watch(wait)
    try:
        while not watch.ends():
            batch = planner.plan()
            if batch is None:
                continue
            for part in planner.split():
                stream.send(pickle.dumps((part.split, part.control, part.batch, part.failure)))
            gate.let_pass()
            if watch.query is None:
                watch.query = writer.start()
            while not committed(batch, _PATIENCE):
                if watch.ends():
                    return
            planner.go_on()
    finally:
        gate.open()
        if watch.query is not None:
            stop_query(watch.query)


def _split_partition(part: InputPartition) -> SplitPartition:
    assert isinstance(part, SplitPartition)
    return part


def _batch(
    rows: DataFrame, handle: PlanHandle, parts: Sequence[SplitPartition], work: BatchWork | None
) -> Batch:
    if work is None or any(part.failure is not None for part in parts):
        return rows
    splits = [part.split for part in parts if part.split is not None]
    return _Worked(work, rows.sparkSession, TickedBatch(handle, parts[0].control, splits))


@dataclass(frozen=True, slots=True)
class _Worked:
    """A batch that its work runs when it is read."""

    work: BatchWork
    session: SparkSession
    batch: TickedBatch

    def toArrow(self) -> pa.Table:
        return self.work.run(self.session, self.batch)


@dataclass(frozen=True, slots=True)
class _InTurn:
    """A batch whose tasks run when they get a turn, or when their query is over anyway."""

    batch: Batch
    ticks: Ticks
    over: threading.Event

    def toArrow(self) -> pa.Table:
        with self.ticks.turns.turn(unless=self.over.is_set):
            return self.batch.toArrow()


class _Planner:
    """Plans the next batch, and keeps where it begins."""

    def __init__(self, reader: JobReader, ticks: Ticks) -> None:
        self._reader = reader
        self._ticks = ticks
        self._at = self._begun(reader.initialOffset())
        self._end = self._at
        #: The parts of the last planned batch.
        self.parts: Sequence[SplitPartition] = ()

    def plan(self) -> int | None:
        """Wait for something to do; return the number of the next batch, or None."""
        end = self._planned()
        opening = self._ticks.opening
        if opening is not None and opening.learn(self._reader.known, self._at["queues"]):
            # The plan read new queues whose beginnings had not been decided.
            self._at = self._begun(self._at)
            return None
        if end == self._at:
            return None
        self._end = end
        return cast("int", end["batch"])

    def split(self) -> Sequence[SplitPartition]:
        """Return the parts of the planned batch."""
        self.parts = list(map(_split_partition, self._reader.partitions(self._at, self._end)))
        return self.parts

    def go_on(self) -> None:
        """Go on after the planned batch, which is committed."""
        self._ticks.turns.committed(self._records())
        self._at = self._end

    def _records(self) -> int:
        """Return how many records the planned batch had, without those of new queues."""
        impulse, before, after = self._ticks.impulse, self._at["queues"], self._end["queues"]
        if impulse is not None:
            return impulse.waiting
        return sum(to - before[queue] for queue, to in after.items() if queue in before)

    def _planned(self) -> dict[str, Any]:
        ticks, reader = self._ticks, self._reader
        if ticks.hold.is_set():
            ticks.rests.set()
            time.sleep(_HELD_SECONDS)
            return self._at
        ticks.rests.clear()
        if ticks.impulse is None:
            # Spark's own data frames write at least a file a batch, and many small files are slow.
            return reader.plan(self._at, most=None if ticks.work else ticks.turns.pace.most)
        topics = ticks.impulse.wait(_PATIENCE)
        if topics is None:
            return self._at
        unknown = [topic for topic in topics if topic not in reader.queues]
        if unknown:
            reader.queues |= ticks.provide(unknown)
        return reader.plan(self._at, asked=True)

    def _begun(self, at: dict[str, Any]) -> dict[str, Any]:
        opening = self._ticks.opening
        return at if opening is None else {**at, "queues": {**opening.begins(), **at["queues"]}}


class _Gate:
    """Holds each batch of Spark at its end until the next tick.

    Without it Spark would look for the next batch again and again.
    """

    def __init__(self) -> None:
        #: Set when the query ends, so that nobody waits any more.
        self.over = threading.Event()
        self._passes = threading.Event()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run a batch, then wait until there is another tick."""
        self._passes.clear()
        yield
        if not self.over.is_set():
            self._passes.wait()

    def let_pass(self) -> None:
        """Let the batch end, because there is another tick."""
        self._passes.set()

    def open(self) -> None:
        """Let every batch end, because the query ends."""
        self.over.set()
        self._passes.set()


class _Watch:
    """Checks whether a query must end, or has ended."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        #: The query; None until there is a first batch.
        self.query: StreamingQuery | None = None
        self._wait = wait
        self._looked = time.monotonic()

    def ends(self) -> bool:
        if self._wait(0):
            return True
        now = time.monotonic()
        if self.query is None or now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        if self.query.isActive:
            return False
        self.query.awaitTermination()
        return True


class TickStream:
    """A stream in Spark's memory, with one binary column; each row is a partition of its own.

    Parameters
    ----------
    session
        Runs the query.
    """

    def __init__(self, session: SparkSession) -> None:
        # PySpark has no interface for such streams.
        self._jvm = cast("Any", session._jvm)  # noqa: SLF001
        java_session = session._jsparkSession  # noqa: SLF001
        encoder = self._jvm.org.apache.spark.sql.Encoders.BINARY()
        streams = self._jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._stream: Any = streams.apply(java_session, 1, encoder)
        #: The rows that were sent, as a streaming data frame.
        self.frame = DataFrame(self._stream.toDF(), session)

    def send(self, payload: bytes) -> None:
        """Add a row to the stream."""
        rows = self._jvm.java.util.ArrayList()
        rows.add(payload)
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        self._stream.addData(converters.asScala(rows).toSeq())


def _first_stage(
    handle: PlanHandle,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column(0).to_pylist():
                yield rows_of(_blocks(handle, payload))
        end_of_task()

    return run


def _blocks(handle: PlanHandle, payload: bytes) -> Iterator[Block]:
    split, told, batch, failure = pickle.loads(payload)  # noqa: S301 - made by our own driver
    if failure is not None:
        yield Block(0, SUMMARY_STAGE, BlockKind.FAILURE, "", 0, failure)
        return
    yield from guarded(0, lambda: run_split(handle, split, told, batch))
