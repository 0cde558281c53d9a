"""Sinks that take whole batches, each in a thread of its own.

The job's commits never wait for these threads, which only learn that there is a new commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.backoff import Backoff
from headrace.client import MessageQueue, PullConsumer
from headrace.errors import (
    HeadraceError,
    JobFailedError,
    OffsetExpiredError,
    RequestTimeoutError,
    StateError,
    UserCodeError,
)
from headrace.failpoints import failpoint
from headrace.runtime.batches.cutting import CommittedBatch, Cutter
from headrace.runtime.batches.reading import (
    SinkPosition,
    SinkPositions,
    batch_table,
    read_cut,
    table_schema,
)
from headrace.runtime.planning import make_splits
from headrace.runtime.user_code import raise_failure
from headrace.spark.batches.failures import BatchSinkStatistics, failed_call
from headrace.spark.family import MARK, family_mark
from headrace.spark.session import get_session
from headrace.spark.worker import connection, end_of_task
from headrace.topology import BatchSink, BatchToken, SinkDataFrame
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from headrace.runtime.job_plan import JobConnection, JobPlan
    from headrace.spark.statistics import PlanHandle


# Committed batches as Spark data frames.

#: Spark's scheduler gives turns to the tasks of these calls and to the job's own.
_POOL = "headrace-batches"

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class FrameWriter:
    """Calls the writer of a ``sink_dataframe`` with the data frames of committed batches.

    Parameters
    ----------
    plan
        The job.
    sink
        The operator that has the writer.
    handle
        The job's plan, for the tasks.
    """

    def __init__(self, plan: JobPlan, sink: SinkDataFrame, handle: PlanHandle) -> None:
        self._plan = plan
        self._sink = sink
        self._handle = handle
        self._session: SparkSession | None = None
        self._tag = f"{plan.job}-{sink.name}"

    def __call__(self, cut: CommittedBatch) -> None:
        """Call the writer with a batch, unless no record of it counts.

        Raises
        ------
        UserCodeError
            The writer raised.
        """
        # Its Java process may have ended since the last call.
        session = self._session = get_session(self._plan.settings, self._plan.job)
        context = session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", _POOL)
        context.addJobTag(self._tag)
        # A task that hangs keeps its slot, so leave at least one slot for the job.
        tasks = max(1, min(self._plan.settings.partitions, context.defaultParallelism - 1))
        frame = frame_of(session, self._handle, self._sink, cut, tasks)
        if not self._plan.shows_commits_only and frame.isEmpty():
            return
        try:
            self._sink.writer(frame, BatchToken(self._plan.job, cut.batch))
        except Exception as error:
            writer = self._sink.writer.function
            raise failed_call(self._sink, cut.batch, error, writer) from error

    def interrupt(self) -> None:
        """Cancel the writer's work in Spark, from another thread."""
        # If the Java process is gone, so is the work that ran there.
        if self._session is None:
            return
        with contextlib.suppress(Py4JError, ConnectionError):
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """Do nothing, because a writer holds nothing between calls."""


def frame_of(
    session: SparkSession, handle: PlanHandle, sink: BatchSink, cut: CommittedBatch, tasks: int
) -> DataFrame:
    """Return the data frame of a batch, whose records are read where and when Spark needs them."""
    parts = [
        msgspec.structs.replace(
            cut, ranges={one.queue: (one.begin, one.end) for one in split.ranges}
        )
        for split in make_splits(cut.ranges, tasks)
    ]
    numbers = session.range(0, len(parts), 1, len(parts))
    schema = from_arrow_schema(table_schema(sink))
    return numbers.mapInArrow(_reader(handle, sink.name, parts), schema)


def _reader(handle: PlanHandle, operator: str, parts: list[CommittedBatch]) -> Read:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = connection(handle)
        sink = job.plan.topology.operator(operator)
        assert isinstance(sink, BatchSink)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for messages in read_cut(job.reader(sink.topic), parts[number]):
                    yield batch_table(sink, messages)
        end_of_task()

    return read


