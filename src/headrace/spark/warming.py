"""Batches of nothing: they bring Spark and its Python workers to where a job's first batch is fast.

A query of the job's own shape runs on a source without records.  Java loads and compiles what
queries need, workers start, import what the job needs and connect to its cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from headrace.runtime.blocks import SUMMARY_STAGE, Block, BlockKind
from headrace.spark.query import job_frame
from headrace.spark.rows import ROW_SCHEMA, rows_of
from headrace.spark.session import checkpoint_folder
from headrace.spark.worker import connection, end_of_task

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.spark.plans import PlanHandle

__all__ = ["warm_up"]

_LOOK_SECONDS = 0.02


def warm_up(
    session: SparkSession,
    handle: PlanHandle,
    *,
    stages: int,
    partitions: int,
    batches: int,
    over: threading.Event,
) -> None:
    """Run some batches of nothing; break off when ``over`` is set."""
    done: list[int] = []

    def take(frame: DataFrame, batch: int) -> None:
        frame.toArrow()
        done.append(batch)

    with checkpoint_folder() as folder:
        frame = job_frame(
            session, WarmSource, handle, stages, partitions, plan=handle, splits=partitions
        )
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
        try:
            while len(done) < batches and not over.wait(_LOOK_SECONDS):
                if not query.isActive:
                    query.awaitTermination()
        finally:
            query.stop()


class WarmPartition(InputPartition):
    """One task."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class WarmSource(DataSource):
    """A source that always has a next batch, with nothing in it."""

    plan: PlanHandle
    splits: int

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "headrace-warm"

    def schema(self) -> str:
        """Describe the rows."""
        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> WarmReader:
        """Make the reader."""
        return WarmReader(self.plan, self.splits)


class WarmReader(DataSourceStreamReader):
    """Lets each task of a batch get ready for the job's own."""

    def __init__(self, handle: PlanHandle, splits: int) -> None:
        self._handle = handle
        self._splits = splits

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [WarmPartition(number) for number in range(self._splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WarmPartition)
        connection(self._handle).get_ready()
        number = partition.number
        yield rows_of([Block(number, SUMMARY_STAGE, BlockKind.SUMMARY, "", 0, b"")])
        end_of_task()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing."""
