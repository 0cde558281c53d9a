"""Tasks that are stuck in every callback: REST answers, others go on, and SIGTERM ends it all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.clusters import Cluster
from tests.connect.chaos.workers import until
from tests.run.forking import descendants

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.slow]

ROOT = Path(__file__).parents[3]
CHAOS = "headrace.connect.testing.chaos"
GRACE = 3
#: What REST takes at most, by the issue of Connect, s.
ANSWER = 0.5
STUCK = {
    "stuck-in-poll": {"connector.class": f"{CHAOS}.ChaosSource", "chaos.poll": "hang-hard @ 2"},
    # More than the batches that run at once, which is what would hold all up.
    **{
        f"stuck-in-put{more}": {"connector.class": f"{CHAOS}.ChaosSink", "chaos.put": "hang-hard"}
        for more in ("", "-2", "-3", "-4")
    },
    "stuck-in-start": {"connector.class": f"{CHAOS}.ChaosSource", "chaos.start": "hang-hard"},
    "stuck-in-stop": {"connector.class": f"{CHAOS}.ChaosSource", "chaos.stop": "hang-hard"},
}


class Standing:
    """A worker that stands alone, and the time of each of its answers."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self.log = folder / "worker.log"
        command = [sys.executable, "-m", "headrace", "connect", "worker", "--port", "0"]
        command += ["--namesrv", namesrv, "--data", str(folder / "worker"), "--plugins", CHAOS]
        command += ["--graceful-timeout", f"{GRACE} s"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listening on" in line, self.log.read_text()
        self._http = httpx.Client(base_url=line.split()[5].rstrip(","), timeout=30)
        self.took: list[float] = []

    def ask(self, method: str, path: str, **given: Any) -> Any:
        began = time.monotonic()
        answer = self._http.request(method, path, **given)
        if method == "GET":  # others ask the plugin, which may take its time
            self.took.append(time.monotonic() - began)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def put(self, name: str, config: dict[str, str]) -> None:
        self.ask("PUT", f"/connectors/{name}/config", json=config)

    def task(self, name: str) -> Any:
        """What the worker tells of a connector's task."""
        units = self.ask("GET", "/admin/tasks")
        return next((u for u in units if (u["connector"], u["task"]) == (name, 0)), None)

    def rows(self, name: str) -> int:
        """How many rows of a source are committed."""
        told = self.ask("GET", f"/connectors/{name}/offsets")["offsets"]
        return sum(one["offset"]["row"] for one in told)

    def close(self) -> None:
        self._http.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def worker(embedded: Cluster, tmp_path: Path) -> Iterator[Standing]:
    one = Standing(embedded.namesrv, tmp_path)
    try:
        yield one
    finally:
        one.close()


def lives(process: psutil.Process) -> bool:
    """Whether it is there, and not only its number: its parent may not have heard of its end."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.requirement(25)
@pytest.mark.requirement(27)
@pytest.mark.requirement(48)
def test_stuck_tasks_hold_up_neither_rest_nor_other_tasks_nor_the_end(
    worker: Standing, tmp_path: Path
) -> None:
    rows = {"fields": '{"id": "sequence"}', "rate": "200", "topic": "well"}
    worker.put("well", {"connector.class": "datagen-source", **rows})
    until(lambda: worker.rows("well"), 120, "rows of the task that is well")
    for name, config in STUCK.items():
        more = {"topics": "well"} if "Sink" in config["connector.class"] else {"topic": name}
        worker.put(name, config | more | {"trace": str(tmp_path / f"{name}.trace")})

    def called(name: str, callback: str) -> bool:
        trace = tmp_path / f"{name}.trace"
        return trace.exists() and f"{callback} " in trace.read_text()

    for name in STUCK:
        callback = "poll" if name == "stuck-in-stop" else name.split("-")[2]
        until(lambda n=name, c=callback: called(n, c), 120, name)  # type: ignore[misc]
    worker.ask("PUT", "/connectors/stuck-in-stop/stop")
    before, worker.took = worker.rows("well"), []
    end = time.monotonic() + 3

    def goes_on() -> bool:
        worker.ask("GET", "/connectors?expand=status&expand=info")
        return time.monotonic() > end and worker.rows("well") > before

    until(goes_on, 180, "more rows of the task that is well")
    worker.took.sort()
    print(f"{len(worker.took)} answers, the longest took {worker.took[-1]:.3f} s")
    # One in a hundred may meet a machine that is busy with something else.
    assert worker.took[len(worker.took) * 99 // 100] < ANSWER
    assert worker.task("stuck-in-start")["phase"] == "PENDING"
    family = descendants(worker.process.pid)
    began = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    took = time.monotonic() - began
    print(f"gone {took:.1f} s after SIGTERM")
    assert took < GRACE + 5
    assert [one for one in family if lives(one)] == []