# The process of a function of ``for_each_batch``, in which the function may hang, leak or crash.
#
# The process takes none of Spark's slots, so a function that hangs holds up no task.  It can be
# killed, so a function that hangs does not keep a job from stopping.

_END_SECONDS = 2.0


class FunctionProcess:
    """Calls the function of a ``for_each_batch`` in a process that stays from batch to batch.

    Parameters
    ----------
    job, operator
        The names of the job and of the operator that has the function.
    handle
        The job's plan.
    """

    def __init__(self, job: str, operator: str, handle: PlanHandle) -> None:
        self._job = job
        self._operator = operator
        self._handle = handle
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, cut: CommittedBatch) -> None:
        """Call the function with the records of a batch.

        Raises
        ------
        UserCodeError
            The function raised, or its process ended.
        HeadraceError
            The records could not be read.
        """
        channel = self._ready()
        try:
            channel.send_bytes(msgspec.json.encode(cut))
            failure = channel.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        if failure:
            raise_failure(failure)

    def interrupt(self) -> None:
        """Kill the process, from another thread, so that the call fails."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
        self.interrupt()
        self._let_go()

    def _ready(self) -> Connection:
        with self._lock:
            if self._closed:
                raise UserCodeError(f"for_each_batch '{self._operator}' was stopped")
            if self._channel is None:
                self._process, self._channel = self._begun()
            return self._channel

    def _begun(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.spark.batches.function_worker", str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    MARK: family_mark(),
                },
                # Ctrl-C in a terminal is for the job only; this process ends with the channel.
                start_new_session=True,
            )
        channel = Connection(ours.detach())
        channel.send_bytes(self._operator.encode())
        channel.send_bytes(self._handle.payload)
        return process, channel

    def _died(self) -> UserCodeError:
        process = self._process
        code = None if process is None else _ended(process)
        self._let_go()
        return UserCodeError(
            f"the process of for_each_batch '{self._operator}' of job '{self._job}' ended with"
            f" status {code} in the middle of a batch",
            hint="the batch is handed over again; a status below 0 is a signal: -9 often means that"
            " the system ran out of memory",
        )

    def _let_go(self) -> None:
        with self._lock:
            process, channel = self._process, self._channel
            self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is not None:
            _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


logger = logging.getLogger(__name__)

_BACKOFF = Backoff(0.5, 60.0)
#: A RocketMQ broker may show a commit record only a moment after it accepted it.
_VISIBLE_SOON = 0.05
_LOOK_SECONDS = 1.0


class BatchCall(Protocol):
    """Runs the user's code on one batch."""

    def __call__(self, cut: CommittedBatch) -> None:
        """Hand a batch over, and return when that is done."""

    def interrupt(self) -> None:
        """Interrupt the running call, from another thread."""

    def close(self) -> None:
        """Release what is held between calls."""


