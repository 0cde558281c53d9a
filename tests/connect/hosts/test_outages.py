"""What a connector or task reaches is away for a while: it says so, tries again and goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.hosts import TaskChannel
from headrace.connect.records import Queue
from headrace.connect.worker import Failed, Started, WaitsFor
from tests.connect.hosts.running import Heard, await_that, launched, launcher_in, on_loop

QUEUE = Queue("t", "b", 0)
ROWS = pa.RecordBatch.from_pylist(
    [{"topic": "t", "broker": "b", "queue": 0, "offset": n} for n in range(3)],
    schema=SINK_SCHEMA,
)


class Peer:
    """What the connector of a test reaches."""

    def __init__(self, folder: Path) -> None:
        self.away, self._journal = folder / "away", folder / "journal"

    def texts(self, kind: str) -> dict[str, Any]:
        """Give the config of a connector that reaches it."""
        return {
            "connector_class": f"tests.connect.hosts.fickle:{kind}",
            "away": str(self.away),
            "journal": str(self._journal),
            "errors_retry_delay_max_ms": "50",
        }

    def done(self) -> list[str]:
        """Give what could be done there."""
        return self._journal.read_text().splitlines() if self._journal.exists() else []


def waits_for(heard: Heard) -> list[str]:
    return [event.what for event in heard.events if isinstance(event, WaitsFor)]


async def comes_back(peer: Peer, heard: Heard, call: str) -> None:
    """See that the outage is told, and that it is over when it is."""
    await await_that(lambda: any(f"nobody answers {call}" in one for one in waits_for(heard)))
    assert call not in {one.split()[0] for one in peer.done()}
    peer.away.unlink()
    await await_that(lambda: waits_for(heard)[-1] == "")


@pytest.mark.parametrize("call", ["start", "open", "put", "flush"])
@on_loop
async def test_a_sink_goes_on_where_it_was(tmp_path: Path, call: str) -> None:
    peer = Peer(tmp_path)
    peer.away.write_text(call)
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, role="sink", **peer.texts("FickleSink"))
        if call == "start":
            await comes_back(peer, heard, call)
        started = await heard.first(Started)

        def moves() -> None:
            with TaskChannel(started.address) as channel:
                channel.open([QUEUE])
                channel.put(1, [(QUEUE, 0, 3)], ROWS)
                channel.flush(1, {QUEUE: 3})

        moving = asyncio.create_task(asyncio.to_thread(moves))
        if call != "start":
            await comes_back(peer, heard, call)
        await moving
        assert host.alive()
        assert not any(isinstance(event, Failed) for event in heard.events)
    assert peer.done() == ["start", "open 1", "put 3", "flush 3"]


@pytest.mark.parametrize("call", ["start", "poll", "commit"])
@on_loop
async def test_a_source_goes_on_where_it_was(tmp_path: Path, call: str) -> None:
    peer = Peer(tmp_path)
    peer.away.write_text(call)
    async with launcher_in(tmp_path, ahead_records=5) as launcher:
        host, heard = await launched(launcher, **peer.texts("FickleSource"))
        if call == "start":
            await comes_back(peer, heard, call)
        started = await heard.first(Started)
        with TaskChannel(started.address) as channel:
            if call == "poll":
                await comes_back(peer, heard, call)
            polled = await asyncio.to_thread(
                channel.poll, 1, max_records=3, wait=timedelta(seconds=10)
            )
            assert polled.rows["value"].to_pylist() == [b"1", b"2", b"3"][: len(polled.rows)]
            await asyncio.to_thread(channel.committed, 1)
            if call == "commit":
                await comes_back(peer, heard, call)
            await await_that(lambda: "commit" in peer.done())
        assert host.alive()
        assert not any(isinstance(event, Failed) for event in heard.events)


@on_loop
async def test_a_connector_that_cannot_start_is_started_when_it_can(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.away.write_text("connector")
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, role="sink", task=None, **peer.texts("FickleSink"))
        await comes_back(peer, heard, "connector")
        await heard.first(Started)
    assert peer.done() == ["connector"]


@on_loop
async def test_a_connector_says_what_its_tasks_are_when_it_can(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.away.write_text("tasks")
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, role="sink", task=None, **peer.texts("FickleSink"))
        await heard.first(Started)
        asking = asyncio.create_task(host.task_configs())
        await await_that(lambda: "nobody answers tasks" in host.waits_for)
        await comes_back(peer, heard, "tasks")
        answer = await asking
        assert answer is not None
        assert answer.value == [{}]
        assert host.waits_for == ""


@on_loop
async def test_a_probe_says_what_an_idle_task_waits_for_and_does_not_fail_it(
    tmp_path: Path,
) -> None:
    peer = Peer(tmp_path)
    async with launcher_in(tmp_path, probe_interval=0.02) as launcher:
        host, heard = await launched(launcher, role="sink", **peer.texts("FickleSink"))
        await heard.first(Started)
        await await_that(lambda: "healthy" in peer.done())
        peer.away.write_text("healthy")
        await await_that(lambda: any("nobody answers healthy" in one for one in waits_for(heard)))
        await await_that(lambda: heard.kinds().count("Healthy") > 5)
        peer.away.unlink()
        await await_that(lambda: waits_for(heard)[-1] == "")
        assert "Unhealthy" not in heard.kinds()
        assert host.alive()


@on_loop
async def test_patience_ends_where_a_limit_is_set(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.away.write_text("start")
    texts = {**peer.texts("FickleSink"), "errors_retry_timeout": "100"}
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, role="sink", **texts)
        failed = await heard.first(Failed)
        assert "nobody answers start" in failed.cause.summary
        assert len(waits_for(heard)) > 1
