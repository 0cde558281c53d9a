"""Batches of Connect's tasks whose rows Spark itself reads or writes; see decision 0015."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions as f
from pyspark.sql.functions import lit
from pyspark.sql.types import TimestampType

from headrace.client import MessageQueue
from headrace.columns import ColumnValues
from headrace.errors import ConnectorConfigError, JavaEndedError, TaskFailedError
from headrace.protocol.transactions import Position
from headrace.runtime.chunk import Chunk, Marks, spout_mark
from headrace.runtime.control import Block, Control
from headrace.runtime.outside import byte_count, key_bytes, property_pairs
from headrace.runtime.planning import OffsetRange, make_splits
from headrace.runtime.sources.messages import ranged
from headrace.runtime.sources.task import read_range
from headrace.runtime.task import guarded
from headrace.spark.source import ROW_SCHEMA, rows_of
from headrace.spark.worker import RemoteFinder, connection, end_of_task, limited, make_task

if TYPE_CHECKING:
    from headrace.spark.statistics import PlanHandle
    from headrace.spark.ticks import TickedBatch


# Spark data frames for Connect: rows become messages, and messages become rows.

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: The columns of rows that become messages, with their types in Spark.
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
#: Rows that the operators handle at once; Spark delivers them a thousand at a time.
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
    """Feed rows into an operator of the first stage; return what its tasks report.

    Parameters
    ----------
    rows
        The rows, with the columns of :data:`INTAKE`.
    operator
        Name of the operator.
    positions
        The positions that the batch commits.
    """
    # One more row, without a topic, makes sure that a task reports even if Spark finds nothing to
    # read.
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
    """Yield the rows in larger batches, without those that have no topic."""
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
    parts: Sequence[Sequence[OffsetRange]],
    *,
    headers: bool,
) -> DataFrame:
    """Return messages as a data frame; each part is a task, which reads when Spark runs it."""
    numbers = session.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(_reading(batch.handle, parts, headers=headers), _MESSAGES)


def _reading(handle: PlanHandle, parts: Sequence[Sequence[OffsetRange]], *, headers: bool) -> Stage:
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
    """Return the reports of tasks that had nothing to do, because Spark read the messages."""
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
    """Raise Spark's errors as short ones of our own, without the secrets in a format's options."""
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


# What Spark reads for a source task.  The engine plans it; the position is committed with the rows.
#
# A plan is a data frame and the position after it.  It is made from the committed position alone,
# so whatever was not committed is planned again.

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the next batch reads."""

    rows: DataFrame
    #: The position of the source after it.
    offset: Offset


class Planner(Protocol):
    """Plans what a source reads next."""

    #: Name of the source's only partition.
    partition: Mapping[str, Any]

    def plan(self, session: SparkSession, offset: Offset | None) -> ReadPlan | None:
        """Return a plan of what comes after an offset; None if there is nothing."""


