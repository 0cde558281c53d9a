"""A job whose driver plans its batches: each is one row of a stream in Spark's memory.

A data source has a planner process of its own beside the driver, some 60 MB each.  A worker of
Connect runs a hundred small queries, so there the driver plans, in the thread that looks after the
query, and a *tick* carries what the planner would have said.  The tasks, the commit and all that is
behind them are the same: see decision 0014.
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
from pyspark.sql import DataFrame

from headrace.protocol.transactions import CommitRecord
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.task import guarded
from headrace.spark.source import (
    ROW_SCHEMA,
    JobReader,
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
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.runtime.planning import Split
    from headrace.spark.source import QueryStart
    from headrace.spark.statistics import PlanHandle


# Turns that the batches of many jobs take, so that few run at once and none holds up the others.
#
# A turn goes to who has used the least time, and not to who asked first.  Jobs are of three kinds, by
# what their batches have been, and each kind has turns of its own.  So whoever keeps up with what
# comes does not wait for who has much to do, nor either of them for who has yet to show that its
# batches end at all.

#: Whoever waits looks so often whether it still must, s.
_TURNS_LOOK_SECONDS = 0.2
#: Batches that take less are quick, s; those of a job that keeps up may take longer.
_QUICK_SECONDS, _LIVE_SECONDS = 0.25, 1.0
#: Who is quick keeps its turn so many times as long as its batches take, and at least so long, s.
_KEPT_TIMES, _KEPT_SECONDS = 4, 0.1
#: Who is on trial keeps it so long, s.
_TRIAL_SECONDS = 1.0
#: A batch that takes longer has fewer records the next time, s.
_LONG_SECONDS = 1.0
#: How many records the first batch of a run may have, and the fewest that any batch may have.
_FIRST_RECORDS, _FEWEST_RECORDS = 10_000, 1_000
#: How much the last batch says of the next.
_WEIGHT = 0.25


class JobBatches(Enum):
    """What is known of a job's batches."""

    QUICK = "quick"
    SLOW = "slow"
    #: None has ended yet.
    ON_TRIAL = "on trial"


