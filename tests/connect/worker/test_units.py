"""Connectors and tasks whose user code hangs, fails and dies: what the worker makes of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.connect.lifecycle import Phase, StopStep, Target
from headrace.connect.log import MemoryLog
from headrace.connect.worker import (
    Cause,
    Connect,
    Failed,
    Healthy,
    HostSpec,
    OffsetEntry,
    OutsideChanged,
    Unhealthy,
    UnitReport,
)
from headrace.errors import ConnectRequestError
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.running import OwnLog, quick_settings, started
from tests.connect.waiting import eventually, state_of, states, until_running


def report(connect: Connect, name: str, task: int | None = 0) -> UnitReport:
    """What the worker tells of a unit."""
    return next(one for one in connect.units() if (one.connector, one.task) == (name, task))


@pytest.mark.requirement(25)
@pytest.mark.requirement(44)
@pytest.mark.defect(2)
def test_a_start_that_hangs_holds_up_nobody_and_ends_in_error_with_its_cause() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("stuck", config_of(CHAOS, chaos_start="hang"))
            await connect.create("well", config_of(CHAOS))
            await until_running(connect, "well")
            assert report(connect, "stuck").phase == "PENDING"
            assert connect.status("stuck").tasks[0].state == "UNASSIGNED"
            await eventually(lambda: connect.status("stuck").tasks[0].state == "FAILED")
            trace = connect.status("stuck").tasks[0].trace
            assert "start() of task stuck-0 did not return in time" in trace
            found = report(connect, "stuck")
            assert (found.forced, found.pid_alive) == (True, False)

    asyncio.run(scenario())


@pytest.mark.requirement(26)
@pytest.mark.requirement(34)
@pytest.mark.defect(2)
def test_a_start_that_raises_is_error_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS, chaos_start="raise"))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            assert "ChaosError: start() was told to raise" in connect.status("a").tasks[0].trace

    asyncio.run(scenario())
    (told,) = [one for one in caplog.messages if "was told to raise" in one]
    assert told.startswith("a-0 failed: ChaosError")


@pytest.mark.requirement(27)
@pytest.mark.requirement(40)
@pytest.mark.requirement(41)
@pytest.mark.parametrize("key", ["chaos.stop", "chaos.connector.stop"])
def test_a_stop_that_hangs_is_killed_rung_by_rung_and_holds_up_nobody(key: str) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("stuck", config_of(CHAOS) | {key: "hang"})
            await connect.create("well", config_of(CHAOS))
            await until_running(connect, "stuck")
            await until_running(connect, "well")
            await connect.set_target("stuck", Target.STOPPED)
            task = 0 if key == "chaos.stop" else None
            await eventually(lambda: report(connect, "stuck", task).phase == "STOPPING")
            await connect.set_target("well", Target.STOPPED)
            await eventually(lambda: states(connect, "well") == ["STOPPED"])
            assert launcher.alive("stuck", task)
            await eventually(lambda: states(connect, "stuck") == ["STOPPED"])
            found = report(connect, "stuck", task)
            assert (found.phase, found.forced, found.pid_alive) == ("ERROR", True, False)
            steps = [rung["step"] for rung in found.rungs]
            assert steps == [StopStep.ASK, StopStep.CANCEL, StopStep.KILL, StopStep.GONE]
            assert 0.3 <= found.rungs[1]["after"] < found.rungs[2]["after"]

    asyncio.run(scenario())


@pytest.mark.requirement(28)
@pytest.mark.defect(5)
def test_no_task_starts_whose_connector_does_not_run() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, chaos_connector_start="raise"))
            await eventually(lambda: state_of(connect, "a") == "FAILED")
            assert connect.status("a").tasks == []
            assert launcher.of("a", 0) == []
            assert launcher.asked("task_configs") == 0

    asyncio.run(scenario())


@pytest.mark.requirement(28)
@pytest.mark.defect(5)
def test_tasks_stop_when_their_connector_fails_and_come_back_with_it() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            launcher.of("a", None)[0].die(7)
            await eventually(lambda: not launcher.alive("a", 0) and not launcher.alive("a", 1))
            assert state_of(connect, "a") == "FAILED"
            assert "ended with status 7 while it was running" in connect.status("a").connector.trace
            await connect.restart("a")
            await until_running(connect, "a", tasks=2)

    asyncio.run(scenario())


@pytest.mark.requirement(29)
@pytest.mark.requirement(37)
def test_a_task_that_dies_by_itself_is_noticed_and_stays_failed() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            launcher.of("a", 0)[0].die(3)
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            passes = connect.worker.statistics().passes
            connect.worker.wakeup()
            await eventually(lambda: connect.worker.statistics().passes > passes)
            assert len(launcher.of("a", 0)) == 1

    asyncio.run(scenario())


@pytest.mark.requirement(30)
def test_three_failed_probes_in_a_row_are_error_and_two_are_not() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            host = launcher.of("a", 0)[0]
            for event in (Unhealthy("no"), Unhealthy("no"), Healthy(), Unhealthy("no")):
                host.tell(event)
            assert states(connect, "a") == ["RUNNING", "RUNNING"]
            host.tell(Unhealthy("no"))
            host.tell(Unhealthy("lost its database"))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            assert "3 times in a row: lost its database" in connect.status("a").tasks[0].trace

    asyncio.run(scenario())


@pytest.mark.requirement(38)
@pytest.mark.parametrize("kind", ["connector", "task"])
def test_connectors_have_the_same_life_as_tasks(kind: str) -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            await connect.delete("a")
            await eventually(lambda: not connect.worker.statistics().copies)
            entry = connect.worker.view.entries["a"]
            story = entry.story_of(None if kind == "connector" else 0)
            assert [one.phase for one in story.history] == [
                Phase.PENDING,
                Phase.RUNNING,
                Phase.STOPPING,
                Phase.STOPPED,
            ]

    asyncio.run(scenario())


@pytest.mark.requirement(39)
def test_a_stuck_unit_is_listed_until_it_is_proven_gone() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(CHAOS, chaos_stop="hang", chaos_dying="0.4")
            await connect.create("a", config)
            await until_running(connect, "a")
            await connect.delete("a")
            while launcher.alive("a", 0):
                assert report(connect, "a").pid_alive
                await asyncio.sleep(0.01)
            await eventually(lambda: not report(connect, "a").pid_alive)
            assert report(connect, "a").phase == "ERROR"

    asyncio.run(scenario())


@pytest.mark.requirement(42)
def test_a_stop_that_raises_is_kept_and_shown() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS, chaos_stop="raise"))
            await until_running(connect, "a")
            await connect.set_target("a", Target.STOPPED)
            await eventually(lambda: states(connect, "a") == ["STOPPED"])
            error = report(connect, "a").error
            assert error is not None
            assert "ChaosError: stop() was told to raise" in error

    asyncio.run(scenario())


@pytest.mark.requirement(43)
@pytest.mark.parametrize("what", ["stop", "restart", "delete"])
def test_with_force_nothing_is_asked(what: str) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        settings = quick_settings(graceful_timeout="60 s", cancel_timeout="60 s")
        async with started(launcher, settings=settings) as connect:
            await connect.create("a", config_of(CHAOS, chaos_stop="hang"))
            await until_running(connect, "a")
            first = launcher.of("a", 0)[0]
            if what == "stop":
                await connect.set_target("a", Target.STOPPED, force=True)
            elif what == "restart":
                await connect.restart("a", include_tasks=True, force=True)
            else:
                await connect.delete("a", force=True)
            await eventually(lambda: not first.alive(), patience=2)
            assert "asked" not in first.story
            if what == "restart":
                await until_running(connect, "a")

    asyncio.run(scenario())


@pytest.mark.requirement(45)
def test_after_force_offsets_stand_where_they_were_and_a_new_copy_waits_for_the_proof(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        (tmp_path / "in.txt").write_text("one\n")
        async with started(launcher) as connect:
            config = config_of(FILE_SOURCE, topic="t", chaos_stop="hang", chaos_dying="0.2")
            await connect.create("a", config | {"file": str(tmp_path / "in.txt")})
            await until_running(connect, "a")
            await eventually(lambda: launcher.positions.by_connector["a"])
            offsets = await connect.offsets("a")
            old = launcher.of("a", 0)[0]
            await connect.restart_task("a", 0, force=True)
            while old.alive():
                assert len(launcher.of("a", 0)) == 1
                await asyncio.sleep(0.005)
            await eventually(lambda: len(launcher.of("a", 0)) == 2)
            assert await connect.offsets("a") == offsets
            history = connect.worker.view.entries["a"].story_of(0).history
            assert any(one.forced and one.gone for one in history)

    asyncio.run(scenario())


@pytest.mark.requirement(47)
def test_four_endings_are_told_apart_and_no_copy_is_left() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            stops = {"returned": "", "raised": "raise", "killed": "hang", "cancelled": "slow:0.33"}
            for name, word in stops.items():
                await connect.create(name, config_of(CHAOS, chaos_stop=word))
            for name in stops:
                await until_running(connect, name)
            for name in stops:
                await connect.delete(name)
            await eventually(lambda: not connect.worker.statistics().copies)
            endings = {name: report(connect, name).ending for name in stops}
            assert endings == {name: name.upper() for name in stops}

    asyncio.run(scenario())


@pytest.mark.requirement(18)
def test_a_failed_task_is_still_failed_after_a_restart_with_its_trace() -> None:
    async def scenario() -> None:
        log, launcher = OwnLog(), FakeLauncher()
        async with started(FakeLauncher(), log) as connect:
            await connect.create("a", config_of(CHAOS, chaos_start="raise"))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
        async with started(launcher, log) as connect:
            await eventually(lambda: state_of(connect, "a") == "RUNNING")
            assert connect.status("a").tasks[0].state == "FAILED"
            assert "ChaosError" in connect.status("a").tasks[0].trace
            assert launcher.of("a", 0) == []
            await connect.restart_task("a", 0)
            await eventually(lambda: len(launcher.of("a", 0)) == 1)

    asyncio.run(scenario())


@pytest.mark.requirement(48)
@pytest.mark.requirement(49)
@pytest.mark.requirement(50)
def test_a_worker_that_stops_leaves_nothing_and_says_that_all_is_unassigned() -> None:
    async def scenario() -> None:
        log, launcher = OwnLog(), FakeLauncher()
        async with started(launcher, log) as connect:
            for name, stop in (("a", ""), ("b", ""), ("stuck", "hang")):
                await connect.create(name, config_of(CHAOS, chaos_stop=stop))
            for name in ("a", "b", "stuck"):
                await until_running(connect, name)
            began = asyncio.get_running_loop().time()
            await connect.worker.stop()
            assert asyncio.get_running_loop().time() - began < 0.3 + 5
            assert not any(host.alive() for host in launcher.hosts)
            assert connect.worker.statistics().copies == {}
            for name in ("a", "b", "stuck"):
                assert states(connect, name) == ["UNASSIGNED", "UNASSIGNED"]
        again = FakeLauncher()
        async with started(again, log) as connect:
            for name in ("a", "b", "stuck"):
                await until_running(connect, name)
            assert again.most_alive == 1
            assert len(again.hosts) == 6

    asyncio.run(scenario())


@pytest.mark.requirement(49)
def test_what_a_worker_left_that_died_is_settled_before_anything_starts() -> None:
    async def scenario() -> None:
        log = OwnLog()
        async with started(FakeLauncher(), log) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
            # As after a kill -9: a reader finds everything running.
            copied = MemoryLog()
            async for _, record in log.read(0):
                await copied.append(record)
        launcher = FakeLauncher()
        async with started(launcher, copied) as connect:
            await until_running(connect, "a")
            assert len(launcher.hosts) == 2

    asyncio.run(scenario())


@pytest.mark.requirement(53)
@pytest.mark.defect(3)
def test_a_storm_of_puts_and_deletes_never_makes_a_second_live_copy() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(CHAOS, tasks_max="2", chaos_stop="slow:0.05")
            for turn in range(25):
                await connect.put_config("a", config | {"turn": str(turn)})
                await asyncio.sleep(0.003 * (turn % 7))
                if turn % 3 == 0:
                    await connect.delete("a")
            await connect.put_config("a", config)
            await until_running(connect, "a", tasks=2)
            assert launcher.most_alive == 1
            assert len([host for host in launcher.hosts if host.alive()]) == 3

    asyncio.run(scenario())


@pytest.mark.requirement(20)
@pytest.mark.requirement(24)
def test_the_snapshot_of_running_tasks_is_whole_while_a_thousand_start_and_stop() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        settings = quick_settings(start_timeout="60 s", graceful_timeout="60 s")
        async with started(launcher, settings=settings) as connect:
            seen: set[int] = set()
            over = threading.Event()
            troubles: list[str] = []

            def commit() -> None:
                while not over.is_set():
                    units = connect.worker.running
                    seen.add(len(units))
                    if len(set(units)) != len(units):
                        troubles.append("a task stands there twice")

            thread = threading.Thread(target=commit)
            thread.start()
            try:
                names = [f"c{n}" for n in range(10)]
                for name in names:
                    await connect.create(name, config_of(CHAOS, tasks_max="100"))
                # The thread itself must have seen them all: it runs when the loop lets it.
                await eventually(lambda: 1000 in seen, patience=60)
                for name in names:
                    await connect.delete(name)
                await eventually(lambda: not connect.worker.running, patience=60)
            finally:
                over.set()
                thread.join()
            assert troubles == []
            assert max(seen) == 1000

    asyncio.run(scenario())


def test_a_failed_task_is_started_again_by_itself_with_growing_pauses_up_to_a_cap() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(
                CHAOS,
                chaos_start="raise",
                restart_max_attempts="3",
                restart_pause_ms="20 ms",
            )
            await connect.create("a", config)
            await eventually(lambda: len(launcher.of("a", 0)) == 4)
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            await asyncio.sleep(0.3)
            assert len(launcher.of("a", 0)) == 4
            assert connect.worker.statistics().restarted == 3

    asyncio.run(scenario())


def test_a_connector_that_failed_by_the_doing_of_another_is_started_again_once() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, restart_pause_ms="20 ms"))
            for by_another in (True, False):
                await until_running(connect, "a")
                host = launcher.of("a", None)[-1]
                host.tell(Failed(Cause("its host was ended"), by_another=by_another))
                host.die(1)
                await eventually(lambda: state_of(connect, "a") == "FAILED")
            await asyncio.sleep(0.2)
            assert state_of(connect, "a") == "FAILED"
            assert len(launcher.of("a", None)) == 2

    asyncio.run(scenario())


def test_a_connector_whose_value_from_outside_changed_is_started_again_with_its_tasks() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await connect.create("b", config_of(CHAOS))
            await until_running(connect, "a", tasks=2)
            await until_running(connect, "b")
            (host,) = launcher.alive("a", None)
            host.tell(OutsideChanged())
            units = [("a", None), ("a", 0), ("a", 1)]
            await eventually(lambda: [len(launcher.of(*one)) for one in units] == [2, 2, 2])
            await until_running(connect, "a", tasks=2)
            assert launcher.most_alive == 1
            assert [len(launcher.of("b", task)) for task in (None, 0)] == [1, 1]

    asyncio.run(scenario())


def test_a_failed_task_stays_failed_where_nobody_asked_for_restarts() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, chaos_start="raise"))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            for _ in range(5):
                connect.worker.wakeup()
                await asyncio.sleep(0.01)
            assert len(launcher.of("a", 0)) == 1

    asyncio.run(scenario())


def test_only_what_has_failed_is_restarted_where_that_is_asked() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, tasks_max="2"))
            await until_running(connect, "a", tasks=2)
            launcher.of("a", 1)[0].die(1)
            await eventually(lambda: states(connect, "a")[2] == "FAILED")
            told = await connect.restart("a", include_tasks=True, only_failed=True)
            assert [task.state for task in told.tasks] == ["RUNNING", "RESTARTING"]
            assert told.connector.state == "RUNNING"
            await until_running(connect, "a", tasks=2)
            assert [len(launcher.of("a", unit)) for unit in (None, 0, 1)] == [1, 1, 2]

    asyncio.run(scenario())


def test_a_process_that_cannot_be_made_is_error_with_the_reason() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()

        def refuse(spec: HostSpec) -> str | None:
            return "no process is left" if spec.kind == "task" else None

        launcher.refuse = refuse
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            assert "no process is left" in connect.status("a").tasks[0].trace

    asyncio.run(scenario())


@pytest.mark.parametrize("word", ["raise", "hang", "junk"])
def test_a_connector_that_cannot_say_its_tasks_has_failed(word: str) -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            await connect.create("a", config_of(CHAOS) | {"chaos.task_configs": word})
            await eventually(lambda: state_of(connect, "a") == "FAILED")
            assert "task_configs" in connect.status("a").connector.trace

    asyncio.run(scenario())


@pytest.mark.requirement(21)
def test_offsets_change_only_while_nothing_of_the_connector_lives() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, chaos_stop="slow:0.2"))
            await until_running(connect, "a")
            entry = OffsetEntry({"file": "x"}, {"line": 3})
            with pytest.raises(ConnectRequestError, match="STOPPED"):
                await connect.alter_offsets("a", [entry])
            await connect.set_target("a", Target.STOPPED)
            # The connector is gone before its task, and is not said to be stopped for that.
            await eventually(lambda: not launcher.alive("a", None))
            assert launcher.alive("a", 0)
            assert states(connect, "a") == ["RUNNING", "RUNNING"]
            with pytest.raises(ConnectRequestError, match="STOPPED"):
                await connect.alter_offsets("a", [entry])
            await eventually(lambda: state_of(connect, "a") == "STOPPED")
            await connect.alter_offsets("a", [entry])
            assert list(await connect.offsets("a")) == [entry]
            await connect.reset_offsets("a")
            assert list(await connect.offsets("a")) == []

    asyncio.run(scenario())


def test_a_connector_whose_start_hangs_is_stopped_when_its_process_is_gone() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(CHAOS, chaos_connector_start="hang", chaos_dying="0.2")
            await connect.create("a", config)
            await eventually(lambda: launcher.alive("a", None))
            await connect.set_target("a", Target.STOPPED)
            while launcher.alive("a", None):
                assert state_of(connect, "a") in {"UNASSIGNED", "FAILED"}
                await asyncio.sleep(0.01)
            await eventually(lambda: state_of(connect, "a") == "STOPPED")

    asyncio.run(scenario())


def test_a_connector_may_refuse_offsets() -> None:
    async def scenario() -> None:
        async with started(FakeLauncher()) as connect:
            config = config_of(CHAOS) | {"chaos.alter_offsets": "raise"}
            await connect.create("a", config, target=Target.STOPPED)
            with pytest.raises(ConnectRequestError, match="ChaosError"):
                await connect.alter_offsets("a", [OffsetEntry({"file": "x"}, {"line": 3})])

    asyncio.run(scenario())


@pytest.mark.requirement(19)
@pytest.mark.requirement(25)
@pytest.mark.defect(1)
def test_the_defect_that_one_stop_freezes_all_is_not_ours() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            for number in range(10):
                await connect.create(f"stuck{number}", config_of(CHAOS, chaos_stop="hang"))
            for number in range(10):
                await until_running(connect, f"stuck{number}")
            for number in range(10):
                await connect.delete(f"stuck{number}")
            began = asyncio.get_running_loop().time()
            await connect.create("well", config_of(CHAOS))
            await until_running(connect, "well")
            assert asyncio.get_running_loop().time() - began < 0.5
            assert len([host for host in launcher.hosts if host.alive()]) > 2
            # Each was asked once, and its own code stops it: nobody else calls stop().
            stuck = launcher.of("stuck0", 0)[0]
            assert (stuck.story.count("asked"), stuck.story.count("stop")) == (1, 1)

    asyncio.run(scenario())


@pytest.mark.defect(15)
def test_tasks_get_all_that_their_connector_was_told() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            config = config_of(CHAOS, errors_tolerance="all", value_converter="json")
            await connect.create("a", config)
            await until_running(connect, "a")
            told = launcher.of("a", 0)[0].spec.config
            assert told["errors.tolerance"] == "all"
            assert told["value.converter"] == "json"
            assert told["task.share"] == "0/1"

    asyncio.run(scenario())


@pytest.mark.defect(4)
def test_a_task_that_failed_and_does_not_go_holds_up_nobody_and_is_killed() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS, chaos_stop="hang"))
            await until_running(connect, "a")
            host = launcher.of("a", 0)[0]
            host.tell(Failed(Cause("ChaosError: lost")))
            await eventually(lambda: states(connect, "a") == ["RUNNING", "FAILED"])
            assert host.alive()
            await connect.create("b", config_of(CHAOS))
            await until_running(connect, "b")
            await eventually(lambda: not host.alive())
            assert "ChaosError: lost" in connect.status("a").tasks[0].trace

    asyncio.run(scenario())
