"""What Spark reads for a source task: planned by the engine, committed with the rows.

A plan is a frame and the position behind it.  It is made from the committed position alone, so
whatever was not committed is planned anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from headrace.errors import ConnectorConfigError
from headrace.protocol.transactions import Position
from headrace.spark.formats.frames import INTAKE, failures_told, fed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.spark.ticks import TickedBatch

__all__ = ["SparkReads", "planner_of"]

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next batch reads."""

    rows: DataFrame
    #: Where the source stands behind it.
    offset: Offset


class Planner(Protocol):
    """Decides what comes next."""

    #: Names the source's one partition.
    partition: Mapping[str, Any]

    def plan(self, session: SparkSession, offset: Offset | None) -> Plan | None:
        """Plan what stands behind an offset; None where there is nothing."""


class SparkReads:
    """Reads for one task: tells when there is something, and runs the batch that takes it.

    Parameters
    ----------
    order
        What the task says: format, path, options, and what rows become.
    operator
        The operator that the rows are fed into.
    generation
        Stamp of the positions.
    session
        Gives Spark.
    committed
        Gives the committed offset of each partition, by its name.
    """

    #: Nobody counts rows that Spark reads before they are read.
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
        self._next: Plan | None = None
        self._idle_until = 0.0

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait until there is something to read."""
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
        """Read what was planned, and stage it as messages."""
        # The frame has a session already.
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


#: What a name must not say to Spark by chance.
_GLOB = re.compile(r"[{}\[\]*?\\]")


def planner_of(order: Mapping[str, Any]) -> Planner:
    """Choose how a source is read."""
    ways: Mapping[str, Callable[[Mapping[str, Any]], Planner]]
    ways = {"files": _Files, "column": _ByColumn, "once": _Once}
    return ways[order["read"]](order)


def _load(session: SparkSession, order: Mapping[str, Any], paths: list[str] | None) -> DataFrame:
    reader = session.read.format(order["format"]).options(**order["options"])
    if order.get("schema"):
        reader = reader.schema(order["schema"])
    if paths is not None:
        return reader.load([_GLOB.sub(r"\\\g<0>", path) for path in paths])
    return reader.load(order["path"]) if order.get("path") else reader.load()


def _intake(order: Mapping[str, Any]) -> list[Column]:
    """Give the columns of messages, made of those of rows."""
    kind = order["value.format"]
    if kind == "json":
        # Spark leaves out what is null, which those who read cannot tell from what is not there.
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


class _Files:
    """Files of a folder, each whole and once.

    The offset holds the files that are done, as long as they are remembered, and the time before
    which a file counts as done.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self.partition: Mapping[str, Any] = {"path": order["path"]}

    def plan(self, session: SparkSession, offset: Offset | None) -> Plan | None:
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
        return Plan(_load(session, order, chosen), {"before": horizon, "files": files})

    def _listed(self, session: SparkSession) -> list[tuple[str, int, int]]:
        """List files that are finished, the oldest first."""
        reader = (
            session.read.format("binaryFile")
            .option("pathGlobFilter", self._order["files"])
            .option("recursiveFileLookup", str(self._order["recursive"]).lower())
        )
        # Where the name of a file system says who may read it, that is the same for both.
        found = reader.options(**self._order["options"]).load(self._order["path"])
        columns = found.select("path", f.unix_millis("modificationTime"), "length").toArrow()
        settled = round(1000 * (time.time() - self._order["settle.ms"]))
        rows = zip(*(column.to_pylist() for column in columns.columns), strict=True)
        return sorted((row for row in rows if row[1] <= settled), key=lambda row: (row[1], row[0]))


class _ByColumn:
    """Rows in the order of a column that rises."""

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

    def plan(self, session: SparkSession, offset: Offset | None) -> Plan | None:
        rows = _load(session, self._order, None)
        if self._column not in rows.columns:
            message = f"There is no column {self._column!r}, but {', '.join(rows.columns)}."
            raise ConnectorConfigError.of([("increasing.column", message)])
        kind = rows.schema[self._column].dataType
        times = isinstance(kind, TimestampType)
        rising = f.col(self._column)
        if offset is not None:
            rows = rows.filter(rising > _literal(offset["after"], kind, times=times))
        # No order in which rows come is promised: the last value of a batch decides.
        shown = f.unix_micros(rising) if times else rising.cast("string")
        first = rows.select(rising).orderBy(rising.asc_nulls_last())
        last = first.limit(self._order["batch.max.rows"]).agg(f.max(rising).alias(self._column))
        (row,) = last.select(shown.alias("last")).collect()
        if row["last"] is None:
            return None
        end = _literal(row["last"], kind, times=times)
        return Plan(rows.filter(rising <= end), {"after": row["last"]})


def _literal(value: Any, kind: Any, *, times: bool) -> Column:
    return f.timestamp_micros(f.lit(value)) if times else f.lit(value).cast(kind)


class _Once:
    """Everything that there is, in one batch."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        options = order["options"]
        what = order.get("path") or options.get("dbtable") or options.get("query") or ""
        self.partition: Mapping[str, Any] = {"format": order["format"], "of": what}

    def plan(self, session: SparkSession, offset: Offset | None) -> Plan | None:
        if offset is not None:
            return None
        return Plan(_load(session, self._order, None), {"done": True})