class Turns:
    """So many batches of each kind run at once, but for those that take long.

    Spark has more slots than there are turns: a batch that waits for code which hangs sits in one
    of those, and its turn is another's.

    Parameters
    ----------
    most
        Batches of a kind that have a turn at the same time.
    clock
        Gives the time, s.

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
        #: In the order in which they asked.
        self._waiting: list[_Turn] = []
        #: Those that have a turn.
        self._running: list[_Turn] = []
        #: What had been used, s, by each kind's last that had a turn: nobody saves up more.
        self._used = dict.fromkeys(JobBatches, 0.0)

    def taker(self, lasting: float) -> TurnTaker:
        """Return what a job takes its turns by.

        Parameters
        ----------
        lasting
            After so many seconds a turn may be another's, though its batch goes on; that of a
            quick job, or of one on trial, earlier.
        """
        return TurnTaker(self, lasting)

    @contextmanager
    def have(self, taker: TurnTaker, unless: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn and have it until the block is left; tell whether there was one."""
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
        """Hand turns to those that wait, also what others have had for long."""
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
    """How many records a batch may have, so that it is not long what others wait for.

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
        """Note how many a batch had, and how long it took."""
        if seconds > _LONG_SECONDS:
            self.most = max(_FEWEST_RECORDS, min(self.most, int(records * _LONG_SECONDS / seconds)))
        elif records >= self.most and seconds < _LONG_SECONDS / 2:
            self.most *= 2 if seconds > _LONG_SECONDS / 4 else 4


@dataclass(slots=True, eq=False)
class TurnTaker:
    """One job, and what it has had of the turns."""

    turns: Turns
    lasting: float
    #: Time that its batches have taken, s, and those of others before it came.
    used: float = 0.0
    #: How long its batches take, s; None: nobody knows.
    usual: float | None = None
    #: How long the last one took, s.
    last: float = 0.0
    #: Whether the last one had all that there was, and that was not much.
    live: bool = False
    #: How many records the next one may have, where the driver chooses.
    pace: BatchPace = field(default_factory=BatchPace)
    #: Of which kind it was when it last asked.
    joined: JobBatches | None = None

    @property
    def kind(self) -> JobBatches:
        """Tell what is known of its batches."""
        if self.usual is None:
            return JobBatches.ON_TRIAL
        quick = self.usual < (_LIVE_SECONDS if self.live else _QUICK_SECONDS)
        return JobBatches.QUICK if quick else JobBatches.SLOW

    @property
    def kept_seconds(self) -> float:
        """Tell how long it keeps a turn for which others wait."""
        if self.usual is None:
            return min(self.lasting, _TRIAL_SECONDS)
        if self.kind is JobBatches.SLOW:
            return self.lasting
        return min(self.lasting, max(_KEPT_SECONDS, _KEPT_TIMES * self.usual))

    def turn(self, *, unless: Callable[[], bool] = lambda: False) -> AbstractContextManager[bool]:
        """Wait for a turn and have it until the block is left; tell whether there was one.

        Parameters
        ----------
        unless
            Tells that the wait is over: the block runs without a turn.
        """
        return self.turns.have(self, unless)

    def committed(self, records: int) -> None:
        """Note how many records the last batch had."""
        self.live = records < min(self.pace.most, _FIRST_RECORDS)
        self.pace.note(records, self.last)

    def join(self, kind: JobBatches, used: float) -> None:
        """Ask among those of a kind, of which the last that had a turn has used so much, s."""
        self.used = max(self.used, used) if kind is self.joined else used
        self.joined = kind

    def note(self, seconds: float) -> None:
        """Note how long a batch has taken."""
        self.used += seconds
        self.last = seconds
        if self.usual is None:
            self.usual = seconds
        else:
            self.usual += _WEIGHT * (seconds - self.usual)


@dataclass(slots=True, eq=False)
class _Turn:
    """What one batch waits for."""

    taker: TurnTaker
    kind: JobBatches
    #: Nobody takes it from it before that time.
    until: float = 0.0
    come: threading.Event = field(default_factory=threading.Event)


#: Nobody is asked for news for longer than this, s: so soon a stop is noticed.
_PATIENCE = 0.5
#: A query is asked so often whether it is still there, s: each time costs a call into Java.
_LOOK_SECONDS = 1.0
#: A job that is held looks so often whether it still is, s.
_HELD_SECONDS = 0.1


class Batch(Protocol):
    """A batch whose tasks report when they are asked: a data frame is one."""

    def toArrow(self) -> pa.Table:
        """Run the tasks, and give what they report."""


class Impulse(Protocol):
    """Tells when there is something for the next batch."""

    @property
    def waiting(self) -> int:
        """How many records there were when it was asked last."""

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait for news; give the topics that they are for, or None where there are none."""


class Opening(Protocol):
    """Is asked before queues are read for the first time that came while the job ran."""

    def learn(self, queues: Collection[str], offsets: Mapping[str, int]) -> bool:
        """Take notice of all queues, and how far each was read; tell whether some are new."""

    def begins(self) -> Mapping[str, int]:
        """Return where new queues are begun, other than at their first message."""


@dataclass(frozen=True, slots=True)
class TickedBatch:
    """A batch that is planned, for who runs it in place of the first stage."""

    handle: PlanHandle
    #: What every task must know, as JSON.
    control: bytes
    splits: Sequence[Split]


class BatchWork(Protocol):
    """Runs batches by frames of Spark's own, in place of the first stage, which is the only one."""

    def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
        """Run a batch, and give what its tasks report, as rows of blocks.

        Caller: the thread of the query.  A batch that was not committed may come again, with other
        splits and the same beginning.
        """


