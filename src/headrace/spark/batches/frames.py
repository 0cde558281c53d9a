"""Committed batches as Spark data frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.runtime.batches.reading import batch_table, read_cut, table_schema
from headrace.runtime.planning import make_splits
from headrace.spark.batches.failures import failed_call
from headrace.spark.session import get_session
from headrace.spark.worker import connection, end_of_task
from headrace.topology import BatchSink, BatchToken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.runtime.batches.cutting import Cut
    from headrace.runtime.job_plan import JobPlan
    from headrace.spark.plans import PlanHandle
    from headrace.topology import SinkDataFrame

__all__ = ["FrameWriter", "frame_of"]

#: Tasks of these calls and those of the job get their turns alternately.
_POOL = "headrace-batches"

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class FrameWriter:
    """Calls a writer of ``sink_dataframe`` with data frames of committed batches.

    Parameters
    ----------
    plan
        The job.
    sink
        The operator that has the writer.
    handle
        The job's plan, as its tasks know it.
    """

    def __init__(self, plan: JobPlan, sink: SinkDataFrame, handle: PlanHandle) -> None:
        self._plan = plan
        self._sink = sink
        self._handle = handle
        self._session: SparkSession | None = None
        self._tag = f"{plan.job}-{sink.name}"

    def __call__(self, cut: Cut) -> None:
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
        # A task that hangs takes a slot: one is left for the job.
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
        """Cancel what runs in Spark, from another thread."""
        # Where the Java process is gone, so is what ran there.
        if self._session is None:
            return
        with contextlib.suppress(Py4JError, ConnectionError):
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def frame_of(
    session: SparkSession, handle: PlanHandle, sink: BatchSink, cut: Cut, tasks: int
) -> DataFrame:
    """Make the data frame of a batch; its records are read where and when somebody asks for them."""
    parts = [
        msgspec.structs.replace(
            cut, ranges={one.queue: (one.begin, one.end) for one in split.ranges}
        )
        for split in make_splits(cut.ranges, tasks)
    ]
    numbers = session.range(0, len(parts), 1, len(parts))
    schema = from_arrow_schema(table_schema(sink))
    return numbers.mapInArrow(_reader(handle, sink.name, parts), schema)


def _reader(handle: PlanHandle, operator: str, parts: list[Cut]) -> Read:
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
