"""Jobs whose tasks live as long as their epoch: Spark places them, and does no more.

All tasks are one barrier stage, so Spark starts all of them or none.  It never starts a failed one
again, and tells the others nothing: channels to the driver show who is gone, and the driver then
ends the gang and begins a new epoch at the last commit.  No task calls ``barrier()``, which takes a
second; they meet at their driver (see :mod:`headrace.runtime.resident`).
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from headrace.errors import ChannelError, JobFailedError
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.resident.channels import MemberListener
from headrace.runtime.resident.gang import AssignedSplit, Gang, GangPlace, serve
from headrace.runtime.state.local import OpenCopies
from headrace.runtime.task import guarded
from headrace.spark.causes import read_failure
from headrace.spark.cluster import on_one_machine
from headrace.spark.session import log_file
from headrace.spark.source import (
    JobReader,
    QueryStart,
    SplitPartition,
    run_split,
    run_stage,
)
from headrace.spark.worker import connection, end_of_task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    from headrace.runtime.job_plan import JobPlan
    from headrace.runtime.state.local import StateTopic
    from headrace.spark.statistics import PlanHandle

#: How long tasks may take to come, slots to be free, and a gang to end, s.
_GATHERING, _SLOTS, _ENDING = 60.0, 10.0, 5.0
#: How long the cause is waited for when a task is gone, s.
_CAUSE = 1.0
_LOOK = 0.1
#: How long a plan waits for messages, ms.
_IDLE_WAIT = 200


class _Stages:
    """Runs the stages of a job in one task, over state that stays open."""

    def __init__(self, handle: PlanHandle) -> None:
        # A worker that does not fit says so before the first batch.
        connection(handle)
        self._handle = handle
        self._copies: OpenCopies | None = None

    def first(self, reading: AssignedSplit) -> Iterable[Block]:
        return guarded(
            0,
            lambda: run_split(
                self._handle, reading.split, reading.control, reading.batch, self._copies_of
            ),
        )

    def later(self, stage: int, blocks: Sequence[Block]) -> Iterable[Block]:
        return run_stage(self._handle, stage, blocks, self._copies_of)

    def _copies_of(self, root: Path, topic: StateTopic) -> OpenCopies:
        if self._copies is None:
            self._copies = OpenCopies(root, topic)
        self._copies.read_by(topic)
        return self._copies

    def ended(self) -> None:
        end_of_task()
        # The tasks of a batch leave cycles; what lives on is passed over from the second time on.
        gc.collect(0)

    def close(self) -> None:
        if self._copies is not None:
            self._copies.close()


def _gang_function(
    handle: PlanHandle, place: GangPlace
) -> Callable[[int, Iterable[int]], Iterable[int]]:
    def run(number: int, _: Iterable[int]) -> Iterable[int]:
        serve(place, number, lambda: _Stages(handle))
        return ()

    return run


def run_resident(
    session: SparkSession,
    launch: QueryStart,
    *,
    plan: JobPlan,
    stages: int,
    checkpoint: str,
    on_batch: Callable[[Callable[[], list[Block]]], None],
    wait: Callable[[float], bool],
    committed: Callable[[int, float], bool],
) -> None:
    """Run a job's batches by a gang until one fails, or until ``wait`` raises or returns True.

    ``on_batch`` takes the function that runs a batch and returns the reports of its tasks; ``wait`` takes the longest time to wait, in seconds, and returns whether the job must end;
    ``committed`` takes a batch and the time to wait for its commit, and returns whether it came.
    """
    context, settings = session.sparkContext, plan.settings
    reader = JobReader(launch, idle_wait=_IDLE_WAIT)
    at = reader.initialOffset()
    interval = settings.commit_interval.total_seconds()
    folder = Path(checkpoint) if on_one_machine(settings.master) else None
    tasks = min(settings.partitions, _slots(context, settings.partitions, wait))
    told = context.getConf().get
    listener = MemberListener(
        folder, told("spark.driver.host", ""), told("spark.driver.bindAddress", "")
    )
    gang = Gang(
        launch.epoch,
        listener,
        tasks=tasks,
        partitions=settings.partitions,
        stages=stages,
        batch=at["batch"],
        folder=folder,
    )
    log = str(log_file(settings))
    with _placed(gang, context, launch.handle, plan.job, log, wait) as placed:
        while not wait(0):
            end = reader.plan(at)
            if end == at:
                placed.check()
                continue
            began = time.monotonic()
            on_batch(partial(placed.run, end["batch"], reader.partitions(at, end)))
            if not committed(end["batch"], 0):
                if wait(0):
                    return
                raise JobFailedError(f"batch {end['batch']} was not committed")
            at = end
            if (rest := began + interval - time.monotonic()) > 0 and wait(rest):
                return


def _slots(context: SparkContext, wanted: int, wait: Callable[[float], bool]) -> int:
    """Return how many tasks Spark can run at once; executors may have to start first."""
    scala: Any = context._jsc.sc()  # noqa: SLF001 - Spark offers no other look
    profile = scala.resourceProfileManager().defaultResourceProfile()
    until = time.monotonic() + _SLOTS
    while (found := int(scala.maxNumConcurrentTasks(profile))) < wanted:
        if wait(_LOOK) or time.monotonic() > until:
            break
    if not found:
        raise JobFailedError(
            "Spark has no core for the tasks of the job",
            hint="are there executors, and are their cores free? a job whose executor is resident"
            " keeps its cores as long as it runs",
        )
    return found


@contextmanager
def _placed(
    gang: Gang,
    context: SparkContext,
    handle: PlanHandle,
    job: str,
    log: str,
    wait: Callable[[float], bool],
) -> Iterator[_Tasks]:
    """Have Spark start the tasks of a gang, and end them behind the block."""
    tasks = _Tasks(gang, context, handle, job, log, wait)
    try:
        tasks.gather()
        yield tasks
    finally:
        tasks.end()


class _Tasks:
    """The tasks of a gang as a job of Spark."""

    def __init__(
        self,
        gang: Gang,
        context: SparkContext,
        handle: PlanHandle,
        job: str,
        log: str,
        wait: Callable[[float], bool],
    ) -> None:
        self._gang = gang
        self._context = context
        self._job = job
        self._log = log
        self._wait = wait
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._group = f"headrace-{job}-{gang.place.incarnation}"
        self._thread = InheritableThread(target=self._run, args=(handle,), daemon=True)
        self._thread.start()

    def _run(self, handle: PlanHandle) -> None:
        place = self._gang.place
        try:
            self._context.setJobGroup(self._group, f"tasks of job {self._job}")
            numbers = self._context.parallelize(range(place.tasks), place.tasks).barrier()
            numbers.mapPartitionsWithIndex(_gang_function(handle, place)).collect()
        except Exception as error:  # noqa: BLE001 - raised in the driver's own thread
            self._error = error
        finally:
            self._ended.set()

    def gather(self) -> None:
        """Wait until all have come."""
        self._gang.gather(_GATHERING, self.check)

    def run(self, batch: int, parts: Iterable[InputPartition]) -> list[Block]:
        """Run a batch and return the reports of the tasks."""
        readings = []
        for part in parts:
            assert isinstance(part, SplitPartition)
            if part.failure is not None:
                return [Block(0, SUMMARY_STAGE, BlockKind.FAILURE, "", 0, part.failure)]
            assert part.split is not None
            readings.append(AssignedSplit.of_split(part.split, part.control, part.batch))
        try:
            return self._gang.run(batch, readings, self.check)
        except ChannelError:
            self._ended.wait(_CAUSE)
            self._raise_cause()
            raise

    def check(self) -> None:
        """Raise if the tasks have ended, or must."""
        if self._ended.is_set():
            self._raise_cause()
            raise ChannelError(f"the tasks of job '{self._job}' have ended")
        if self._wait(0):
            raise ChannelError(f"job '{self._job}' ends")

    def _raise_cause(self) -> None:
        error = self._error
        if isinstance(error, Py4JJavaError | PySparkException):
            told = error.java_exception if isinstance(error, Py4JJavaError) else error
            raise read_failure(self._job, str(told), self._log) from error
        if error is not None:
            raise error

    def end(self) -> None:
        """End the tasks and wait for their end."""
        self._gang.end()
        if not self._ended.wait(_ENDING):
            self._context.cancelJobGroup(self._group)
            self._ended.wait(_ENDING)
