"""Workers that stand still or are cut off: what they ran has ended before others run it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client
from tests.connect.chaos.marked import Mark, read_marks
from tests.connect.chaos.workers import show_end
from tests.transactions.cases.proxy import Proxy, running_proxy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.connect.coordination.host_program"
NAMES = ("w1", "w2")


class Member:
    """A worker in a process of its own."""

    def __init__(self, address: str, name: str, folder: Path, *words: str) -> None:
        self.name, self.log = name, folder / f"log-{name}"
        command = [sys.executable, "-m", PROGRAM, address, name, str(folder), *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """End in order."""
        self.process.terminate()
        self.process.wait(60)

    def close(self) -> None:
        # One that stands still ends nothing itself; its keepers end with it.
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        show_end(self.name, self.log)


class Scene:
    """Workers on a cluster of brokers; one may be behind a proxy."""

    def __init__(self, folder: Path, opened: contextlib.ExitStack, address: str) -> None:
        self.folder, self._opened, self.address = folder, opened, address
        self.http = opened.enter_context(httpx.Client(timeout=60))

    def proxy(self) -> Proxy:
        with Client(self.address) as client:
            (broker,) = client.brokers().values()
        apart = "" if broker == self.address else broker
        return self._opened.enter_context(running_proxy(self.address, apart))

    def worker(self, name: str, address: str = "", *words: str) -> Member:
        member = Member(address or self.address, name, self.folder, *words)
        self._opened.callback(member.close)
        return member

    def put(self, member: Member, name: str, tasks: int) -> None:
        config = {
            "connector.class": "tests.connect.chaos.marked.MarkedDatagen",
            "topic": name,
            "fields": '{"id": "sequence"}',
            "partitions": "8",
            "tasks.max": str(tasks),
            "marks": str(self.folder / "marks"),
        }
        answer = self.http.put(f"{member.url}/connectors/{name}/config", json=config)
        assert answer.status_code == 201, answer.text

    def where(self, member: Member, name: str) -> dict[int, str]:
        """Which worker runs which task, of those that run."""
        told: dict[str, Any] = self.http.get(f"{member.url}/connectors/{name}/status").json()
        return {
            task["id"]: task["worker_id"]
            for task in told.get("tasks", ())
            if task["state"] == "RUNNING"
        }

    def marks(self) -> list[Mark]:
        return list(read_marks(self.folder / "marks"))

    def pids(self, member: Member) -> set[int]:
        """The processes of the tasks that a worker runs now."""
        last = {mark.task: mark.pid for mark in self.marks() if mark.what == "start"}
        places = self.where(member, "rows")
        return {last[task] for task, worker in places.items() if worker == member.name}

    def twice(self) -> list[Mark]:
        return [mark for mark in self.marks() if mark.what == "twice"]

    def spread(self, *members: Member) -> None:
        """Run four tasks, shared among the workers."""
        self.put(members[0], "rows", 4)
        names = {member.name for member in members}
        until(lambda: spread_over(self.where(members[0], "rows"), 4, names))


def spread_over(places: dict[int, str], tasks: int, workers: set[str]) -> bool:
    return len(places) == tasks and set(places.values()) == workers


def until(holds: Callable[[], object], patience: float = 90) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.1)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """On a broker that forgets quickly who says nothing."""
    quick = BrokerSettings(client_expiry=timedelta(seconds=3))
    with contextlib.ExitStack() as opened:
        broker = opened.enter_context(EmbeddedBroker(tmp_path / "broker", settings=quick))
        yield Scene(tmp_path, opened, broker.address)


def living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.timeout(300)
def test_what_a_worker_that_stands_still_ran_has_ended_before_others_run_it(scene: Scene) -> None:
    members = [scene.worker(name) for name in NAMES]
    scene.spread(*members)
    still, other = members
    its = scene.pids(still)
    still.signal(signal.SIGSTOP)
    until(lambda: spread_over(scene.where(other, "rows"), 4, {other.name}))
    # All that the worker ran has ended, though the worker could not do anything about it.
    assert living(its) == set()
    assert scene.twice() == []
    still.signal(signal.SIGCONT)
    # It says why it runs nothing, joins again, and gets its share.
    until(lambda: spread_over(scene.where(other, "rows"), 4, set(NAMES)))
    told = still.log.read_text()
    assert "others may run its tasks by now" in told
    assert "has joined its cluster again" in told
    assert scene.twice() == []


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.timeout(300)
def test_a_worker_that_is_cut_off_stops_its_tasks_before_others_start_them(scene: Scene) -> None:
    proxy = scene.proxy()
    cut, other = scene.worker("w1", proxy.address), scene.worker("w2")
    scene.spread(cut, other)
    its = scene.pids(cut)
    places = scene.where(other, "rows")
    share = {task for task, worker in places.items() if worker == other.name}
    proxy.cut()

    def have_ended() -> bool:
        """Whether they have; while one lives, the other worker runs no more than before."""
        own = {task for task, worker in scene.where(other, "rows").items() if worker == other.name}
        if not living(its):
            return True
        assert own == share
        return False

    until(have_ended)
    until(lambda: spread_over(scene.where(other, "rows"), 4, {other.name}))
    assert scene.twice() == []
    health = scene.http.get(f"{cut.url}/health")
    assert health.status_code == 500
    assert "cut off" in health.text
    proxy.mend()
    until(lambda: spread_over(scene.where(cut, "rows"), 4, set(NAMES)))
    until(lambda: scene.http.get(f"{cut.url}/health").status_code == 200)
    assert scene.twice() == []


@pytest.mark.timeout(300)
def test_a_worker_that_goes_on_when_it_is_cut_off_is_seen(scene: Scene) -> None:
    """The control of the test above: it would notice."""
    proxy = scene.proxy()
    cut, other = scene.worker("w1", proxy.address, "endless"), scene.worker("w2")
    scene.spread(cut, other)
    proxy.cut()
    until(scene.twice)


@pytest.mark.timeout(300)
def test_without_the_lease_a_second_copy_is_seen(scene: Scene) -> None:
    """The control of the first test: it would notice."""
    still, other = scene.worker("w1", "", "deathless"), scene.worker("w2")
    scene.spread(still, other)
    still.signal(signal.SIGSTOP)
    until(scene.twice)
    os.kill(still.process.pid, 0)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_worker_of_a_name_that_ran_elsewhere_waits_until_that_one_must_have_ended(
    scene: Scene,
) -> None:
    still, other = scene.worker("w1"), scene.worker("w2")
    scene.spread(still, other)
    still.signal(signal.SIGSTOP)
    elsewhere = scene.folder / "elsewhere"
    elsewhere.mkdir()
    # Brokers have forgotten it, and nobody else has taken its tasks yet.
    until(lambda: "w1" not in members_of(scene))
    again = Member(scene.address, "w1", elsewhere)
    try:
        until(lambda: spread_over(scene.where(other, "rows"), 4, set(NAMES)))
        assert scene.twice() == []
    finally:
        again.close()


def members_of(scene: Scene) -> set[str]:
    with Client(scene.address) as client:
        return {one.partition("%")[0] for one in Admin(client).group_members("group")}
