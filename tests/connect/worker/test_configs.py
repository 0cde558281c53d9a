"""Putting and deleting configs: what is decided, who is asked, what is told."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.connect.lifecycle import Target
from headrace.connect.log import (
    ClusterView,
    CompactedRecord,
    ConnectorDeleted,
    ConnectorPut,
    Record,
    TasksWanted,
)
from headrace.connect.naming import UnitId
from headrace.connect.worker import Connect, ReconfigureAsked, StopCopy, plan
from headrace.errors import ConnectConflictError, ConnectorNotFoundError, ConnectRequestError
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import OwnLog, coordinated, make_worker, quick_settings, started
from tests.connect.waiting import eventually, states, until_running


@pytest.mark.requirement(1)
@pytest.mark.requirement(3)
def test_a_config_is_read_back_at_once_and_gets_its_tasks() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            made = await connect.create("a", config_of(CHAOS, tasks_max="3"))
            assert connect.info("a") == made
            assert made.config["tasks.max"] == "3"
            await until_running(connect, "a", tasks=3)
            assert [one.id.task for one in connect.tasks("a")] == [0, 1, 2]

    asyncio.run(scenario())


@pytest.mark.requirement(2)
def test_one_put_asks_that_connector_for_its_tasks_once_and_no_other() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await connect.create("b", config_of(CHAOS))
            await until_running(connect, "a")
            await until_running(connect, "b")
            assert launcher.asked("task_configs") == 2
            await connect.put_config("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            assert launcher.asked("task_configs", "a") == 2
            assert launcher.asked("task_configs", "b") == 1
            assert len(launcher.of("b", None)) == 1

    asyncio.run(scenario())


@pytest.mark.requirement(5)
@pytest.mark.requirement(10)
def test_puts_and_deletes_are_acted_upon_long_before_the_next_pass_is_due() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        settings = quick_settings(pass_interval="60 s")
        async with started(launcher, settings=settings) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            await connect.put_config("a", config_of(CHAOS, tasks_max="1"))
            await until_running(connect, "a", tasks=1)
            await connect.delete("a")
            await eventually(lambda: not launcher.alive("a", 0), patience=2)
            await eventually(lambda: not launcher.alive("a", None), patience=2)

    asyncio.run(scenario())


@pytest.mark.requirement(6)
@pytest.mark.requirement(7)
@pytest.mark.requirement(8)
@pytest.mark.requirement(12)
def test_a_deleted_connector_leaves_marks_that_nothing_shows_and_its_name_is_free() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            await connect.delete("a")
            assert connect.names() == []
            for asked in (connect.info, connect.status, connect.tasks, connect.topics):
                with pytest.raises(ConnectorNotFoundError):
                    asked("a")
            marks = {line.key: line.deleted for line in connect.config_log()}
            assert marks == {
                "connector-a": True,
                "target-state-a": True,
                "task-a-0": True,
                "task-a-1": True,
            }
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")

    asyncio.run(scenario())


@pytest.mark.requirement(11)
@pytest.mark.requirement(16)
def test_what_was_answered_is_there_after_a_restart_and_what_was_deleted_is_not() -> None:
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as connect:
            await connect.create("a", config_of(CHAOS))
            await connect.create("b", config_of(CHAOS))
            await connect.delete("b")
        async with started(FakeLauncher(), log) as connect:
            assert connect.names() == ["a"]
            assert [one.deleted for one in connect.config_log("connector-b")] == [True]
            await until_running(connect, "a")

    asyncio.run(scenario())


@pytest.mark.requirement(15)
@pytest.mark.requirement(16)
def test_an_answer_comes_when_the_log_has_the_record_and_not_before() -> None:
    # 15 is replaced by 16: what is acknowledged is logged, only what can be made again is not.
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as connect:
            await connect.create("a", config_of(CHAOS))
            found = [record async for _, record in log.read(0)]
        assert any(getattr(record, "name", "") == "a" for record in found)

    asyncio.run(scenario())


@pytest.mark.requirement(13)
def test_marks_are_purged_and_nothing_that_is_shown_changes() -> None:
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as connect, coordinated(log, purge_after=0.05):
            await connect.create("a", config_of(CHAOS))
            await connect.create("b", config_of(CHAOS))
            await until_running(connect, "b")
            await connect.delete("a")
            before = connect.names(), connect.info("b")
            await eventually(lambda: not connect.config_log("connector-a"))
            assert (connect.names(), connect.info("b")) == before
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")

    asyncio.run(scenario())


def test_the_log_is_summed_up_and_a_restart_finds_all() -> None:
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as connect, coordinated(log):
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            for _ in range(60):
                await connect.set_target("a", Target.PAUSED)
                await connect.set_target("a", Target.RUNNING)
            await eventually(lambda: log.statistics().records < 100)
            await until_running(connect, "a")
        async with started(FakeLauncher(), log) as connect:
            await until_running(connect, "a")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "Connector config {name=a} contains no connector type"),
        ({"connector.class": "fakes.ChaosConector"}, "did you mean 'fakes.ChaosConnector'?"),
        (config_of(CHAOS, tasks_max="0"), "tasks.max"),
        (config_of(CHAOS, name="b"), "(b) doesn't match connector name in the URL (a)"),
        (config_of("fakes.BrokenConnector"), "no module named 'gone'"),
        (config_of("fakes.TextConverter"), "Failed to find any class that implements Connector"),
        (config_of(CHAOS, x="y" * (5 << 20)), "4,194,304"),
    ],
    ids=["no class", "typo", "value", "other name", "broken", "no connector", "too large"],
)
@pytest.mark.defect(12)
def test_what_cannot_be_is_refused_with_a_reason_and_nothing_is_kept(
    config: dict[str, str], says: str
) -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            with pytest.raises(ConnectRequestError) as refused:
                await connect.create("a", config)
            assert says in str(refused.value)
            assert connect.names() == []
            assert connect.config_log() == []

    asyncio.run(scenario())


def test_of_two_that_take_a_name_at_once_one_gets_it() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            tries = [connect.create("a", config_of(CHAOS, x=str(n))) for n in range(5)]
            made = await asyncio.gather(*tries, return_exceptions=True)
            assert sum(isinstance(one, ConnectConflictError) for one in made) == 4

    asyncio.run(scenario())


def test_a_patch_on_a_config_that_has_changed_meanwhile_is_a_conflict() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS))
            patches = [connect.patch_config("a", {"x": str(n)}) for n in range(3)]
            made = await asyncio.gather(*patches, return_exceptions=True)
            assert sum(isinstance(one, ConnectConflictError) for one in made) == 2

    asyncio.run(scenario())


def test_a_config_that_is_there_already_changes_nothing_and_restarts_nothing() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            before = connect.worker.view.entries
            made = connect.info("a")
            assert await connect.put_config("a", config_of(CHAOS, tasks_max="2")) == (made, False)
            assert await connect.patch_config("a", {"tasks.max": "2", "gone": None}) == made
            assert connect.worker.view.entries == before
            assert (len(launcher.hosts), launcher.asked("task_configs")) == (3, 1)
            await connect.patch_config("a", {"tasks.max": "1"})
            await until_running(connect, "a", tasks=1)

    asyncio.run(scenario())


class LateLog(OwnLog):
    """A log of which a worker reads what others write only when it writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self._unread: list[Record] = []

    def write_unread(self, record: Record) -> None:
        self._unread.append(record)

    async def append(self, record: Record | CompactedRecord) -> int:
        while self._unread:
            await super().append(self._unread.pop(0))
        return await super().append(record)


