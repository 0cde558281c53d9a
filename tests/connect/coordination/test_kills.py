"""Workers are killed while connectors are put and deleted: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import AsyncClient
from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    Applied,
    ClusterView,
    ConnectorDeleted,
    ConnectorPut,
    Outcome,
    Record,
    fold,
)
from headrace.connect.log.topic import TopicLog
from tests.connect.fakes.plugins import CHAOS, config_of

pytestmark = pytest.mark.slow

NAMES = ("w1", "w2", "w3")
PROGRAM = "tests.connect.coordination.worker_program"
ROOT = Path(__file__).parents[3]


class Processes:
    """The workers, each started again when it was killed."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address, self._folder = address, folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        with (self._folder / f"log-{name}").open("a") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, self._address, name, str(self._folder)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                text=True,
            )

    def kill(self, name: str) -> None:
        process = self._running[name]
        assert process.poll() is None, (self._folder / f"log-{name}").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(30)


class Watcher:
    """Somebody outside who reads the log, and writes to it as REST does."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self.view = ClusterView()
        self._read = 0

    async def append(self, record: Record) -> Outcome:
        position = await self._log.append(record)
        return (await self.read())[position]

    async def read(self) -> dict[int, Outcome]:
        outcomes = {}
        async for position, record in self._log.read(self._read):
            self.view, outcomes[position] = fold(self.view, record, position)
            self._read = position + 1
        return outcomes

    def at_rest(self) -> bool:
        """Whether everything that is wanted runs, and nothing else."""
        wanted = set(self.view.units())
        alive = {one.unit for one in self.view.alive() if one.phase is Phase.RUNNING}
        tasks = all(len(entry.tasks) == 2 for entry in self.view.connectors().values())
        return tasks and wanted == alive == {one.unit for one in self.view.alive()}

    async def rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.at_rest():
            assert time.monotonic() < deadline, (
                list(self.view.units()),
                [(one.unit, one.phase, one.worker) for one in self.view.alive()],
                self.view.assignment,
            )
            await asyncio.sleep(0.1)
            await self.read()


def put(name: str, request: str) -> ConnectorPut:
    config = config_of(CHAOS, **{"tasks.max": "2", "number": request})
    return ConnectorPut(request=request, name=name, config=config | {"name": name})


async def storm(watcher: Watcher, processes: Processes, seed: int, seconds: float) -> set[str]:
    """Put, delete and kill at random; give the connectors that must be there."""
    chance = random.Random(seed)
    expected: set[str] = set()
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        number += 1
        name = f"c{chance.randrange(6)}"
        if chance.random() < 0.7:
            assert isinstance(await watcher.append(put(name, f"p{seed}-{number}")), Applied)
            expected.add(name)
        elif name in expected:
            gone = ConnectorDeleted(request=f"d{seed}-{number}", name=name, forget=True)
            assert isinstance(await watcher.append(gone), Applied)
            expected.discard(name)
        if chance.random() < 0.1:
            victim = chance.choice(NAMES)
            await asyncio.to_thread(processes.kill, victim)
            processes.start(victim)
        await asyncio.sleep(chance.uniform(0.05, 0.4))
    return expected


def run(folder: Path, seed: int, seconds: float) -> None:
    async def body(address: str) -> None:
        processes = Processes(address, folder)
        async with AsyncClient(address) as client:
            log = await TopicLog.open(client, "group-log", wait=timedelta(milliseconds=200))
            watcher = Watcher(log)
            try:
                for name in NAMES:
                    processes.start(name)
                await watcher.append(put("first", "first"))
                await watcher.rest(60)
                expected = await storm(watcher, processes, seed, seconds)
                await watcher.rest(90)
                assert set(watcher.view.connectors()) == expected | {"first"}
                # Who reads the log afresh sees the same.
                fresh = await TopicLog.open(client, "group-log")
                again = Watcher(fresh)
                await again.read()
                assert again.view.connectors() == watcher.view.connectors()
                await fresh.close()
            finally:
                processes.close()
                await log.close()

    settings = BrokerSettings(lock_expiry=timedelta(seconds=2))
    with EmbeddedBroker(folder / "broker", settings=settings) as broker:
        asyncio.run(body(broker.address))
    assert [path.name for path in folder.glob("twice-*")] == []


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.timeout(300)
def test_kill_9_of_workers_loses_no_config_and_makes_no_second_copy(tmp_path: Path) -> None:
    run(tmp_path, seed=1, seconds=10)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_ten_minutes_of_kills(tmp_path: Path) -> None:
    run(tmp_path, seed=2, seconds=600)
