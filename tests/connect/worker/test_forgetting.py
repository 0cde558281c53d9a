"""What a deleted connector leaves: its positions go with it, its logs later, unless they are kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    Applied,
    ClusterView,
    ConnectorDeleted,
    LeftoversGone,
    Outcome,
    Record,
)
from headrace.connect.worker import Connect, WorkerSettings
from headrace.connect.worker.roster import Forgetting
from headrace.errors import EngineAwayError, HeadraceError, JobFailedError
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.log.samples import folded, put, status
from tests.connect.running import OwnLog, coordinated, quick_settings, started
from tests.connect.waiting import eventually, state_of, states, until_running


async def read_all(connect: Connect, launcher: FakeLauncher, file: Path) -> None:
    """Make a source of a file with one line, and wait until that is committed."""
    config = config_of(FILE_SOURCE, topic="t", file=str(file))
    await connect.create("a", config)
    await until_running(connect, "a")
    committed = launcher.positions.by_connector
    await eventually(lambda: committed[connect.worker.view.entries["a"].kept_as])


@pytest.mark.parametrize("keep", [False, True], ids=["forgotten", "kept"])
def test_a_connector_that_is_made_again_inherits_positions_only_where_they_are_kept(
    tmp_path: Path, keep: bool
) -> None:
    (tmp_path / "in.txt").write_text("one\n")

    async def scenario() -> None:
        launcher = FakeLauncher()
        topic = launcher.positions.topics["t"]
        async with started(launcher) as connect:
            for life in (1, 2, 3):
                await read_all(connect, launcher, tmp_path / "in.txt")
                assert topic == ["one"] * (1 if keep else life)
                await connect.delete("a", keep_offsets=keep)
            await eventually(lambda: not list(connect.worker.view.alive()))
            if keep:
                assert launcher.forgotten == []
                return
            await eventually(lambda: not connect.worker.view.entries["a"].leftovers)
            assert len(set(launcher.forgotten)) == 3
            assert not any(launcher.positions.by_connector.values())

    asyncio.run(scenario())


def test_nothing_is_forgotten_and_no_new_task_starts_while_an_old_one_lives() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, chaos_stop="hang", chaos_dying="0.2"))
            await until_running(connect, "a")
            (old,) = launcher.of("a", 0)
            await connect.delete("a")
            await connect.create("a", config_of(CHAOS))
            while old.alive():
                assert launcher.forgotten == []
                assert launcher.of("a", 0) == [old]
                await asyncio.sleep(0.01)
            await until_running(connect, "a")
            assert launcher.forgotten == ["a"]
            assert list(await connect.offsets("a")) == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("failure", "tries"), [(EngineAwayError("away"), 2), (JobFailedError("not allowed"), 1)]
)
def test_what_cannot_be_removed_now_is_removed_later_and_what_never_can_be_hinders_nobody(
    failure: HeadraceError, tries: int
) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            await connect.delete("a")
            launcher.refuse_to_forget = lambda _: failure
            await connect.create("a", config_of(CHAOS))
            await eventually(lambda: launcher.forgotten)
            if failure.retriable:
                await eventually(lambda: state_of(connect, "a") == "RUNNING")
                assert not launcher.alive("a", 0)
            launcher.refuse_to_forget = lambda _: None
            await until_running(connect, "a")
            assert launcher.forgotten == ["a"] * tries
            assert launcher.of("a", 0)[-1].spec.kept_as != "a"

    asyncio.run(scenario())


def test_logs_stay_to_be_read_for_as_long_as_the_mark() -> None:
    async def scenario() -> None:
        log, launcher = OwnLog(), FakeLauncher()
        settings = quick_settings(purge_after="400 ms", pass_interval="30 ms")
        async with (
            started(launcher, log, settings=settings) as connect,
            coordinated(log, purge_after=0.4),
        ):
            for name in ("a", "b"):
                await connect.create(name, config_of(CHAOS))
                await until_running(connect, name)
                await connect.delete(name, keep_offsets=name == "b")
            await connect.create("b", config_of(CHAOS))
            await eventually(lambda: "a" in launcher.forgotten)
            assert launcher.logs_dropped == []
            await eventually(lambda: not connect.config_log("connector-a"))
            await eventually(lambda: launcher.logs_dropped == ["a"])
            await until_running(connect, "b")

    asyncio.run(scenario())


def has(launcher: FakeLauncher, copies: int) -> bool:
    return len(launcher.of("a", 0)) == copies


def test_restarts_of_an_earlier_connector_do_not_count() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        config = config_of(CHAOS, chaos_run="raise") | {
            "restart.max.attempts": "1",
            "restart.pause.ms": "10",
        }
        async with started(launcher) as connect:
            for copies in (2, 4):
                await connect.create("a", config)
                await eventually(partial(has, launcher, copies))
                await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
                await connect.delete("a")

    asyncio.run(scenario())


@dataclass
class Member:
    """A worker of a cluster, as far as it forgets."""

    view: ClusterView
    settings: WorkerSettings = field(
        default_factory=lambda: quick_settings(rebalance_delay="300 ms", fence_after="180 ms")
    )
    said: list[Record] = field(default_factory=list)

    async def append(self, record: Record) -> Outcome:
        self.said.append(record)
        return Applied(0)

    def wakeup(self) -> None:
        """Have nothing looked at."""


@pytest.mark.parametrize("first", [True, False])
def test_one_worker_of_a_cluster_removes_it_and_another_what_that_leaves_undone(
    first: bool,
) -> None:
    async def scenario() -> None:
        delete = ConnectorDeleted(request="d", name="a", forget=True)
        view, _ = folded(put("a"), status("a", None, 0, Phase.RUNNING), delete)
        member, launcher = Member(view), FakeLauncher()
        forgetting = Forgetting(member, launcher)
        forgetting.consider(first=True)
        await asyncio.sleep(0)
        assert launcher.forgotten == []  # it may live
        member.view, _ = folded(status("a", None, 0, Phase.STOPPED, gone=True), view=view)
        forgetting.consider(first=first)
        await asyncio.sleep(0)
        assert launcher.forgotten == (["a"] if first else [])
        await asyncio.sleep(0.3)
        forgetting.consider(first=first)
        await eventually(lambda: member.said[:1] == [LeftoversGone(name="a", kept_as=["a"])])

    asyncio.run(scenario())