@pytest.mark.parametrize("meanwhile", ["changed", "deleted"])
def test_a_config_counts_as_the_same_by_all_that_other_workers_were_told(meanwhile: str) -> None:
    async def scenario() -> None:
        log = LateLog()
        config = config_of(CHAOS)
        async with started(FakeLauncher(), log) as connect:
            await connect.create("a", config)
            await until_running(connect, "a")
            other: Record = ConnectorPut(request="o", name="a", config={**config, "x": "1"})
            if meanwhile == "deleted":
                other = ConnectorDeleted(request="o", name="a")
            log.write_unread(other)
            info, created = await connect.put_config("a", config)
            assert (info.config, created) == ({**config, "name": "a"}, meanwhile == "deleted")
            await until_running(connect, "a")

    asyncio.run(scenario())


@pytest.mark.requirement(31)
def test_tasks_are_made_anew_when_one_asks_and_the_old_ones_stop_first() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(CHAOS, tasks_max="2", chaos_stop="slow:0.1")
            await connect.create("a", config)
            await until_running(connect, "a", tasks=2)
            old = [launcher.of("a", task)[0] for task in (0, 1)]
            launcher.tasks_of["a"] = 3
            old[0].tell(ReconfigureAsked())
            await eventually(lambda: launcher.of("a", 2))
            assert not any(host.alive() for host in old)
            await until_running(connect, "a", tasks=3)
            assert len(launcher.of("a", None)) == 1
            assert launcher.most_alive == 1

    asyncio.run(scenario())


