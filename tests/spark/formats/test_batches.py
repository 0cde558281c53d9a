"""Batches whose rows Spark reads or writes, over failures between the rows and the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.connect.connectors.spark import (
    SparkSinkConnector,
    SparkSinkTask,
    SparkSourceConnector,
    SparkSourceTask,
)
from headrace.errors import TaskFailedError
from headrace.runtime.state.home import StateHome
from headrace.spark import StreamJob
from headrace.spark.formats import SparkReads, SparkWrites
from headrace.spark.session import get_session
from headrace.spark.ticks import TickedBatch, Ticks
from headrace.topology import Topology
from headrace.topology.operators.core import Delivery, Feed, FeedSink, MessageSource
from tests.spark.pipelines import LIMIT, Rig

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 500


def source_order(folder: Path, topic: str) -> Mapping[str, Any]:
    texts = {
        "format": "json",
        "path": str(folder),
        "schema": "n long, name string",
        "topic": topic,
        "key.column": "n",
        "settle.ms": "0",
        "poll.interval.ms": "100",
    }
    return SparkSourceTask().in_engine(SparkSourceConnector.config.parse(texts))


def sink_order(folder: Path, **keys: str) -> Mapping[str, Any]:
    texts = {"format": "parquet", "path": str(folder), "schema": "n long", **keys}
    return SparkSinkTask().in_engine(SparkSinkConnector.config.parse(texts))


class FailsOnce:
    """Has the first batch fail when its rows are there, and more to come before it comes again."""

    failures = 0

    def fail_once(self, table: pa.Table) -> pa.Table:
        if not self.failures:
            self.failures += 1
            self.more()
            raise TaskFailedError("killed in front of the commit")
        return table

    def more(self) -> None:
        raise NotImplementedError


def write(folder: Path, number: int) -> None:
    rows = range(number * ROWS, (number + 1) * ROWS)
    text = "".join(json.dumps({"n": row, "name": f"name {row}"}) + "\n" for row in rows)
    hidden = folder / f".{number}"
    hidden.write_text(text)
    hidden.rename(folder / f"{number}.json")


def test_rows_of_a_batch_that_failed_come_once(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(queues=2)
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, 0)

    class Reads(FailsOnce, SparkReads):
        def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
            return self.fail_once(super().run(session, batch))

        def more(self) -> None:
            write(folder, 1)

    def provide(topics: Sequence[str]) -> dict[str, list[str]]:
        return {t: [q.name for q in sorted(rig.client.queues(t, for_="write"))] for t in topics}

    job: StreamJob

    def committed() -> dict[str, Any]:
        return {name: one.offset for name, one in job.positions.items()}

    settings = rig.settings()
    reads = Reads(source_order(folder, topic), "poll", 2, lambda: get_session(settings), committed)
    topology = Topology(
        f"in-{topic}",
        (
            Feed(name="poll", parents=(), intake=None, generation=2),
            FeedSink(name="topics", parents=("poll",)),
        ),
    )
    job = StreamJob(topology, settings, ticks=Ticks(reads, provide=provide, work=reads))
    with job.start():
        job._await(lambda record: record.batch >= 1, None, LIMIT)
        write(folder, 2)
        job._await(lambda record: record.batch >= 2, None, LIMIT)
        assert job.statistics().records_in == 3 * ROWS
    assert reads.failures == 1
    found = rig.read(topic)
    assert sorted(json.loads(body)["n"] for _, body in found) == list(range(3 * ROWS))
    assert all(key == str(json.loads(body)["n"]) for key, body in found)
    (position,) = StateHome.of(f"in-{topic}", rig.client).record().positions.values()
    assert len(position.offset["files"]) == 3


def test_a_batch_that_failed_is_written_anew_also_where_it_is_longer(
    rig: Rig, tmp_path: Path
) -> None:
    topic = rig.topic(queues=2)
    folder = tmp_path / "out"

    def send(first: int) -> None:
        rig.send(topic, [json.dumps({"n": number}) for number in range(first, first + ROWS)])

    class Writes(FailsOnce, SparkWrites):
        def run(self, session: SparkSession, batch: TickedBatch) -> pa.Table:
            return self.fail_once(super().run(session, batch))

        def more(self) -> None:
            send(ROWS)

    send(0)
    writes = Writes(sink_order(folder, **{"metadata.columns": "topic,queue,offset"}), 0)
    job = f"out-{topic}"
    topology = Topology(
        job,
        (
            MessageSource(name="messages", parents=(), topic=topic),
            Delivery(name="put", parents=("messages",), outlet=None, generation=2),
        ),
    )
    with StreamJob(topology, rig.settings(), ticks=Ticks(work=writes)).start() as running:
        running.await_caught_up(LIMIT)
        send(2 * ROWS)
        running.await_caught_up(LIMIT)
        assert running.statistics().records_in == 3 * ROWS
    assert writes.failures == 1
    table = pq.read_table(folder)
    assert sorted(table.column("n").to_pylist()) == list(range(3 * ROWS))
    assert set(table.column("topic").to_pylist()) == {topic}
    record = StateHome.of(job, rig.client).record()
    assert {name: one.offset for name, one in record.positions.items()} == record.offsets
    assert sum(record.offsets.values()) == 3 * ROWS
