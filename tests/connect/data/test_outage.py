"""Brokers that are away for a while: tasks wait, say so, and go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.data import DataPlane
from headrace.connect.hosts import HostSettings, ProcessLauncher
from headrace.settings import JobSettings
from tests.connect.data.planes import written
from tests.connect.running import Running, quick_settings, running
from tests.faults.broker import running_broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.slow]

#: Far less patience than in real life, so that all of it is used up while the broker is away.
IMPATIENT = JobSettings(connect_timeout="1 s", request_timeout="5 s", retry_timeout="1 s")  # type: ignore[arg-type]


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def tasks(worker: Running) -> list[dict[str, Any]]:
    names = worker.ask("GET", "/connectors").json()
    return [worker.ask("GET", f"/connectors/{name}/tasks/0/status").json() for name in names]


def test_tasks_wait_for_brokers_that_are_away_and_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    lines = [f"line {number}" for number in range(300)]
    file.write_text("".join(f"{line}\n" for line in lines[:100]))
    with running_broker(tmp_path / "broker") as broker:

        def make() -> DataPlane:
            launcher = ProcessLauncher(tmp_path / "hosts", HostSettings(probe_interval=0))
            return DataPlane(launcher, broker.address, tmp_path / "engine", jobs=IMPATIENT)

        times = quick_settings(start_timeout="120 s", graceful_timeout="5 s", cancel_timeout="5 s")
        with running(make, lambda plane: plane, settings=times) as worker:  # type: ignore[arg-type,return-value]
            reading = {"connector.class": "file-source", "file": str(file), "topic": "moved"}
            out = str(tmp_path / "out.txt")
            writing = {"connector.class": "file-sink", "file": out, "topics": "moved"}
            for name, config in (("in", reading), ("out", writing)):
                made = worker.ask("POST", "/connectors", json={"name": name, "config": config})
                assert made.status_code == 201, made.text
            await_that(lambda: len(written(tmp_path)) == 100)

            broker.kill()
            with file.open("a") as more:
                more.writelines(f"{line}\n" for line in lines[100:])
            await_that(lambda: all("waits_for" in task for task in tasks(worker)))
            for task in tasks(worker):
                assert task["state"] == "RUNNING"
                assert broker.address in task["waits_for"]
            # Their patience is at its end more than once; REST answers meanwhile, within 10 s each.
            until = time.monotonic() + 8
            while time.monotonic() < until:
                tasks(worker)
                time.sleep(0.1)

            broker.restart()
            await_that(lambda: len(written(tmp_path)) >= 300)
            await_that(lambda: not any("waits_for" in task for task in tasks(worker)))
            assert [task["state"] for task in tasks(worker)] == ["RUNNING", "RUNNING"]
            assert sorted(written(tmp_path)) == sorted(lines)
