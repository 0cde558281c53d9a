"""Workers of a cluster: they share the work, and what one leaves behind is taken up once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import AsyncClient
from headrace.connect.coordination import Cluster, ClusterTimes
from headrace.connect.coordination.coordinator import Coordinator
from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    AssignmentMade,
    ClusterView,
    ConnectorDeleted,
    MemoryLog,
    Record,
    StatusSet,
    TasksPut,
    fold,
)
from headrace.connect.naming import UnitId
from headrace.errors import WorkerIdTakenError
from tests.connect.log.samples import put

if TYPE_CHECKING:
    from headrace.connect.coordination.members import Members

TIMES = ClusterTimes(delay=timedelta(seconds=1), pull_wait=timedelta(milliseconds=200))


class FakeWorker:
    """A worker without processes: it obeys the newest assignment at once.

    All of them share ``running``, the copies that live, so that a second one is noticed.
    """

    def __init__(self, cluster: Cluster, client: AsyncClient, name: str, running: Running) -> None:
        self.cluster, self.client, self.name, self.running = cluster, client, name, running
        self.view = ClusterView()
        self.mine: set[UnitId] = set()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for position, record in self.cluster.log.follow(0):
            self.view, _ = fold(self.view, record, position)
            if position + 1 < await self.cluster.log.end():
                continue
            wanted = {
                unit
                for unit in self.view.units()
                if self.view.worker_of(unit.connector, unit.task) == self.name
            }
            for unit in self.mine - wanted:
                self.mine.discard(unit)
                self.running.end(unit)
                await self._tell(unit, Phase.STOPPED, gone=True)
            alive = {(one.connector, one.task) for one in self.view.alive()}
            for unit in wanted - self.mine:
                if (unit.connector, unit.task) not in alive:
                    self.mine.add(unit)
                    self.running.begin(unit)
                    await self._tell(unit, Phase.RUNNING)

    async def _tell(self, unit: UnitId, phase: Phase, *, gone: bool = False) -> None:
        await self.cluster.log.append(
            StatusSet(
                connector=unit.connector,
                task=unit.task,
                generation=unit.generation,
                phase=phase,
                worker=self.name,
                gone=gone,
            )
        )

    async def die(self) -> None:
        """End without a word: the connection goes, and with it whatever ran."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        for unit in self.mine:
            self.running.end(unit)
        coordinator = self.cluster._coordinator
        for task in coordinator._tasks:
            task.cancel()
        await asyncio.gather(*coordinator._tasks, return_exceptions=True)
        for beat in self.cluster._members._tasks:
            beat.cancel()
        await self.cluster.log.close()
        await self.client.close()

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.cluster.leave()
        await self.client.close()


class Running:
    """Copies that live, by connector and task."""

    def __init__(self) -> None:
        self.copies: set[tuple[str, int | None]] = set()
        self.changed = asyncio.Event()

    def begin(self, unit: UnitId) -> None:
        key = (unit.connector, unit.task)
        assert key not in self.copies, f"a second copy of {unit}"
        self.copies.add(key)
        self._tell()

    def end(self, unit: UnitId) -> None:
        self.copies.discard((unit.connector, unit.task))
        self._tell()

    def _tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def until(self, met: Callable[[], bool]) -> None:
        while not met():
            changed = self.changed
            await asyncio.wait_for(changed.wait(), 20)


Test = Callable[["Workers"], Awaitable[None]]


