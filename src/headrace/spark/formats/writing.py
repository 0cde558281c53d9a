"""What Spark writes for a sink task: each batch before its commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as f

from headrace.runtime.control import Control
from headrace.runtime.planning import make_splits
from headrace.spark.formats.frames import failures_told, message_frame, reported

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.runtime.planning import QueueRange
    from headrace.spark.ticks import TickedBatch

__all__ = ["SparkWrites", "folder_of"]


def folder_of(path: str, task: int, batch: int, before: int) -> str:
    """Name the folder of a batch, by its number and by the clock of the batch before it.

    A batch that comes again, longer perhaps, has the same folder again; one of a job that began
    anew, because its commit topic was deleted, has another.

    Examples
    --------
    >>> folder_of("/data/orders/", 0, 7, 1_763_800_000_000)
    '/data/orders/task=0/batch=000000007-1763800000000'
    """
    return f"{path.rstrip('/')}/task={task}/batch={batch:09}-{before}"


class SparkWrites:
    """Writes for one task.

    Parameters
    ----------
    order
        What the task says: format, path, options, and what values are.
    task
        Its number.
    """

    def __init__(self, order: Mapping[str, Any], task: int) -> None:
        self._order = order
        self._task = task

    def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
        """Write the messages of a batch, and give what its tasks report."""
        ranges = [one for split in batch.splits for one in split.ranges if len(one)]
        if ranges:
            self._write(session, batch, ranges)
        return reported(batch, sum(map(len, ranges)))

    def _write(self, session: SparkSession, batch: TickedBatch, ranges: list[QueueRange]) -> None:
        order = self._order
        most = session.sparkContext.defaultParallelism
        spans = {one.queue: (one.begin, one.end) for one in ranges}
        parts = [split.ranges for split in make_splits(spans, most)]
        headers = "headers" in order["metadata.columns"]
        with failures_told(
            f"write a batch ({order['format']} {order.get('path') or ''})", order["options"]
        ):
            messages = message_frame(session, batch, parts, headers=headers)
            self._save(self._rows(messages), msgspec.json.decode(batch.control, type=Control))

    def _save(self, rows: DataFrame, control: Control) -> None:
        order = self._order
        writer = rows.write.format(order["format"]).options(**order["options"])
        if order["partition.by"]:
            writer = writer.partitionBy(*order["partition.by"])
        if order["folders"]:
            folder = folder_of(order["path"], self._task, control.batch, control.clock_before)
            writer.mode("overwrite").save(folder)
        elif order.get("path"):
            writer.mode(order["save.mode"]).save(order["path"])
        else:
            writer.mode(order["save.mode"]).save()

    def _rows(self, messages: DataFrame) -> DataFrame:
        """Make rows of messages; those without a body say that something was deleted: no row."""
        order = self._order
        beside: list[str] = order["metadata.columns"]
        kind, text = order["value.format"], f.col("value").cast("string")
        given = messages.filter("value is not null")
        if kind != "json":
            value = f.col("value") if kind == "bytes" else text.alias("value")
            return given.select(*beside, value)
        mode = "FAILFAST" if order["bad.values"] == "fail" else "PERMISSIVE"
        parsed = f.from_json(text, order["schema"], {"mode": mode}).alias("value")
        return given.select(*beside, parsed).select(*beside, "value.*")