class BatchRunner:
    """Hands the committed batches of one sink over, one after the other.

    Parameters
    ----------
    job
        Connection to the job's cluster.
    sink
        The sink.
    call
        Runs the user's code.
    """

    def __init__(self, job: JobConnection, sink: BatchSink, call: BatchCall) -> None:
        self.sink = sink
        self._job = job
        self._call = call
        self._positions = SinkPositions(job.client, job.plan.job, sink)
        # It needs transactions of its own, because another thread uses the job's.
        self._transactions = job.plan.make_transactions(job)
        self._consumer = PullConsumer(
            job.client, self._positions.group, committed=job.plan.reads_committed(sink.topic)
        )
        self._cutter = Cutter(self._consumer, exact=job.plan.shows_commits_only)
        self._begins: dict[str, int] = {}
        self._wanted = self._through = self._handed_over = self._failures = 0
        self._error: str | None = None
        self._since: float | None = None
        self._gave_up = False
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = watched_thread(
            self._run, name=f"headrace-batches-{sink.name}", on_failure=self._end
        )

    def start(self, batch: int) -> None:
        """Find the position and go on from there; ``batch`` is the last one committed.

        Raises
        ------
        OffsetExpiredError
            Records that were never handed over are gone.
        StateError
            The sink has handed over batches that the job has not committed.
        """
        queues = self._queues()
        position = self._positions.read()
        if position is None:
            position = SinkPosition(batch=batch, offsets=self._named(queues))
            self._positions.write(position)
        if position.batch > batch:
            raise StateError(
                f"{self.sink.label} '{self.sink.name}' of job '{self._job.plan.job}' has done batch"
                f" {position.batch}, but the job has committed {batch}: its commit topic was made"
                " anew",
                hint=f"delete {self.sink.topic} and {self.sink.done_topic} too, or start the job"
                " under a new name",
            )
        self._begins = dict(self._positions.begins(position, queues, skip=self._skips))
        self._through, self._wanted = position.batch, batch
        self._thread.start()

    def committed(self, batch: int) -> None:
        """Learn that a batch is committed."""
        self._wanted = batch
        self._wake.set()

    def has_done(self, batch: int) -> bool:
        """Return whether everything up to a batch is handed over."""
        return self._through >= batch

    def ask_to_stop(self) -> None:
        """Ask the thread to begin no further call."""
        self._stopping.set()
        self._wake.set()

    def stop(self, deadline: float) -> None:
        """Wait for the running call until a time of the monotonic clock, then interrupt it."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                self._call.interrupt()
                self._thread.join(_LOOK_SECONDS)
            if self._thread.is_alive():
                logger.warning("%s does not end; its thread is left running", self._named_self)
        self._call.close()

    def statistics(self) -> BatchSinkStatistics:
        """Return the progress of the sink."""
        since = self._since
        return BatchSinkStatistics(
            batch=self._through,
            batches=self._handed_over,
            running=None if since is None else timedelta(seconds=time.monotonic() - since),
            failures=self._failures,
            error=self._error,
            stopped=self._gave_up,
        )

    @property
    def _skips(self) -> bool:
        return self._job.plan.settings.on_expired_offset == "earliest"

    @property
    def _named_self(self) -> str:
        return f"{self.sink.label} '{self.sink.name}' of job '{self._job.plan.job}'"

    def _queues(self) -> list[MessageQueue]:
        return sorted(self._job.client.queues(self.sink.topic))

    def _named(self, queues: list[MessageQueue]) -> dict[str, int]:
        return {queue.name: at for queue, at in self._consumer.begin_offsets(queues).items()}

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._through >= self._wanted:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()
                continue
            try:
                found = self._step()
                self._failures, self._error = 0, None
                if not found and self._through < self._wanted:
                    self._stopping.wait(_VISIBLE_SOON)
            except OffsetExpiredError as error:
                if not self._goes_on(error):
                    return
            except Exception as error:  # noqa: BLE001 - the user's code raises what it likes
                self._failed(error)

    def _end(self, error: BaseException) -> None:
        self._gave_up, self._error = True, f"{type(error).__name__}: {error}"

    def _step(self) -> bool:
        """Hand over the next batch; return whether there was one."""
        record = self._transactions.plan([], {}, 0, 0).record
        assert record is not None, "a job is opened before it commits"
        # On RocketMQ a batch is published only after its commit.
        record = msgspec.structs.replace(record, batch=min(record.batch, self._wanted))
        queues = self._queues()
        ends = {queue.name: at for queue, at in self._consumer.end_offsets(queues).items()}
        begins = {**dict.fromkeys(ends, 0), **self._begins}
        cut = self._cutter.next(begins, ends, record)
        if cut is None:
            self._through = max(self._through, record.batch)
            return False
        # Messages without a batch are not ours.
        if cut.batch:
            self._hand_over(cut)
        self._begins = begins | {queue: end for queue, (_, end) in cut.ranges.items()}
        self._through = max(self._through, cut.batch)
        self._positions.write(SinkPosition(batch=self._through, offsets=self._begins))
        return True

    def _hand_over(self, cut: CommittedBatch) -> None:
        self._since = time.monotonic()
        try:
            self._call(cut)
        finally:
            self._since = None
        self._handed_over += 1
        failpoint("batches.called")

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        self._failures += 1
        self._error = str(error) or type(error).__name__
        pause = _BACKOFF.after(self._failures)
        logger.warning(
            "%s tries again in %g s after failure %d in a row: %s",
            self._named_self,
            pause,
            self._failures,
            self._error,
        )
        self._stopping.wait(pause)

    def _goes_on(self, missing: OffsetExpiredError) -> bool:
        """Go on at the first messages that are left, if allowed; return whether it goes on."""
        position = SinkPosition(batch=self._through, offsets=self._begins)
        try:
            begins = self._positions.begins(position, self._queues(), skip=self._skips)
        except HeadraceError as error:
            self._gave_up, self._error = True, str(error)
            logger.error("%s has stopped, the job goes on: %s", self._named_self, error)
            return False
        if begins == self._begins:
            # None of our messages is missing, so the user's code raised the error.
            self._failed(missing)
        self._begins = dict(begins)
        return True


# All sinks of a job that take whole batches.

#: Seconds that a call may still run when the job stops.
_PATIENCE = 5.0
_SINKS_LOOK_SECONDS = 0.05


class BatchSinks:
    """Runs all sinks of a job that take whole batches, beside the job.

    Parameters
    ----------
    job
        Connection to the job's cluster.
    handle
        The job's plan, for other processes.
    batch
        The last batch that the job has committed.
    """

    def __init__(self, job: JobConnection, handle: PlanHandle, batch: int) -> None:
        self._job = job.plan.job
        self._batch = batch
        self._runners = [
            BatchRunner(job, sink, _call(job, sink, handle))
            for sink in job.plan.topology.batch_sinks
        ]

    def __enter__(self) -> Self:
        with ExitStack() as failing:
            failing.callback(self.stop)
            for runner in self._runners:
                runner.start(self._batch)
            failing.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def committed(self, batch: int) -> None:
        """Learn that the job has committed a batch."""
        for runner in self._runners:
            runner.committed(batch)

    def stop(self) -> None:
        """Begin no further call; interrupt running ones after a few seconds."""
        deadline = time.monotonic() + _PATIENCE
        for runner in self._runners:
            runner.ask_to_stop()
        for runner in self._runners:
            runner.stop(deadline)

    def statistics(self) -> dict[str, BatchSinkStatistics]:
        """Return the progress of each sink, by name."""
        return {runner.sink.name: runner.statistics() for runner in self._runners}

    def await_done(self, batch: int, timeout: timedelta | None) -> None:
        """Wait until everything up to a batch is handed over.

        Raises
        ------
        RequestTimeoutError
            That did not happen within ``timeout``; the message names the sink and its last error.
        JobFailedError
            A sink has given up.
        """
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        for runner in self._runners:
            while not runner.has_done(batch):
                status = runner.statistics()
                what = f"{runner.sink.label} '{runner.sink.name}' of job '{self._job}'"
                if status.stopped:
                    raise JobFailedError(f"{what} has stopped: {status.error}")
                if deadline is not None and time.monotonic() >= deadline:
                    raise RequestTimeoutError(
                        f"{what} has done batch {status.batch} of {batch} within {timeout}"
                        + (f"; its last error: {status.error}" if status.error else ""),
                        hint="look at job.statistics().batches",
                    )
                time.sleep(_SINKS_LOOK_SECONDS)


def _call(job: JobConnection, sink: BatchSink, handle: PlanHandle) -> BatchCall:
    if isinstance(sink, SinkDataFrame):
        return FrameWriter(job.plan, sink, handle)
    return FunctionProcess(job.plan.job, sink.name, handle)
