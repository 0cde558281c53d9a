"""Rows that Spark reads and writes, through hosts, engine and broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.client import Admin, Client, Message, Producer
from headrace.connect.worker import HostSpec
from tests.clusters import Cluster
from tests.connect.connectors.rocketmq.conftest import stored
from tests.connect.data.planes import plane_at, until
from tests.connect.data.test_moving import handed_over
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.slow]

ROWS = 1_000


def source(folder: Path, topic: str, generation: int = 1) -> HostSpec:
    config = {
        "connector.class": "spark-source",
        "format": "csv",
        "path": str(folder / "in"),
        "schema": "n long, name string",
        "option.header": "true",
        "settle.ms": "0",
        "poll.interval.ms": "200",
        "topic": topic,
        "key.column": "n",
    }
    return HostSpec(
        kind="task",
        connector=f"in-{topic}",
        task=0,
        generation=generation,
        config=config,
        role="source",
    )


def sink(folder: Path, topic: str, generation: int = 1) -> HostSpec:
    config = {
        "connector.class": "spark-sink",
        "format": "parquet",
        "path": str(folder / "out"),
        "schema": "n long, name string",
        "metadata.columns": "key",
        "topics": topic,
    }
    return HostSpec(
        kind="task",
        connector=f"out-{topic}",
        task=0,
        generation=generation,
        config=config,
        role="sink",
    )


def write(folder: Path, first: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [f"{number},name {number}\n" for number in range(first, first + ROWS)]
    hidden = folder / "in" / f"_{first}"
    hidden.write_text("n,name\n" + "".join(lines))
    hidden.rename(folder / "in" / f"{first}.csv")


def written(folder: Path) -> list[int]:
    """Read what is there; Spark's folders are renamed into place when they are whole."""
    found: list[int] = []
    for path in (folder / "out").glob("task=*/batch=*/part-*.parquet"):
        try:
            found += pq.read_table(path).column("n").to_pylist()
        except FileNotFoundError:  # the batch is written anew
            continue
    return sorted(found)


@on_loop
async def test_rows_move_once_over_the_death_of_the_engine(
    embedded: Cluster, tmp_path: Path
) -> None:
    topic = f"rows-{os.getpid()}"
    write(tmp_path, 0)
    reading, writing = Heard(), Heard()

    def all_there(count: int) -> bool:
        for heard in (reading, writing):
            assert "Failed" not in heard.kinds(), heard.events
        return len(written(tmp_path)) >= count

    async with plane_at(embedded.namesrv, tmp_path) as plane:
        await plane.launch(source(tmp_path, topic), reading)
        await until(lambda: "Started" in reading.kinds())
        with Client(embedded.namesrv) as client:
            await until(lambda: topic in Admin(client).topics())
        await plane.launch(sink(tmp_path, topic), writing)
        await until(lambda: "Started" in writing.kinds())
        await until(lambda: all_there(ROWS))
        assert plane.engine.pid is not None
        os.kill(plane.engine.pid, signal.SIGKILL)
        write(tmp_path, ROWS)
        await until(lambda: all_there(2 * ROWS))
        await handed_over(plane, f"out-{topic}", 2 * ROWS)
        (entry,) = await plane.read(f"in-{topic}", {})
    assert written(tmp_path) == list(range(2 * ROWS))
    assert entry.offset is not None
    assert len(entry.offset["files"]) == 2
    with Client(embedded.namesrv) as client:
        messages = stored(client, topic, 2 * ROWS)
    assert len(messages) == 2 * ROWS
    first = next(one for one in messages if one.keys == "7")
    assert json.loads(first.body) == {"n": 7, "name": "name 7"}


@on_loop
async def test_a_batch_that_spark_cannot_write_fails_the_task_and_is_not_committed(
    embedded: Cluster, make_rows: Callable[[int], str], tmp_path: Path
) -> None:
    topic = make_rows(3)
    async with plane_at(embedded.namesrv, tmp_path) as plane:
        heard = Heard()
        await plane.launch(sink(tmp_path, topic), heard)
        async with asyncio.timeout(240):
            while "Failed" not in heard.kinds():
                await asyncio.sleep(0.1)
        assert await plane.read(f"out-{topic}", {}) == []
    assert written(tmp_path) == []


@pytest.fixture
def make_rows(embedded: Cluster) -> Callable[[int], str]:
    """Make a topic with messages that are no JSON."""

    def make(count: int) -> str:
        topic = f"bad-{os.getpid()}"
        with Client(embedded.namesrv) as client:
            Admin(client).create_topic(topic, queues=1)
            for _ in range(count):
                Producer(client).send(Message(topic=topic, body=b"no json"))
        return topic

    return make