def test_a_wish_for_other_tasks_that_comes_from_another_worker_is_heard_and_is_asked_for_once() -> (
    None
):
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            await connect.worker.append(TasksWanted(name="a"))
            await eventually(lambda: launcher.asked("task_configs") == 2)
            await eventually(lambda: connect.worker.view.entries["a"].tasks_wanted < 0)
            # It has said the same, so nothing is restarted; and it has been started once.
            assert len(launcher.hosts) == 3
            launcher.tasks_of["a"] = 1
            await connect.worker.append(TasksWanted(name="a"))
            await until_running(connect, "a", tasks=1)
            assert launcher.of("a", None)[0].story == ["start", *["task_configs"] * 3]

    asyncio.run(scenario())


@pytest.mark.requirement(4)
@pytest.mark.requirement(9)
def test_what_is_put_or_deleted_on_one_worker_is_effective_on_all_of_the_same_log() -> None:
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as one:
            worker = make_worker(log, FakeLauncher(), quick_settings(worker_id="w2"))
            await worker.start()
            other = Connect(worker)
            began = time.monotonic()
            made = await one.create("a", config_of(CHAOS))
            await eventually(lambda: other.names() == ["a"] and other.tasks("a"))
            assert other.info("a").config == made.config
            assert other.tasks("a") == one.tasks("a")
            await other.delete("a")
            await eventually(lambda: one.names() == [])
            assert time.monotonic() - began < 2
            assert worker.copies() == []
            await worker.stop()

    asyncio.run(scenario())


@pytest.mark.requirement(14)
def test_a_pass_stops_what_runs_without_any_config() -> None:
    held = [UnitId("a", None, 1), UnitId("a", 0, 2)]
    found = plan(ClusterView(), "w1", held, lambda unit: True)
    assert found.stops == (StopCopy(held[0]), StopCopy(held[1]))


def test_pause_keeps_processes_and_stop_does_not() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            await connect.set_target("a", Target.PAUSED)
            assert states(connect, "a") == ["PAUSED", "PAUSED"]
            await eventually(lambda: launcher.of("a", 0)[0].paused)
            await connect.set_target("a", Target.RUNNING)
            await eventually(lambda: not launcher.of("a", 0)[0].paused)
            assert len(launcher.hosts) == 2
            await connect.set_target("a", Target.STOPPED)
            await eventually(lambda: states(connect, "a") == ["STOPPED"])
            assert not any(host.alive() for host in launcher.hosts)
            await connect.set_target("a", Target.RUNNING)
            await until_running(connect, "a")

    asyncio.run(scenario())
