"""Frames of Spark for Connect: rows that become messages, messages that become rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.functions import lit

from headrace.client import MessageQueue
from headrace.columns import ColumnValues
from headrace.errors import JavaEndedError, TaskFailedError
from headrace.runtime.chunk import Chunk
from headrace.runtime.control import Control
from headrace.runtime.marks import Marks, spout_mark
from headrace.runtime.outside.carried import key_bytes, property_pairs
from headrace.runtime.outside.feed import byte_count
from headrace.runtime.sources.messages import ranged
from headrace.runtime.sources.task import read_range
from headrace.runtime.task import guarded
from headrace.spark.rows import ROW_SCHEMA, rows_of
from headrace.spark.worker import RemoteFinder, connection, end_of_task, limited, make_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.protocol.transactions import Position
    from headrace.runtime.blocks import Block
    from headrace.runtime.planning import QueueRange
    from headrace.spark.plans import PlanHandle
    from headrace.spark.ticks import TickedBatch

__all__ = ["INTAKE", "failures_told", "fed", "message_frame", "reported"]

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: The columns of an intake, as Spark has them.
INTAKE = {
    "topic": "string",
    "queue": "int",
    "key": "binary",
    "value": "binary",
    "properties": "binary",
    "timestamp": "bigint",
}
_MESSAGES = (
    "topic string, broker string, queue int, offset bigint, key binary, value binary,"
    " timestamp timestamp, headers map<string, string>"
)
#: Rows that run through the operators at once: Spark gives them by the thousand.
_CHUNK_ROWS = 1 << 16
_SHOWN = 2000
_SECRET = re.compile(r"(?i)password|secret|token|credential|access.?key")


# Rows that become messages.


def fed(
    batch: TickedBatch,
    rows: DataFrame,
    operator: str,
    positions: Mapping[str, Position],
) -> pa.Table:
    """Feed rows into an operator of the first stage; give what its tasks report.

    Parameters
    ----------
    rows
        Columns as in :data:`INTAKE`.
    operator
        Name of the operator.
    positions
        What the batch commits.
    """
    # One row more, of no topic: also where Spark finds that there is nothing to read, there is
    # a task that reports.
    none = [lit(None).cast(kind).alias(name) for name, kind in INTAKE.items()]
    session = rows.sparkSession
    marker = session.range(0, 1, 1, 1).select(*none)
    most = 2 * session.sparkContext.defaultParallelism
    whole = rows.select(*INTAKE).coalesce(most).union(marker)
    count = whole.rdd.getNumPartitions()
    stage = _feeding(batch, count, operator, dict(positions))
    return whole.mapInArrow(stage, ROW_SCHEMA).toArrow()


def _feeding(
    batch: TickedBatch, splits: int, operator: str, positions: Mapping[str, Position]
) -> Stage:
    handle, control = batch.handle, batch.control

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        feeding = _Feeding(handle, control, number, operator)
        told = positions if number == 0 else {}
        yield rows_of(guarded(number, lambda: feeding.run(batches, splits, told)))
        end_of_task()

    return run


class _Feeding:
    """One task that feeds rows of Spark into the first stage."""

    def __init__(self, handle: PlanHandle, control: bytes, number: int, operator: str) -> None:
        self._job = connection(handle)
        self._control = msgspec.json.decode(control, type=Control)
        self._number = number
        self._operator = operator

    def run(
        self,
        batches: Iterator[pa.RecordBatch],
        splits: int,
        positions: Mapping[str, Position],
    ) -> list[Block]:
        finder = RemoteFinder(self._job.client, Marks([]))
        task = make_task(self._job, self._control, 0, self._number, finder)
        mark = spout_mark(self._number)
        try:
            with limited(self._job, self._control, self._number):
                for rows in _gathered(batches):
                    task.feed({self._operator: self._chunk(rows, mark)})
                    task.counters["records_in"] += rows.num_rows
                    size = byte_count(rows.column("key"), rows.column("value"))
                    task.counters["outside_bytes"] += size
                    mark += rows.num_rows
                task.context.positions.update(positions)
                return list(task.finish(splits, {} if self._number == 0 else None))
        finally:
            task.close()

    def _chunk(self, rows: pa.RecordBatch, mark: int) -> Chunk:
        properties = pc.fill_null(rows.column("properties"), b"")
        times = pc.fill_null(rows.column("timestamp"), self._control.clock)
        for name, column in (("properties", properties), ("timestamp", times)):
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        values: Any = ColumnValues(rows)
        return Chunk(None, values, times.to_numpy(), np.arange(mark, mark + rows.num_rows))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of batches, without those of no topic."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rows = batch.filter(batch.column("topic").is_valid())
        if rows.num_rows:
            waiting.append(rows)
            count += rows.num_rows
        if count >= _CHUNK_ROWS:
            yield pa.concat_batches(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


# Messages that become rows.


def message_frame(
    session: SparkSession,
    batch: TickedBatch,
    parts: Sequence[Sequence[QueueRange]],
    *,
    headers: bool,
) -> DataFrame:
    """Give messages as rows; each part is a task, which reads them when somebody asks."""
    numbers = session.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(_reading(batch.handle, parts, headers=headers), _MESSAGES)


def _reading(handle: PlanHandle, parts: Sequence[Sequence[QueueRange]], *, headers: bool) -> Stage:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = connection(handle)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for part in parts[number]:
                    queue = MessageQueue.parse(part.queue)
                    for result in read_range(job, part):
                        for piece in result.pieces():
                            columns = ranged(piece, part.begin, part.end)
                            yield _rows(queue, columns, headers=headers)
        end_of_task()

    return run


def _rows(queue: MessageQueue, columns: Any, *, headers: bool) -> pa.RecordBatch:
    count = len(columns)
    empty = pc.equal(pc.binary_length(columns.body), 0)
    pairs: pa.Array = pa.nulls(count, pa.map_(pa.string(), pa.string()))
    if headers:
        pairs = property_pairs(columns.properties)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.repeat(queue.topic, count),
            "broker": pa.repeat(queue.broker, count),
            "queue": pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
            "offset": pa.array(columns.queue_offset),
            "key": key_bytes(columns.properties),
            "value": pc.if_else(empty, pa.scalar(None, pa.binary()), columns.body),
            "timestamp": pa.array(columns.born * 1000).cast(pa.timestamp("us", "UTC")),
            "headers": pairs,
        }
    )


def reported(batch: TickedBatch, count: int) -> pa.Table:
    """Give what tasks report that had nothing to do: Spark has taken so many messages out."""
    job = connection(batch.handle)
    control = msgspec.json.decode(batch.control, type=Control)
    blocks: list[Block] = []
    for split in batch.splits:
        task = make_task(job, control, 0, split.number, RemoteFinder(job.client, Marks([])))
        try:
            if split.number == 0:
                task.counters["records_in"] += count
            blocks += task.finish(split.of, split.ends)
        finally:
            task.close()
    return pa.Table.from_batches([rows_of(blocks)])


# Failures.


@contextmanager
def failures_told(what: str, options: Mapping[str, str]) -> Iterator[None]:
    """Say what Spark could not do in a few words, without the secrets among a format's options."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = _words_of(error)
        for name, value in options.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "********")
        raise TaskFailedError(
            f"Spark cannot {what}: {text}",
            hint="Check format, path, schema and the option keys; a format that does not come with"
            " Spark needs its jar in the worker's Spark config (spark.jars).",
        ) from None
    except ConnectionError as error:
        raise JavaEndedError(f"the Java process of the engine ended: {error}") from error


def _words_of(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.toString())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines)[:_SHOWN]
