"""All sinks of a job that take whole batches."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from headrace.errors import JobFailedError, RequestTimeoutError
from headrace.spark.batches.frames import FrameWriter
from headrace.spark.batches.function_process import FunctionProcess
from headrace.spark.batches.runner import BatchCall, BatchRunner
from headrace.topology import SinkDataFrame

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from headrace.runtime.job_plan import JobConnection
    from headrace.spark.batches.status import BatchSinkStatistics
    from headrace.spark.plans import PlanHandle
    from headrace.topology import BatchSink

__all__ = ["BatchSinks"]

#: Seconds that a call may still run when the job stops.
_PATIENCE = 5.0
_LOOK_SECONDS = 0.05


class BatchSinks:
    """Runs the sinks of a job that take whole batches, beside the job.

    Parameters
    ----------
    job
        Connection to the job's cluster.
    handle
        The job's plan for other processes.
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
        """Hear that the job has committed a batch."""
        for runner in self._runners:
            runner.committed(batch)

    def stop(self) -> None:
        """Begin no further call, give those that run a few seconds, and break them off."""
        deadline = time.monotonic() + _PATIENCE
        for runner in self._runners:
            runner.ask_to_stop()
        for runner in self._runners:
            runner.stop(deadline)

    def statistics(self) -> dict[str, BatchSinkStatistics]:
        """Say how each sink stands, by its name."""
        return {runner.sink.name: runner.statistics() for runner in self._runners}

    def await_done(self, batch: int, timeout: timedelta | None) -> None:
        """Wait until everything up to a batch is handed over.

        Raises
        ------
        RequestTimeoutError
            It was not, within ``timeout``; the message names the sink and its last error.
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
                time.sleep(_LOOK_SECONDS)


def _call(job: JobConnection, sink: BatchSink, handle: PlanHandle) -> BatchCall:
    if isinstance(sink, SinkDataFrame):
        return FrameWriter(job.plan, sink, handle)
    return FunctionProcess(job.plan.job, sink.name, handle)
