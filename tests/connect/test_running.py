"""A worker as a process: its start, its end by signals, its folder."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.client import AsyncClient
from headrace.connect.running import joined_cluster, running_worker
from headrace.errors import ConfigurationError
from tests.clusters import Cluster
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import quick_settings

ROOT = Path(__file__).parents[2]


class Program:
    """A worker in a process of its own."""

    def __init__(self, namesrv: str, folder: Path, grace: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.connect.program", namesrv, str(folder), grace],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self.http = httpx.Client(base_url=self._out.readline().strip(), timeout=10)

    def create(self, name: str, **config: str) -> None:
        self.http.put(f"/connectors/{name}/config", json=config_of(CHAOS, **config))
        deadline = time.monotonic() + 10
        while "RUNNING" not in {task["state"] for task in self.status(name)["tasks"]}:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def status(self, name: str) -> Any:
        return self.http.get(f"/connectors/{name}/status").json()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[float, Any]:
        """Wait for the end; give the seconds that it took, and what the worker told."""
        began = time.monotonic()
        told = self._out.read()
        status = self._process.wait(20)
        assert status == 0
        return time.monotonic() - began, json.loads(told) if told else None

    def close(self) -> None:
        self.http.close()
        self._process.kill()
        self._process.wait()
        self._out.close()


@pytest.fixture
def program(embedded: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    one = Program(embedded.namesrv, tmp_path, getattr(request, "param", "300 ms"))
    yield one
    one.close()


@pytest.mark.requirement(48)
@pytest.mark.requirement(50)
@pytest.mark.requirement(19)
def test_sigterm_ends_a_worker_within_its_grace_with_a_stuck_task_and_nothing_is_left(
    program: Program,
) -> None:
    for name, stop in (("a", ""), ("b", ""), ("stuck", "hang")):
        program.create(name, chaos_stop=stop)
    program.signal(signal.SIGTERM)
    took, told = program.end()
    assert took < 0.3 + 5
    assert told["alive"] == 0
    assert len(told["stories"]) == 6
    assert all("asked" in story for story in told["stories"])
    # Neither Spark nor a converter's library is in the supervisor; Arrow comes with the client.
    assert {"pyspark", "pandas", "fastavro"}.isdisjoint(told["modules"])


@pytest.mark.requirement(50)
@pytest.mark.parametrize("program", ["60 s"], indirect=True)
def test_a_second_sigterm_kills_what_does_not_stop(program: Program) -> None:
    program.create("stuck", chaos_stop="hang")
    program.signal(signal.SIGTERM)
    deadline = time.monotonic() + 5
    while program.http.get("/health").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    program.signal(signal.SIGTERM)
    took, told = program.end()
    assert took < 10
    assert told["alive"] == 0


@pytest.mark.requirement(16)
@pytest.mark.requirement(49)
def test_after_kill_9_right_behind_the_answer_the_connector_is_there(
    embedded: Cluster, tmp_path: Path
) -> None:
    first = Program(embedded.namesrv, tmp_path, "300 ms")
    try:
        answer = first.http.put("/connectors/a/config", json=config_of(CHAOS))
        first.signal(signal.SIGKILL)
        assert answer.status_code == 201
    finally:
        first.close()
    second = Program(embedded.namesrv, tmp_path, "300 ms")
    try:
        assert second.http.get("/connectors").json() == ["a"]
        second.create("a")
        second.signal(signal.SIGTERM)
        _, told = second.end()
        assert len(told["stories"]) >= 2
    finally:
        second.close()


def test_a_taken_port_is_said_before_anything_starts(embedded: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        group = tmp_path.name
        settings = quick_settings(data=tmp_path / "one", group=group)
        async with (
            AsyncClient(embedded.namesrv) as client,
            joined_cluster(client, settings) as cluster,
            running_worker(settings, FakeLauncher(), cluster) as one,
        ):
            port = int(one.url.rpartition(":")[2])
            taken = quick_settings(data=tmp_path / "two", group=group, port=port)
            launcher = FakeLauncher()
            with pytest.raises(ConfigurationError, match="cannot listen"):
                async with running_worker(taken, launcher, cluster):
                    pass
            assert launcher.closed

    asyncio.run(scenario())
