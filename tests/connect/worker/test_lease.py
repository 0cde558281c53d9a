"""A worker of a cluster that does not read its log: what it stops, and how it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    AssignmentMade,
    CompactedRecord,
    ConnectorPut,
    MemoryLog,
    Record,
    StatusSet,
)
from headrace.connect.worker import Connect, Worker
from headrace.errors import SettingsError, WorkerIdTakenError
from headrace.leases import boot_time
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import quick_settings
from tests.connect.waiting import eventually, states


class FarLog(MemoryLog):
    """A log elsewhere, which may fall silent."""

    def __init__(self) -> None:
        super().__init__()
        self.since: float | None = None

    async def append(self, record: Record | CompactedRecord) -> int:
        while self.since is not None:
            await asyncio.sleep(0.01)
        return await super().append(record)

    def heard_at(self) -> float:
        return boot_time() if self.since is None else self.since

    def fall_silent(self) -> None:
        self.since = boot_time()

    def speak(self) -> None:
        self.since = None


class Scene:
    """A worker of a cluster, and what its coordinator would write."""

    def __init__(self) -> None:
        self.log, self.launcher = FarLog(), FakeLauncher(call_timeout=20)
        self.joins: list[float] = []
        self.taken = False
        self.generation = 0

    async def join_again(self) -> None:
        self.joins.append(boot_time())
        if self.taken:
            raise WorkerIdTakenError("a worker 'w1' is alive")

    async def assign(self, *, lost: bool = False) -> None:
        self.generation += 1
        await self.log.append(
            AssignmentMade(
                generation=self.generation,
                log_position=0,
                connectors={"a": "w1"},
                tasks={"a": ["w1"]},
                lost={"w1": 1} if lost else {},
            )
        )

    @asynccontextmanager
    async def worker(self, **given: Any) -> AsyncIterator[Connect]:
        times = {"fence_after": "600 ms", "rebalance_delay": "2 s", "start_timeout": "30 s"}
        settings = quick_settings(**(times | given))
        worker = Worker(self.log, self.launcher, settings, self.join_again)
        await worker.start()
        try:
            yield Connect(worker, self.launcher.positions)
        finally:
            self.log.speak()
            await worker.stop(force=True)
            await self.launcher.close()

    async def run(self, connect: Connect, **config: str) -> None:
        """Have a connector with one task run."""
        await connect.create("a", config_of(CHAOS, **config))
        await self.assign()
        await eventually(lambda: self.alive() == 2, 20)

    def alive(self) -> int:
        return sum(host.alive() for host in self.launcher.hosts)


def test_a_worker_is_ready_when_the_work_is_shared_out_and_it_is_not_lost() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with scene.worker() as connect:
            assert connect.readiness().status == "healthy"
            await connect.create("a", config_of(CHAOS))
            waiting = connect.readiness()
            assert waiting.status == "starting"
            assert "no worker of its cluster has shared the work out yet" in waiting.message
            assert connect.health().status == "healthy"
            await scene.assign()
            await eventually(lambda: connect.readiness().status == "healthy")
            await scene.assign(lost=True)
            await eventually(lambda: connect.readiness().status != "healthy")

    asyncio.run(scenario())


@pytest.mark.requirement(53)
def test_a_worker_that_cannot_read_its_log_stops_all_and_goes_on_when_it_can() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with scene.worker() as connect:
            await scene.run(connect)
            scene.log.fall_silent()
            await eventually(lambda: not scene.alive(), 20)
            # They were asked, as there was time for it.
            assert all("stop" in host.story for host in scene.launcher.hosts)
            # The log cannot say so yet, but the worker can.
            await eventually(lambda: states(connect, "a") == ["UNASSIGNED", "UNASSIGNED"])
            scene.log.speak()
            await eventually(lambda: scene.alive() == 2, 20)

    asyncio.run(scenario())


@pytest.mark.requirement(45)
@pytest.mark.requirement(53)
def test_what_does_not_stop_is_killed_before_others_may_run_it_and_runs_again() -> None:
    async def scenario() -> None:
        scene = Scene()
        patient = "60 s"
        async with scene.worker(graceful_timeout=patient, start_timeout=patient) as connect:
            await scene.run(connect, chaos_stop="hang")
            scene.log.fall_silent()
            assert scene.log.since is not None
            await eventually(lambda: not scene.alive(), 20)
            assert connect.health().status != "healthy"
            assert scene.joins == []
            scene.log.speak()
            # Nobody has to ask for a restart: it was not the task that failed.
            await eventually(lambda: scene.alive() == 2, 20)
            assert connect.health().status == "healthy"

    asyncio.run(scenario())


def test_the_lease_of_hosts_ends_before_the_delay_of_the_others_is_over() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with scene.worker() as connect:
            await scene.run(connect)
            scene.log.fall_silent()
            silent_since = scene.log.since
            assert silent_since is not None
            await eventually(lambda: boot_time() > silent_since + 2, 20)
            assert scene.launcher.until < silent_since + 2

    asyncio.run(scenario())


@pytest.mark.requirement(53)
def test_a_worker_that_reads_that_it_is_counted_as_lost_does_not_go_on_for_ever() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with scene.worker() as connect:
            await scene.run(connect)
            await scene.assign(lost=True)
            await eventually(lambda: bool(scene.joins), 20)
            # It has joined, but its name has to go from the list first.
            await asyncio.sleep(0.5)
            assert not scene.alive()
            await scene.assign()
            await eventually(lambda: scene.alive() == 2, 20)

    asyncio.run(scenario())


def test_a_worker_whose_name_is_taken_by_now_runs_nothing_and_says_so() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.taken = True
        async with scene.worker() as connect:
            await scene.run(connect)
            scene.log.fall_silent()
            await eventually(lambda: "cut off" in str(connect.health()), 20)
            await asyncio.sleep(2)
            scene.log.speak()
            await eventually(lambda: len(scene.joins) > 1, 20)
            assert "cannot join again: a worker 'w1' is alive" in str(connect.health())
            assert not scene.alive()
            scene.taken = False
            await eventually(lambda: scene.alive() == 2, 20)

    asyncio.run(scenario())


@pytest.mark.requirement(49)
def test_a_worker_that_ran_elsewhere_before_waits_for_the_delay() -> None:
    async def scenario() -> None:
        scene = Scene()
        await scene.log.append(ConnectorPut(request="a", name="a", config=config_of(CHAOS)))
        await scene.assign()
        alive = StatusSet(connector="a", generation=1, phase=Phase.RUNNING, worker="w1")
        await scene.log.append(alive)
        settings = quick_settings(fence_after="200 ms", rebalance_delay="1 s")
        worker = Worker(scene.log, scene.launcher, settings, scene.join_again, heir=False)
        began = boot_time()
        await worker.start()
        assert boot_time() - began >= 1
        assert not list(worker.view.alive("w1"))
        await worker.stop(force=True)
        await scene.launcher.close()

    asyncio.run(scenario())


def test_a_delay_that_is_too_short_for_the_fence_is_refused() -> None:
    with pytest.raises(SettingsError, match="others would take over what a worker runs"):
        quick_settings(fence_after="30 s", rebalance_delay="31 s")