class Workers:
    """Workers of one cluster, in one process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.running = Running()
        self.all: dict[str, FakeWorker] = {}

    async def join(self, name: str) -> FakeWorker:
        client = AsyncClient(self.address)
        await client.__aenter__()
        try:
            cluster = await Cluster.join(client, "group", name, TIMES)
        except BaseException:
            await client.close()
            raise
        worker = FakeWorker(cluster, client, name, self.running)
        self.all[name] = worker
        return worker

    async def append(self, record: Record) -> None:
        await next(iter(self.all.values())).cluster.log.append(record)

    async def connector(self, name: str, tasks: int) -> None:
        await self.append(put(name))
        view = ClusterView()
        async for position, record in next(iter(self.all.values())).cluster.log.read():
            view, _ = fold(view, record, position)
        version = view.connectors()[name].version
        await self.append(TasksPut(name=name, config_version=version, configs=[{}] * tasks))

    def loads(self) -> list[int]:
        return sorted(len(worker.mine) for worker in self.all.values())


def run(folder: Path, test: Test) -> None:
    async def body(address: str) -> None:
        workers = Workers(address)
        try:
            await asyncio.wait_for(test(workers), 60)
        finally:
            for worker in workers.all.values():
                await worker.leave()

    with EmbeddedBroker(folder) as broker:
        asyncio.run(body(broker.address))


def test_workers_share_the_work_and_what_is_put_on_one_runs_on_all(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        for name in ("w1", "w2", "w3"):
            await workers.join(name)
        await workers.connector("a", 5)
        await workers.connector("b", 2)
        await workers.running.until(lambda: len(workers.running.copies) == 9)
        await workers.running.until(lambda: max(workers.loads()) - min(workers.loads()) <= 2)

    run(tmp_path, test)


@pytest.mark.requirement(10)
def test_a_delete_stops_what_runs_on_other_workers(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        for name in ("w1", "w2"):
            await workers.join(name)
        await workers.connector("a", 3)
        await workers.running.until(lambda: len(workers.running.copies) == 4)
        await workers.append(ConnectorDeleted(request="d", name="a"))
        await workers.running.until(lambda: not workers.running.copies)

    run(tmp_path, test)


@pytest.mark.requirement(53)
def test_a_worker_that_joins_gets_its_share_and_no_copy_lives_twice(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        await workers.join("w1")
        await workers.connector("a", 7)
        await workers.running.until(lambda: len(workers.running.copies) == 8)
        await workers.join("w2")
        await workers.running.until(
            lambda: len(workers.running.copies) == 8 and workers.loads() in ([3, 5], [4, 4])
        )

    run(tmp_path, test)


def test_what_a_dead_worker_ran_moves_after_the_delay(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        for name in ("w1", "w2", "w3"):
            await workers.join(name)
        await workers.connector("a", 5)
        await workers.running.until(lambda: len(workers.running.copies) == 6)
        # The one that acts as coordinator dies.
        acting = [one for one in workers.all.values() if one.cluster.statistics().acting]
        assert len(acting) == 1
        lost = workers.all.pop(acting[0].name)
        await lost.die()
        assert len(workers.running.copies) < 6
        await workers.running.until(lambda: len(workers.running.copies) == 6)
        assert sum(workers.loads()) == 6

    run(tmp_path, test)


def test_a_second_worker_of_a_name_is_refused(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        await workers.join("w1")
        with pytest.raises(WorkerIdTakenError, match="'w1' of the group 'group' is alive"):
            await workers.join("w1")

    run(tmp_path, test)


def test_what_the_first_worker_leaves_undone_is_done_by_the_next_one(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        first = await workers.join("w1")
        await workers.join("w2")
        await workers.connector("a", 1)
        await workers.running.until(lambda: len(workers.running.copies) == 2)
        made = workers.all["w2"].cluster.statistics().assignments
        # It hangs: still a member, and it does not act.
        for task in first.cluster._coordinator._tasks:
            task.cancel()
        await workers.connector("b", 1)
        await workers.running.until(lambda: len(workers.running.copies) == 4)
        assert workers.all["w2"].cluster.statistics().assignments > made

    run(tmp_path, test)


def test_another_worker_acts_at_once_when_the_first_one_has_gone(tmp_path: Path) -> None:
    async def test(workers: Workers) -> None:
        for name in ("w1", "w2"):
            await workers.join(name)
        await workers.connector("a", 1)
        await workers.running.until(lambda: len(workers.running.copies) == 2)
        lost = workers.all.pop("w1")
        began = asyncio.get_running_loop().time()
        await lost.die()
        await workers.append(put("b"))
        await workers.running.until(lambda: ("b", None) in workers.running.copies)
        assert asyncio.get_running_loop().time() - began < 10
        await workers.running.until(lambda: len(workers.running.copies) == 3)

    run(tmp_path, test)


class LateMembers:
    """Whose first answer has lain in a buffer: somebody has joined since."""

    def __init__(self) -> None:
        self.asked = 0

    async def workers(self, lost_since: Mapping[str, float] | None = None) -> set[str]:
        del lost_since
        self.asked += 1
        if self.asked == 1:
            await asyncio.sleep(0.2)
            return {"w1"}
        return {"w1", "w2"}

    async def changed(self) -> None:
        await asyncio.Event().wait()


def test_nobody_acts_on_a_list_of_workers_that_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connect.coordination.coordinator._LONGEST_PAUSE", 0.1)

    async def body() -> None:
        log = MemoryLog()
        members = cast("Members", LateMembers())
        coordinator = Coordinator(log, members, "w1", delay=30, purge_after=60)
        for name in ("a", "b"):
            await log.append(put(name))
        coordinator.start()
        async for _, record in log.follow(2):
            assert isinstance(record, AssignmentMade)
            assert set(record.connectors.values()) == {"w1", "w2"}
            break
        await coordinator.stop()

    asyncio.run(body())