class SparkReads:
    """Reads for one source task: finds what is new, and runs the batch that reads it.

    Parameters
    ----------
    order
        The task's configuration: format, path, options, and what rows become.
    operator
        The operator that the rows are fed into.
    generation
        The generation of the task, which the positions carry.
    session
        Returns the Spark session.
    committed
        Returns the committed offset of each partition, by its name.
    """

    #: Rows that Spark has not read yet cannot be counted.
    waiting = 0

    def __init__(
        self,
        order: Mapping[str, Any],
        operator: str,
        generation: int,
        session: Callable[[], SparkSession],
        committed: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._order = order
        self._operator = operator
        self._generation = generation
        self._session = session
        self._committed = committed
        self._planner = planner_of(order)
        self._name = orjson.dumps(self._planner.partition, option=orjson.OPT_SORT_KEYS).decode()
        self._next: ReadPlan | None = None
        self._idle_until = 0.0

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait until there is something to read; return its topic, or None if there is nothing."""
        left = self._idle_until - time.monotonic()
        if left > 0:
            time.sleep(min(left, seconds))
            return None
        with self._told("look for what is new"):
            self._next = self._planner.plan(self._session(), self._committed().get(self._name))
        if self._next is None:
            self._idle_until = time.monotonic() + self._order["poll.interval.ms"]
            return None
        return [self._order["topic"]]

    def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
        """Read the planned rows and stage them as messages."""
        # The data frame already has its session.
        del session
        plan = self._next
        assert plan is not None, "a batch begins when there is something to read"
        at = Position(offset=plan.offset, generation=self._generation)
        with self._told("read"):
            rows = plan.rows.select(*_intake(self._order))
            return fed(batch, rows, self._operator, {self._name: at})

    def _told(self, doing: str) -> Any:
        where = self._order.get("path") or ""
        return failures_told(f"{doing} ({self._order['format']} {where})", self._order["options"])


#: Characters that Spark would read as a pattern in the name of a file.
_GLOB = re.compile(r"[{}\[\]*?\\]")


def planner_of(order: Mapping[str, Any]) -> Planner:
    """Return the planner for the way in which a source is read."""
    ways: Mapping[str, Callable[[Mapping[str, Any]], Planner]]
    ways = {"files": _FolderFiles, "column": _ByColumn, "once": _Once}
    return ways[order["read"]](order)


def _load(session: SparkSession, order: Mapping[str, Any], paths: list[str] | None) -> DataFrame:
    reader = session.read.format(order["format"]).options(**order["options"])
    if order.get("schema"):
        reader = reader.schema(order["schema"])
    if paths is not None:
        return reader.load([_GLOB.sub(r"\\\g<0>", path) for path in paths])
    return reader.load(order["path"]) if order.get("path") else reader.load()


def _intake(order: Mapping[str, Any]) -> list[Column]:
    """Return the columns of :data:`INTAKE` as expressions over the columns of rows."""
    kind = order["value.format"]
    if kind == "json":
        # By default Spark leaves nulls out, and readers could not tell null from missing.
        value = f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).cast("binary")
    else:
        column = f.col(order.get("value.column", "value"))
        value = column.cast("string").cast("binary") if kind == "text" else column.cast("binary")
    key, at = order.get("key.column"), order.get("timestamp.column")
    made = {
        "topic": f.lit(order["topic"]),
        "key": f.col(key).cast("string").cast("binary") if key else f.lit(None),
        "value": value,
        "timestamp": f.unix_millis(f.col(at).cast("timestamp")) if at else f.lit(None),
    }
    return [made.get(name, f.lit(None)).cast(kind).alias(name) for name, kind in INTAKE.items()]


class _FolderFiles:
    """Plans files of a folder: each as a whole, and once.

    The offset holds the files that are done, for as long as they are remembered, and the time
    before which every file counts as done.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self.partition: Mapping[str, Any] = {"path": order["path"]}

    def plan(self, session: SparkSession, offset: Offset | None) -> ReadPlan | None:
        done: dict[str, list[int]] = dict((offset or {}).get("files", {}))
        horizon: int = (offset or {}).get("before", 0)
        chosen: list[str] = []
        size = 0
        for name, changed, length in self._listed(session):
            if changed < horizon or done.get(name) == [changed, length]:
                continue
            if chosen and size + length > self._order["batch.max.bytes"]:
                break
            chosen.append(name)
            done[name] = [changed, length]
            size += length
            if len(chosen) == self._order["batch.max.files"]:
                break
        if not chosen:
            return None
        base = {} if _GLOB.search(self._order["path"]) else {"basePath": self._order["path"]}
        order = {**self._order, "options": {**base, **self._order["options"]}}
        newest = max(changed for changed, _ in done.values())
        horizon = max(horizon, newest - round(1000 * self._order["remember.ms"]))
        files = {name: place for name, place in done.items() if place[0] >= horizon}
        return ReadPlan(_load(session, order, chosen), {"before": horizon, "files": files})

    def _listed(self, session: SparkSession) -> list[tuple[str, int, int]]:
        """List the files that have not changed for ``settle.ms``, oldest first."""
        reader = (
            session.read.format("binaryFile")
            .option("pathGlobFilter", self._order["files"])
            .option("recursiveFileLookup", str(self._order["recursive"]).lower())
        )
        # Options with credentials of a file system count for this listing too.
        found = reader.options(**self._order["options"]).load(self._order["path"])
        columns = found.select("path", f.unix_millis("modificationTime"), "length").toArrow()
        settled = round(1000 * (time.time() - self._order["settle.ms"]))
        rows = zip(*(column.to_pylist() for column in columns.columns), strict=True)
        return sorted((row for row in rows if row[1] <= settled), key=lambda row: (row[1], row[0]))


class _ByColumn:
    """Plans rows in the order of a rising column."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._column: str = order["increasing.column"]
        options = order["options"]
        what = order.get("path") or options.get("dbtable") or options.get("query") or ""
        self.partition: Mapping[str, Any] = {
            "format": order["format"],
            "of": what,
            "column": self._column,
        }

    def plan(self, session: SparkSession, offset: Offset | None) -> ReadPlan | None:
        rows = _load(session, self._order, None)
        if self._column not in rows.columns:
            message = f"There is no column {self._column!r}, but {', '.join(rows.columns)}."
            raise ConnectorConfigError.of([("increasing.column", message)])
        kind = rows.schema[self._column].dataType
        times = isinstance(kind, TimestampType)
        rising = f.col(self._column)
        if offset is not None:
            rows = rows.filter(rising > _literal(offset["after"], kind, times=times))
        # Rows come in no promised order, so the last value of a batch is its end.
        shown = f.unix_micros(rising) if times else rising.cast("string")
        first = rows.select(rising).orderBy(rising.asc_nulls_last())
        last = first.limit(self._order["batch.max.rows"]).agg(f.max(rising).alias(self._column))
        (row,) = last.select(shown.alias("last")).collect()
        if row["last"] is None:
            return None
        end = _literal(row["last"], kind, times=times)
        return ReadPlan(rows.filter(rising <= end), {"after": row["last"]})


def _literal(value: Any, kind: Any, *, times: bool) -> Column:
    return f.timestamp_micros(f.lit(value)) if times else f.lit(value).cast(kind)


class _Once:
    """Plans everything there is, as one batch."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        options = order["options"]
        what = order.get("path") or options.get("dbtable") or options.get("query") or ""
        self.partition: Mapping[str, Any] = {"format": order["format"], "of": what}

    def plan(self, session: SparkSession, offset: Offset | None) -> ReadPlan | None:
        if offset is not None:
            return None
        return ReadPlan(_load(session, self._order, None), {"done": True})


# What Spark writes for a sink task: each batch, before its commit.


def folder_of(path: str, task: int, batch: int, before: int) -> str:
    """Return the folder of a batch: its name has the batch's number and the last batch's clock.

    A batch that comes again, perhaps with more records, gets the same folder; a batch of a job that
    began anew, because its commit topic was deleted, gets another.

    Examples
    --------
    >>> folder_of("/data/orders/", 0, 7, 1_763_800_000_000)
    '/data/orders/task=0/batch=000000007-1763800000000'
    """
    return f"{path.rstrip('/')}/task={task}/batch={batch:09}-{before}"


class SparkWrites:
    """Writes for one sink task.

    Parameters
    ----------
    order
        The task's configuration: format, path, options, and what values are.
    task
        The number of the task.
    """

    def __init__(self, order: Mapping[str, Any], task: int) -> None:
        self._order = order
        self._task = task

    def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
        """Write the messages of a batch and return what its tasks report."""
        ranges = [one for split in batch.splits for one in split.ranges if len(one)]
        if ranges:
            self._write(session, batch, ranges)
        return reported(batch, sum(map(len, ranges)))

    def _write(self, session: SparkSession, batch: TickedBatch, ranges: list[OffsetRange]) -> None:
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
        """Return messages as rows; tombstones, which have no body, make none."""
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
