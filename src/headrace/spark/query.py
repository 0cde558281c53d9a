"""A job as one Structured Streaming query."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col

from headrace.errors import HeadraceError, JavaEndedError, JobFailedError
from headrace.spark.causes import read_failure
from headrace.spark.dead_session import session_is_ours
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.source import JobSource
from headrace.spark.stages import stage_function

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.spark.plans import PlanHandle
    from headrace.spark.source import Launch

__all__ = ["failure_of", "job_frame", "later_stages", "run_query", "stop_query"]

_LOOK_SECONDS = 0.2


def run_query(
    session: SparkSession,
    launch: Launch,
    *,
    stages: int,
    partitions: int,
    interval: timedelta,
    checkpoint: str,
    on_batch: Callable[[DataFrame, int], None],
    wait: Callable[[float], bool],
) -> None:
    """Run a job's query until it fails, or until ``wait`` raises or says so.

    ``wait`` takes the seconds to wait, at most, and tells whether the query must end.
    """
    frame = job_frame(session, JobSource, launch.handle, stages, partitions, launch=launch)
    query = (
        frame.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{int(interval.total_seconds() * 1000)} milliseconds")
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
    """Plan a query of a job's shape over a source; ``fields`` are what the source is given."""
    # A class of its own, so that Spark ships it by value with the fields in it; under a name of its
    # own, as several jobs may start in one session at the same time.
    name = f"{source.name()}-{handle.digest}"
    launched = type("LaunchedSource", (source,), {**fields, "name": classmethod(lambda _: name)})
    session.dataSource.register(launched)
    return later_stages(session.readStream.format(name).load(), handle, stages, partitions)


def later_stages(frame: DataFrame, handle: PlanHandle, stages: int, partitions: int) -> DataFrame:
    """Put the stages behind shuffles after the first one."""
    for stage in range(1, stages):
        frame = frame.repartitionById(partitions, col("partition")).mapInArrow(
            stage_function(handle, stage), ROW_SCHEMA
        )
    return frame


def stop_query(query: StreamingQuery) -> None:
    """End a query."""
    # Where the Java process is gone, the query is gone with it.
    with contextlib.suppress(Py4JError, ConnectionError):
        query.stop()


def failure_of(job: str, error: Exception, log: str) -> HeadraceError:
    """Say what ended a query in the words of the job; ``log`` is where more is told."""
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
