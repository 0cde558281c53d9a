"""The data source behind a job: it plans batches, reads queues and runs the first stage.

``latestOffset`` and ``partitions`` run in one long-lived process beside the driver, ``read`` in
Spark's workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from headrace.client import MessageQueue
from headrace.errors import (
    CommitLostError,
    FencedError,
    HeadraceError,
    InputMissingError,
    JavaEndedError,
    JobFailedError,
    OffsetExpiredError,
    WorkerMismatchError,
)
from headrace.failpoints import failpoint
from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
from headrace.runtime.chunk import Marks
from headrace.runtime.control import (
    SUMMARY_STAGE,
    BatchControl,
    Block,
    BlockKind,
    Control,
    Heading,
    control_blocks,
    queue_runs,
)
from headrace.runtime.event_time.silence import milliseconds
from headrace.runtime.planning import (
    PlannedBatch,
    Split,
    are_held,
    held_offsets,
    hurries,
    least_splits,
    make_splits,
    plan_batch,
)
from headrace.runtime.sources.task import run_source
from headrace.runtime.state.local import LocalCopies
from headrace.runtime.task import guarded
from headrace.runtime.user_code import describe_failure
from headrace.spark.causes import read_failure
from headrace.spark.dead_session import session_is_ours
from headrace.spark.worker import (
    CopiesOf,
    RemoteFinder,
    connection,
    end_of_task,
    limited,
    make_task,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from headrace.runtime.job_plan import JobConnection
    from headrace.spark.statistics import PlanHandle


# Blocks as rows of a Spark data frame.

#: The schema of the rows for Spark, which looks only at ``partition``.
ROW_SCHEMA = (
    "partition int, stage int, kind int, operator string, port int, payload binary, attempt long"
)

_ARROW_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("stage", pa.int32()),
        ("kind", pa.int32()),
        ("operator", pa.string()),
        ("port", pa.int32()),
        ("payload", pa.binary()),
        ("attempt", pa.int64()),
    ]
)


def rows_of(blocks: Iterable[Block]) -> pa.RecordBatch:
    """Return blocks as a record batch, one row each."""
    chosen = list(blocks)
    columns: list[list[object]] = [
        [block.partition for block in chosen],
        [block.stage for block in chosen],
        [int(block.kind) for block in chosen],
        [block.operator for block in chosen],
        [block.port for block in chosen],
        [block.payload for block in chosen],
        [block.attempt for block in chosen],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def blocks_of(batch: pa.RecordBatch) -> Iterator[Block]:
    """Yield the blocks of a record batch."""
    columns = (batch.column(name).to_pylist() for name in _ARROW_SCHEMA.names)
    for partition, stage, kind, *rest in zip(*columns, strict=True):
        yield Block(partition, stage, BlockKind(kind), *rest)


_IDLE_WAIT = 100


class BatchOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a batch; Spark hands it back, and nothing is ever recovered from it."""

    batch: int
    #: The next offset to read, by queue.
    queues: dict[str, int] = {}
    #: Whether the batch only brings the driver the error that ends its query.
    fails: bool = False


@dataclass(frozen=True)
class QueryStart:
    """One start of a job's query: its epoch, and the commit that it goes on from."""

    handle: PlanHandle
    epoch: int
    #: The open record, as JSON.
    record: bytes
    #: Writable queues of every sink and state topic.
    queues: dict[str, list[str]]
    #: The number of splits of a large batch.
    splits: int
    #: The first epoch of the driver; 0: this one.
    life: int = 0


class SplitPartition(InputPartition):
    """One task of the first stage."""

    def __init__(
        self,
        split: Split | None = None,
        control: bytes = b"",
        failure: bytes | None = None,
    ) -> None:
        super().__init__(split)
        self.split = split
        #: The control of the batch for its task.
        self.control = control
        #: In the first split, the control of the whole batch, for the tasks of later stages.
        self.batch: bytes | None = None
        self.failure = failure


class JobSource(DataSource):
    """All source topics of one job, with its first stage; only for the driver's use."""

    launch: QueryStart

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace-job"

    def schema(self) -> str:
        """Return the schema of the rows."""
        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> JobReader:
        """Return the reader."""
        return JobReader(self.launch)