@dataclass(frozen=True, slots=True)
class Ticks:
    """What makes a driver's batches, besides messages in the job's topics."""

    #: None: batches begin with messages.
    impulse: Impulse | None = None
    #: None: queues are read as they come.
    opening: Opening | None = None
    #: Is called with the open record of each epoch before its first batch is planned: nobody
    #: else commits any more.
    opened: Callable[[CommitRecord], None] = lambda _: None
    #: Gives the partitions of which the commit must say that they are gone, as other records
    #: still have them; of all others it says nothing any more.
    elsewhere: Callable[[], Collection[str]] | None = None
    #: While it is set, no batch begins.
    hold: threading.Event = field(default_factory=threading.Event)
    #: Set while no batch begins, and none is under way.
    rests: threading.Event = field(default_factory=threading.Event)
    #: Gives the writable queues of topics that the job is about to write, and makes those topics
    #: where they are missing.
    provide: Callable[[Sequence[str]], Mapping[str, list[str]]] = lambda _: {}
    #: What runs the batches; None: the first stage.
    work: BatchWork | None = None
    #: Jobs that share turns run the tasks of a few batches at once; one alone never waits.
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
    """Run a job's query until it fails, or until ``wait`` raises or says so.

    ``wait`` takes the seconds to wait, at most, and tells whether the query must end;
    ``committed`` takes a batch and the seconds to wait for its commit, and tells whether it came.
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
    """A batch that runs when somebody asks what came of it."""

    work: BatchWork
    session: SparkSession
    batch: TickedBatch

    def toArrow(self) -> pa.Table:
        return self.work.run(self.session, self.batch)


@dataclass(frozen=True, slots=True)
class _InTurn:
    """A batch whose tasks run when it is their turn, or when their query is over anyway."""

    batch: Batch
    ticks: Ticks
    over: threading.Event

    def toArrow(self) -> pa.Table:
        with self.ticks.turns.turn(unless=self.over.is_set):
            return self.batch.toArrow()


class _Planner:
    """What the next batch is, and where it begins."""

    def __init__(self, reader: JobReader, ticks: Ticks) -> None:
        self._reader = reader
        self._ticks = ticks
        self._at = self._begun(reader.initialOffset())
        self._end = self._at
        #: The parts of the batch that was planned last.
        self.parts: Sequence[SplitPartition] = ()

    def plan(self) -> int | None:
        """Wait for something to do; give the number of the next batch, or None: nothing came."""
        end = self._planned()
        opening = self._ticks.opening
        if opening is not None and opening.learn(self._reader.known, self._at["queues"]):
            # What was planned began in queues that nobody had opened.
            self._at = self._begun(self._at)
            return None
        if end == self._at:
            return None
        self._end = end
        return cast("int", end["batch"])

    def split(self) -> Sequence[SplitPartition]:
        """Return the parts of the batch that was planned."""
        self.parts = list(map(_split_partition, self._reader.partitions(self._at, self._end)))
        return self.parts

    def go_on(self) -> None:
        """Plan behind the batch that was planned: it is committed."""
        self._ticks.turns.committed(self._records())
        self._at = self._end

    def _records(self) -> int:
        """Tell how many records the batch had that was planned, but for those of new queues."""
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
            # What Spark's own frames write is a file a batch: those shall not be small.
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
    """Where each batch of Spark waits at its end for the next tick.

    Without it Spark would look for one again and again.
    """

    def __init__(self) -> None:
        #: Set when the query ends: nobody waits any more.
        self.over = threading.Event()
        self._passes = threading.Event()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run a batch, and wait until there is another tick."""
        self._passes.clear()
        yield
        if not self.over.is_set():
            self._passes.wait()

    def let_pass(self) -> None:
        """Say that there is another tick."""
        self._passes.set()

    def open(self) -> None:
        """Let all pass: the query ends."""
        self.over.set()
        self._passes.set()


class _Watch:
    """Looks whether a query must end, or has."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        #: None: it has not begun, as there was no batch yet.
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
        # Spark's Python has no face for it.
        self._jvm = cast("Any", session._jvm)  # noqa: SLF001
        java_session = session._jsparkSession  # noqa: SLF001
        encoder = self._jvm.org.apache.spark.sql.Encoders.BINARY()
        streams = self._jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._stream: Any = streams.apply(java_session, 1, encoder)
        #: What comes.
        self.frame = DataFrame(self._stream.toDF(), session)

    def send(self, payload: bytes) -> None:
        """Add a row."""
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
