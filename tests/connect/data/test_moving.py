"""Rows from a file to a topic and from there to a file, through hosts, engine and broker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.connect.data import DataPlane
from headrace.connect.hosts import ProcessLauncher
from headrace.connect.worker import HostSpec, Started
from headrace.connect.worker.answers import OffsetEntry
from tests.clusters import Cluster
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LINES = 1_000


@asynccontextmanager
async def plane_of(cluster: Cluster, folder: Path) -> AsyncIterator[DataPlane]:
    async with (
        ProcessLauncher(folder / "hosts") as launcher,
        DataPlane(launcher, cluster.namesrv, folder / "engine") as plane,
    ):
        yield plane


def source(folder: Path, topic: str, generation: int) -> HostSpec:
    config = {
        "connector.class": "file-source",
        "file": str(folder / "in.txt"),
        "topic": topic,
    }
    return HostSpec(
        kind="task",
        connector=f"in-{topic}",
        task=0,
        generation=generation,
        config=config,
        role="source",
    )


def sink(folder: Path, topic: str, generation: int) -> HostSpec:
    config = {
        "connector.class": "file-sink",
        "file": str(folder / "out.txt"),
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.05)


async def handed_over(plane: DataPlane, connector: str, messages: int) -> None:
    """Wait until so many messages of all queues are committed as handed over."""
    async with asyncio.timeout(120):
        while True:
            ends = [entry.offset for entry in await plane.read(connector, {})]
            if sum(end["rocketmq_queue_offset"] for end in ends if end) == messages:
                return
            await asyncio.sleep(0.1)


def written(folder: Path) -> list[str]:
    out = folder / "out.txt"
    return out.read_text().splitlines() if out.exists() else []


@on_loop
async def test_lines_move_once_over_the_death_of_a_host_and_of_the_engine(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    lines = [f"line {number}" for number in range(3 * LINES)]
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{line}\n" for line in lines[:LINES]))
    async with plane_of(cluster, tmp_path) as plane:
        reading, writing = Heard(), Heard()
        first = await plane.launch(source(tmp_path, topic, 1), reading)
        await plane.launch(sink(tmp_path, topic, 1), writing)
        await reading.first(Started)
        await writing.first(Started)
        await until(lambda: len(written(tmp_path)) >= LINES)

        os.kill(first.pid, signal.SIGKILL)
        await reading.end()
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[LINES : 2 * LINES])
        again = Heard()
        await plane.launch(source(tmp_path, topic, 2), again)
        await again.first(Started)
        await until(lambda: len(written(tmp_path)) >= 2 * LINES)
        assert sorted(written(tmp_path)) == sorted(lines[: 2 * LINES])
        (entry,) = await plane.read(f"in-{topic}", {})
        assert entry.offset is not None
        assert entry.offset["position"] == len("".join(f"{line}\n" for line in lines[: 2 * LINES]))

        assert plane.engine.pid is not None
        os.kill(plane.engine.pid, signal.SIGKILL)
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[2 * LINES :])
        await until(lambda: len(written(tmp_path)) >= 3 * LINES)
        assert sorted(written(tmp_path)) == sorted(lines)
        await handed_over(plane, f"out-{topic}", 3 * LINES)


@pytest.mark.defect(13)
@on_loop
async def test_a_sink_that_was_stopped_is_not_given_anything_again(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(LINES)))
    async with plane_of(cluster, tmp_path) as plane:
        reading, writing = Heard(), Heard()
        await plane.launch(source(tmp_path, topic, 1), reading)
        host = await plane.launch(sink(tmp_path, topic, 1), writing)
        await reading.first(Started)
        await writing.first(Started)
        await until(lambda: len(written(tmp_path)) >= LINES)
        host.ask_stop()
        await writing.end()
        ends = [entry.offset for entry in await plane.read(f"out-{topic}", {})]
        assert sum(end["rocketmq_queue_offset"] for end in ends if end) == LINES


@on_loop
async def test_positions_of_a_connector_that_does_not_run_can_be_changed(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    async with plane_of(cluster, tmp_path) as plane:
        heard = Heard()
        host = await plane.launch(source(tmp_path, topic, 1), heard)
        await heard.first(Started)
        async with asyncio.timeout(60):
            while not (found := await plane.read(f"in-{topic}", {})):
                await asyncio.sleep(0.1)
        host.ask_stop()
        await heard.end()
        (entry,) = found
        changed = OffsetEntry(entry.partition, {"position": 2})
        await plane.alter(f"in-{topic}", {}, [changed])
        assert await plane.read(f"in-{topic}", {}) == [changed]
        await plane.reset(f"in-{topic}", {})
        assert await plane.read(f"in-{topic}", {}) == []
