"""Rows from a file to a topic and from there to a file, through hosts, engine and broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.connect.data import DataPlane
from headrace.connect.worker import Started
from headrace.errors import EngineAwayError
from tests.clusters import Cluster
from tests.connect.data.planes import plane_at, sink, source, task, until, waits_for, written
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LINES = 1_000


async def handed_over(plane: DataPlane, connector: str, messages: int) -> None:
    """Wait until so many messages of all queues are committed as handed over."""
    async with asyncio.timeout(120):
        while True:
            ends = [entry.offset for entry in await plane.read(connector, {})]
            if sum(end["rocketmq_queue_offset"] for end in ends if end) == messages:
                return
            await asyncio.sleep(0.1)


@on_loop
async def test_lines_move_once_over_the_death_of_a_host_and_of_the_engine(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    lines = [f"line {number}" for number in range(3 * LINES)]
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{line}\n" for line in lines[:LINES]))
    async with plane_at(cluster.namesrv, tmp_path) as plane:
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
        # It takes long to start again: what tasks wait for is told before.
        await until(lambda: waits_for(again).startswith("a new engine"))
        await until(lambda: waits_for(writing).startswith("a new engine"))
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[2 * LINES :])
        await until(lambda: len(written(tmp_path)) >= 3 * LINES)
        assert sorted(written(tmp_path)) == sorted(lines)
        await handed_over(plane, f"out-{topic}", 3 * LINES)


@pytest.mark.slow
@on_loop
async def test_levels_of_loggers_reach_the_engine_and_the_one_that_follows_it(
    embedded: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "engine" / "engine.log"

    async def asked_until_it_is_logged(plane: DataPlane, seen: int) -> None:
        async with asyncio.timeout(120):
            while b"DEBUG:headrace.connect.data.engine:asked to ask" not in log.read_bytes()[seen:]:
                with suppress(EngineAwayError):
                    await plane.read("nobody", {})
                await asyncio.sleep(0.05)

    async with plane_at(embedded.namesrv, tmp_path) as plane:
        await plane.read("nobody", {})
        assert b"asked to" not in log.read_bytes()
        plane.set_level("headrace.connect.data", logging.DEBUG)
        await asked_until_it_is_logged(plane, 0)
        assert plane.engine.pid is not None
        os.kill(plane.engine.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        await asked_until_it_is_logged(plane, log.stat().st_size)


def after_flush(calls: list[str]) -> list[str]:
    """What was called after the first flush."""
    flushes = [at for at, call in enumerate(calls) if call.startswith("flush")]
    return calls[flushes[0] + 1 :] if flushes else []


def put_in(calls: list[str]) -> list[str]:
    """Records that were put."""
    return [one for call in calls if call.startswith("put") for one in call.split()[1:]]


@pytest.mark.slow
@on_loop
async def test_a_sink_that_goes_back_is_given_everything_again_and_goes_on(
    embedded: Cluster, tmp_path: Path
) -> None:
    topic, seen = "again", tmp_path / "out.txt"
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(LINES)))
    asking = "tests.connect.hosts.asking:AskingConnector"
    async with plane_at(embedded.namesrv, tmp_path) as plane:
        reading, writing = Heard(), Heard()
        await plane.launch(source(tmp_path, topic, 1), reading)
        await reading.first(Started)
        spec = task(
            f"out-{topic}",
            "sink",
            connector_class=asking,
            topics=topic,
            seen=str(seen),
            goes_back="true",
        )
        await plane.launch(spec, writing)
        await writing.first(Started)
        await until(lambda: len(put_in(after_flush(written(tmp_path)))) >= LINES)
        await handed_over(plane, f"out-{topic}", LINES)
    calls = after_flush(written(tmp_path))
    assert sum(call.startswith("open") for call in calls) == 1
    assert len(set(put_in(calls))) == len(put_in(calls)) == LINES


@pytest.mark.slow
@pytest.mark.defect(13)
@on_loop
async def test_a_sink_that_was_stopped_is_not_given_anything_again(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(LINES)))
    async with plane_at(cluster.namesrv, tmp_path) as plane:
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
