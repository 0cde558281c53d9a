"""Connectors in real hosts: killed at any point, every line arrives once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.connectors.file import FileSinkConnector, FileSourceConnector
from headrace.connect.hosts import ProcessLauncher, TaskChannel
from headrace.connect.records import Queue
from headrace.connect.worker import Exited, Started
from tests.connect.connectors.test_kill_points import SINKS, SOURCES, Sink, Source
from tests.connect.hosts.running import Heard, launched, launcher_in, on_loop

QUEUE = Queue("lines", "broker-a", 0)
SECOND = timedelta(seconds=1)
SOURCE = f"{FileSourceConnector.__module__}:FileSourceConnector"
SINK = f"{FileSinkConnector.__module__}:FileSinkConnector"


async def task(launcher: ProcessLauncher, **config: Any) -> tuple[Any, Heard, TaskChannel]:
    host, heard = await launched(launcher, **config)
    return host, heard, TaskChannel((await heard.first(Started)).address)


def rows(values: list[bytes], first: int) -> pa.RecordBatch:
    count = len(values)
    columns: dict[str, list[Any]] = {
        "topic": [QUEUE.topic] * count,
        "broker": [QUEUE.broker] * count,
        "queue": [QUEUE.queue_id] * count,
        "offset": list(range(first, first + count)),
        "key": [None] * count,
        "value": values,
        "properties": [None] * count,
        "timestamp": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SINK_SCHEMA)


@pytest.mark.requirement(45)
@pytest.mark.defect(6)
@on_loop
async def test_lines_of_a_killed_source_come_once(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{number}\n" for number in range(1000)))
    committed: list[Any] = []
    taken: list[str] = []
    async with launcher_in(tmp_path) as launcher:
        config = {"connector_class": SOURCE, "file": str(path), "topic": "lines"}
        config["batch_max_rows"] = "100"
        for life in range(4):
            host, heard, channel = await task(launcher, positions=committed[:], **config)
            with channel:
                for batch in (1, 2, 3):
                    given = await asyncio.to_thread(
                        channel.poll, batch, max_records=100, wait=5 * SECOND
                    )
                    if batch < 3:  # the third is lost with its host
                        taken += [value.decode() for value in given.rows["value"].to_pylist()]
                        committed[:] = given.positions or committed
            assert life < 3 or len(taken) == 800
            host.kill()
            await heard.first(Exited)
    assert taken == [str(number) for number in range(800)]


@pytest.mark.requirement(45)
@on_loop
async def test_lines_of_a_killed_sink_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    config = {"connector_class": SINK, "file": str(path), "topics": "lines"}
    async with launcher_in(tmp_path) as launcher:
        for life in range(4):
            host, heard, channel = await task(launcher, role="sink", **config)
            with channel:
                kept = await asyncio.to_thread(channel.open, [QUEUE])
                assert kept is not None
                first = kept.get(QUEUE, 0)
                assert first == 10 * life
                values = [str(first + more).encode() for more in range(10)]
                end = first + 10
                await asyncio.to_thread(channel.put, 1, [(QUEUE, first, end)], rows(values, first))
                await asyncio.to_thread(channel.flush, 1, {QUEUE: end})
                lost = rows([b"lost"], end)
                await asyncio.to_thread(channel.put, 2, [(QUEUE, end, end + 1)], lost)
            host.kill()
            await heard.first(Exited)
        _, _, channel = await task(launcher, role="sink", **config)
        with channel:
            await asyncio.to_thread(channel.open, [QUEUE])
    assert path.read_text() == "".join(f"{number}\n" for number in range(40))


@pytest.mark.parametrize(("name", "case"), SOURCES.items())
def test_source_runs_in_a_host_by_its_short_name(name: str, case: Source, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    config = {"connector.class": f"{name}-source", **case.made(tmp_path / "in")}

    @on_loop
    async def run() -> None:
        async with launcher_in(tmp_path) as launcher:
            _, _, channel = await task(launcher, **config)
            with channel:
                given = await asyncio.to_thread(channel.poll, 1, max_records=2, wait=5 * SECOND)
                assert given.rows.num_rows > 0
                assert given.positions

    run()


@pytest.mark.parametrize("name", ["file", "files", "sqlite"])
def test_sink_runs_in_a_host_by_its_short_name(name: str, tmp_path: Path) -> None:
    case: Sink = SINKS[name]
    (tmp_path / "out").mkdir()
    converting = {
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    config = {"connector.class": f"{name}-sink", "topics": "t", **converting}
    queue = QUEUE._replace(topic="t")

    @on_loop
    async def run() -> None:
        async with launcher_in(tmp_path) as launcher:
            _, _, channel = await task(
                launcher, role="sink", **config, **case.config(tmp_path / "out")
            )
            with channel:
                await asyncio.to_thread(channel.open, [queue])
                given = rows([b'{"n":0}', b'{"n":1}'], 0)
                topics = pa.array(["t", "t"])
                given = given.set_column(0, SINK_SCHEMA.field("topic"), topics)
                await asyncio.to_thread(channel.put, 1, [(queue, 0, 2)], given)
                await asyncio.to_thread(channel.flush, 1, {queue: 2})

    run()
    assert case.written(tmp_path / "out") == [0, 1]