class JobReader(DataSourceStreamReader):
    """Plans batches from the last commit, and runs the first stage on their splits."""

    def __init__(self, launch: QueryStart, idle_wait: int = _IDLE_WAIT) -> None:
        self._launch = launch
        self._idle_wait = idle_wait
        #: Writable queues of every topic that the job writes.
        self.queues = dict(launch.queues)
        #: Names of all queues that the last plan found.
        self.known: frozenset[str] = frozenset()
        self._planned: dict[int, PlannedBatch] = {}
        #: The error that ends the query, for the batch that brings it to the driver.
        self._failure = b""
        #: When this start of the job was first planned, ms since 1970.
        self._began: int | None = None
        #: Whether a batch is due now or soon, so that nobody waits for a message.
        self._hurries = False

    def initialOffset(self) -> dict[str, Any]:
        record = msgspec.json.decode(self._launch.record, type=CommitRecord)
        return _offset(batch=record.batch, queues=record.offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # The limit is a setting of the job, not of Spark.
        del limit
        return self.plan(start)

    def plan(
        self, start: dict[str, Any], *, asked: bool = False, most: int | None = None
    ) -> dict[str, Any]:
        """Plan the batch after an offset and return its end, or the same offset if there is none.

        ``asked`` says that something outside waits for a batch; ``most`` limits its records further
        than the settings do.
        """
        launch = self._launch
        begin = msgspec.convert(start, BatchOffset)
        try:
            job = connection(launch.handle)
        except WorkerMismatchError as error:
            return self._failing(begin, error)
        offsets: Mapping[QueueName, int] = begin.queues
        while True:
            try:
                answer = self._ask(job, offsets, asked=asked, most=most)
                _check_standing(job.plan.job, launch.epoch, begin.batch, answer.record)
                held = held_offsets(job.plan, offsets, answer)
            except (FencedError, InputMissingError, CommitLostError, OffsetExpiredError) as error:
                # If the last batch was not committed, the driver knows more and ignores this.
                return self._failing(begin, error)
            if held == offsets:
                break
            offsets = held
        # If the job goes on elsewhere, that is committed before a queue grows to its old offset.
        committed = {} if answer.record is None else answer.record.offsets
        asked = asked or offsets != begin.queues or not are_held(committed, answer)
        return self._batch(job, begin, offsets, answer, asked=asked) or start

    def _ask(
        self,
        job: JobConnection,
        offsets: Mapping[QueueName, int],
        *,
        asked: bool,
        most: int | None,
    ) -> PlanAnswer:
        limit = job.plan.settings.max_records_per_batch
        return job.transactions.plan(
            job.source_topics(),
            offsets,
            limit if most is None else min(most, limit),
            0 if self._hurries or asked else self._idle_wait,
        )

    def _batch(
        self,
        job: JobConnection,
        begin: BatchOffset,
        offsets: Mapping[QueueName, int],
        answer: PlanAnswer,
        *,
        asked: bool,
    ) -> dict[str, Any] | None:
        self.known = frozenset(answer.latest)
        if self._began is None:
            self._began = answer.clock
        self._hurries = hurries(job.plan, answer, self._idle_wait)
        planned = plan_batch(job.plan, answer, offsets, self._began, self.queues, asked=asked)
        if planned is None:
            return None
        self._planned = {begin.batch + 1: planned}
        failpoint("plan.planned")
        return _offset(batch=begin.batch + 1, queues={**offsets, **answer.ends})

    def _failing(self, begin: BatchOffset, error: HeadraceError) -> dict[str, Any]:
        """Plan a batch that brings an error to the driver unchanged."""
        self._failure = describe_failure(error)
        return _offset(batch=begin.batch + 1, fails=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = [planned.answer.latest for planned in self._planned.values()]
        return _offset(batch=max(self._planned, default=0), queues=latest[0]) if latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = msgspec.convert(start, BatchOffset), msgspec.convert(end, BatchOffset)
        if stop.fails:
            return [SplitPartition(failure=self._failure)]
        if stop.batch == begin.batch:
            # This is Spark's first batch, and there is nothing to read yet.
            return []
        job = connection(self._launch.handle)
        planned = self._planned[stop.batch]
        splits = make_splits(
            {queue: (planned.starts[queue], last) for queue, last in stop.queues.items()},
            self._launch.splits,
            least_splits(job.plan),
            messages=planned.answer.messages,
        )
        control = self._control(job, planned, stop, splits)
        told = control.of_splits([[part.queue for part in split.ranges] for split in splits])
        found = [
            SplitPartition(split, msgspec.json.encode(own))
            for split, own in zip(splits, told, strict=True)
        ]
        found[0].batch = msgspec.json.encode(control)
        failpoint("plan.split")
        return found

    def _control(
        self,
        job: JobConnection,
        planned: PlannedBatch,
        stop: BatchOffset,
        splits: Sequence[Split],
    ) -> BatchControl:
        record = planned.answer.record
        assert record is not None, "a job is opened before its batches are planned"
        time = planned.time
        readers = {part.queue: split.number for split in splits for part in split.ranges}
        common = Control(
            job=job.plan.job,
            life=self._launch.life,
            epoch=self._launch.epoch,
            batch=stop.batch,
            partitions=job.plan.settings.partitions,
            clock=planned.answer.clock,
            clock_before=record.clock,
            topics={topic: queue_runs(queues) for topic, queues in self.queues.items()},
            brokers=sorted({MessageQueue.parse(queue).broker for queue in stop.queues}),
            lineage=record.lineage,
            clocks=time.clocks(job.plan.stages, readers),
            progress=record.progress,
            max_future=milliseconds(job.plan.settings.max_future),
        )
        return BatchControl(
            common=common,
            states=record.states,
            origins=time.origins,
            watermarks=time.watermarks,
            heading=Heading(seen=time.seen, idle=time.idle, announced=time.announced),
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitPartition)
        if partition.failure is not None:
            yield rows_of([Block(0, SUMMARY_STAGE, BlockKind.FAILURE, "", 0, partition.failure)])
            return
        split = partition.split
        assert split is not None
        handle = self._launch.handle
        yield rows_of(
            guarded(0, lambda: run_split(handle, split, partition.control, partition.batch))
        )
        end_of_task()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the job's own commit holds the offsets."""


def run_split(
    handle: PlanHandle,
    split: Split,
    told: bytes,
    batch: bytes | None = None,
    copies: CopiesOf = LocalCopies,
) -> list[Block]:
    """Run the first stage on a split of a batch.

    ``told`` is the control of the split.  With ``batch``, the control of the whole batch, the
    result also holds the controls of later stages.
    """
    job = connection(handle)
    control = msgspec.json.decode(told, type=Control)
    with limited(job, control, split.number):
        blocks = run_source(
            job,
            split,
            Marks(control.brokers),
            lambda finder: make_task(job, control, 0, split.number, finder, copies),
        )
    if batch is not None:
        whole = msgspec.json.decode(batch, type=BatchControl)
        blocks += control_blocks(whole, len(job.plan.stages.stages))
    return blocks


def _offset(**fields: Any) -> dict[str, Any]:
    offset: dict[str, Any] = msgspec.to_builtins(BatchOffset(**fields))
    return offset


def _check_standing(job: str, epoch: int, batch: int, record: CommitRecord | None) -> None:
    """Check that the cluster has the epoch and the last batch of this driver."""
    if record is not None and record.epoch > epoch:
        raise _fenced(job, epoch, record.epoch)
    if record is not None and (record.epoch, record.batch) == (epoch, batch):
        return
    last = f"batch {record.batch} of epoch {record.epoch}" if record else "nothing"
    raise InputMissingError(
        f"job '{job}' has come to batch {batch} in epoch {epoch}, but its commit topic ends with"
        f" {last}: the broker has lost what was committed since",
        hint="did a follower without it take over, or did the broker's disk lose it?",
    )


def _fenced(job: str, epoch: int, newer: int) -> FencedError:
    return FencedError(
        f"job '{job}' was taken over: this driver has epoch {epoch}, a newer one has epoch {newer}",
        hint="only one driver of a job runs at a time; stop the other one if it should not run",
    )


# Stages after a shuffle, as functions for ``mapInArrow``.

StageFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stage_function(handle: PlanHandle, stage: int) -> StageFunction:
    """Return the function that runs one stage for the partition that Spark hands to it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks = [block for batch in batches for block in blocks_of(batch)]
        yield rows_of(run_stage(handle, stage, blocks))
        end_of_task()

    return run


def run_stage(
    handle: PlanHandle, stage: int, blocks: Iterable[Block], copies: CopiesOf = LocalCopies
) -> Iterator[Block]:
    """Run a later stage on the blocks that came for a partition; pass on those of other stages."""
    own: list[Block] = []
    control: Block | None = None
    for block in blocks:
        if block.stage != stage:
            yield block
        elif block.kind is BlockKind.CONTROL:
            control = block
        else:
            own.append(block)
    if control is not None:
        yield from guarded(control.partition, _runner(handle, stage, control, own, copies))


def _runner(
    handle: PlanHandle,
    stage: int,
    message: Block,
    blocks: list[Block],
    copies: CopiesOf,
) -> Callable[[], Iterable[Block]]:
    def run() -> Iterable[Block]:
        job = connection(handle)
        control = msgspec.json.decode(message.payload, type=Control)
        finder = RemoteFinder(job.client, Marks(control.brokers))
        with limited(job, control, message.partition):
            task = make_task(job, control, stage, message.partition, finder, copies)
            try:
                task.absorb(blocks)
                return list(task.finish())
            finally:
                task.close()

    return run


# A job as one Structured Streaming query.

_LOOK_SECONDS = 0.2
#: A micro-batch takes longer; Spark would warn of each that its interval is too short.
_LEAST_INTERVAL = 0.1


def run_query(
    session: SparkSession,
    launch: QueryStart,
    *,
    stages: int,
    partitions: int,
    interval: timedelta,
    checkpoint: str,
    on_batch: Callable[[DataFrame, int], None],
    wait: Callable[[float], bool],
) -> None:
    """Run a job's query until it fails, or until ``wait`` raises or returns True.

    ``wait`` takes the longest time to wait, in seconds, and returns whether the query must end.
    """
    frame = job_frame(session, JobSource, launch.handle, stages, partitions, launch=launch)
    seconds = interval.total_seconds()
    pace = f"{int(seconds * 1000) if seconds >= _LEAST_INTERVAL else 0} milliseconds"
    query = (
        frame.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=pace)
        .start()
    )
    try:
        while not wait(_LOOK_SECONDS):
            if not query.isActive:
                query.awaitTermination()
                return
    finally:
        stop_query(query)


def job_frame(
    session: SparkSession,
    source: type[DataSource],
    handle: PlanHandle,
    stages: int,
    partitions: int,
    **fields: object,
) -> DataFrame:
    """Return a data frame with all stages of a job; ``fields`` are set on the source's class."""
    # The class is a new one, so that Spark ships it by value with its fields.  Its name is new too,
    # because several jobs may start in one session at the same time.
    name = f"{source.name()}-{handle.digest}"
    launched = type("LaunchedSource", (source,), {**fields, "name": classmethod(lambda _: name)})
    session.dataSource.register(launched)
    return later_stages(session.readStream.format(name).load(), handle, stages, partitions)


def later_stages(frame: DataFrame, handle: PlanHandle, stages: int, partitions: int) -> DataFrame:
    """Add the stages after the first one, each behind a shuffle."""
    for stage in range(1, stages):
        frame = frame.repartitionById(partitions, col("partition")).mapInArrow(
            stage_function(handle, stage), ROW_SCHEMA
        )
    return frame


def stop_query(query: StreamingQuery) -> None:
    """End a query."""
    # If the Java process is gone, the query is gone with it.
    with contextlib.suppress(Py4JError, ConnectionError):
        query.stop()


def failure_of(job: str, error: Exception, log: str) -> HeadraceError:
    """Return the error that ended a query; ``log`` names the log with the details."""
    if isinstance(error, HeadraceError):
        return error
    # A call into a Java process that is gone fails as a Py4JError, whatever its cause.
    if isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError):
        what = f"the Java process that runs Spark for job '{job}' ended"
        if session_is_ours():
            return JavaEndedError(what, hint="nothing is lost: the job goes on in a new one")
        return JobFailedError(
            what, hint="nothing is lost: start the job again and it goes on from its last commit"
        )
    if isinstance(error, StreamingQueryException):
        return read_failure(job, str(error), log)
    if isinstance(error, Py4JJavaError):
        found = read_failure(job, str(error.java_exception), log)
        return found if not found.retriable else JobFailedError(found.message, hint=found.hint)
    return JobFailedError(f"job '{job}' failed: {type(error).__name__}: {error}")
