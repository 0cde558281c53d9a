"""Hosts as processes: they start, stop, fail and are ended, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.hosts import TaskChannel
from headrace.connect.worker import (
    Failed,
    OutsideChanged,
    PluginCall,
    ReconfigureAsked,
    Started,
    Stopped,
    StopRaised,
    TopicTouched,
    Unhealthy,
)
from tests.connect.hosts.running import (
    SOURCE,
    await_that,
    is_gone,
    launched,
    launcher_in,
    on_loop,
)

units = pytest.mark.parametrize("task", [None, 0], ids=["connector", "task"])


def wrong(task: int | None, callback: str, how: str) -> dict[str, Any]:
    return {f"chaos_{'connector_' if task is None else ''}{callback}": how}


@pytest.mark.requirement(33)
@pytest.mark.defect(1)
@units
@on_loop
async def test_start_and_stop_are_called_once_in_the_hosts_own_main_thread(
    tmp_path: Path, task: int | None
) -> None:
    trace = tmp_path / "trace"
    trace.touch()
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, task=task, trace=str(trace))
        await heard.first(Started)
        if task is not None:
            await await_that(lambda: "poll" in trace.read_text())
        host.ask_stop()
        await heard.end()
    calls = [line.split() for line in trace.read_text().splitlines()]
    assert [call[0] for call in calls].count("start") == 1
    assert [call[0] for call in calls].count("stop") == 1
    assert calls[-1][0] == "stop"
    # The main thread's number is the process's.
    assert {(call[1], call[2]) for call in calls} == {(str(host.pid), str(host.pid))}
    assert host.pid != os.getpid()
    assert heard.kinds() == ["Started", "Stopped", "Exited"]
    assert (await heard.end()).status == 0


@pytest.mark.requirement(25)
@pytest.mark.requirement(44)
@pytest.mark.parametrize("how", ["hang", "hang-hard", "busy"])
@on_loop
async def test_start_that_never_returns_blocks_nobody_and_is_ended(
    tmp_path: Path, how: str
) -> None:
    async with launcher_in(tmp_path) as launcher:
        stuck, heard = await launched(launcher, name="stuck", chaos_start=how)
        _, other = await launched(launcher, name="other")
        started = await other.first(Started)
        with TaskChannel(started.address) as channel:
            wait = timedelta(seconds=5)
            polled = await asyncio.to_thread(channel.poll, 1, max_records=10, wait=wait)
        assert polled.rows.num_rows == 10
        assert heard.kinds() == []
        stuck.kill()
        assert (await heard.end()).signal == 9
        assert not stuck.alive()
        assert is_gone(stuck.pid)
        assert other.kinds() == ["Started"]


@pytest.mark.requirement(26)
@pytest.mark.defect(2)
@units
@on_loop
async def test_start_that_raises_is_told_with_its_cause(tmp_path: Path, task: int | None) -> None:
    async with launcher_in(tmp_path) as launcher:
        config = wrong(task, "start", "raise: no such table")
        _, heard = await launched(launcher, task=task, **config)
        failed = await heard.first(Failed)
        assert "failed in start(): ChaosError: no such table" in failed.cause.summary
        assert failed.cause.summary.startswith("connector 'chaos'" if task is None else "task 0 of")
        assert "Traceback" in failed.cause.trace
        assert (await heard.end()).status == 1
        assert heard.kinds() == ["Failed", "Exited"]


@pytest.mark.requirement(26)
@on_loop
async def test_cause_names_the_line_of_the_users_own_code(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "my_plugin.py").write_text(
        "from headrace.connect import SourceConnector, SourceTask\n"
        "class Task(SourceTask):\n"
        "    def poll(self):\n"
        "        return 1 / 0\n"
        "class Mine(SourceConnector):\n"
        "    task = Task\n"
        "    def task_configs(self, max_tasks):\n"
        "        return [{}]\n"
    )
    async with launcher_in(tmp_path, folders=(str(plugins),)) as launcher:
        _, heard = await launched(launcher, connector_class="my_plugin:Mine")
        summary = (await heard.first(Failed)).cause.summary
        assert summary == (
            "task 0 of connector 'chaos' failed in poll(): ZeroDivisionError: division by zero,"
            f" at {plugins}/my_plugin.py:4 in poll: return 1 / 0"
        )


@pytest.mark.requirement(27)
@pytest.mark.requirement(39)
@pytest.mark.requirement(40)
@pytest.mark.requirement(41)
@pytest.mark.parametrize("how", ["hang", "hang-hard", "busy"])
@units
@on_loop
async def test_stop_that_never_returns_is_ended(tmp_path: Path, task: int | None, how: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, task=task, **wrong(task, "stop", how))
        await heard.first(Started)
        host.ask_stop()
        await asyncio.sleep(0.2)
        # Its handle is kept as long as it lives.
        assert host.alive()
        assert launcher.statistics().hosts == 1
        before = time.monotonic()
        host.kill()
        await heard.end()
        assert time.monotonic() - before < 2
        assert is_gone(host.pid)
        assert heard.kinds() == ["Started", "Exited"]


@pytest.mark.requirement(42)
@pytest.mark.requirement(35)
@units
@on_loop
async def test_stop_that_raises_is_told_with_its_trace(tmp_path: Path, task: int | None) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, task=task, **wrong(task, "stop", "raise: busy"))
        await heard.first(Started)
        host.ask_stop()
        failed = await heard.first(StopRaised)
        assert "failed in stop(): ChaosError: busy" in failed.cause.summary
        assert "chaos.py" in failed.cause.trace
        await heard.end()
        assert heard.kinds() == ["Started", "StopRaised", "Exited"]


@pytest.mark.requirement(35)
@pytest.mark.requirement(23)
@on_loop
async def test_poll_that_raises_fails_the_task_and_stop_is_still_called(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, chaos_poll="raise: gone @ 2", trace=str(trace))
        assert "poll(): ChaosError: gone" in (await heard.first(Failed)).cause.summary
        await heard.end()
    called = [line.split()[0] for line in trace.read_text().splitlines()]
    assert called == ["start", "poll", "poll", "stop"]


@pytest.mark.requirement(36)
@on_loop
async def test_stop_asked_during_start_is_honoured_when_start_is_over(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        trace = tmp_path / "trace"
        host, heard = await launched(launcher, chaos_start="slow: 0.3", trace=str(trace))
        await await_that(lambda: trace.exists() and "start" in trace.read_text())
        host.ask_stop()
        await heard.first(Stopped)
        assert heard.kinds()[:2] == ["Started", "Stopped"]


@pytest.mark.requirement(45)
@pytest.mark.requirement(48)
@pytest.mark.parametrize("how", ["fork", "fork: session", "fork: daemon", "fork: clean"])
@on_loop
async def test_kill_covers_what_the_host_forked(tmp_path: Path, how: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start=how)
        await heard.first(Started)
        forked = [pid for pid in descendants_of(host.keeper) if pid != host.pid]
        assert len(forked) == 1
        host.kill()
        await heard.end()
        assert is_gone(forked[0])
        assert is_gone(host.pid)


@pytest.mark.requirement(49)
@on_loop
async def test_host_that_stops_in_order_leaves_nothing_that_it_forked(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start="fork: daemon")
        await heard.first(Started)
        forked = [pid for pid in descendants_of(host.keeper) if pid != host.pid]
        host.ask_stop()
        assert (await heard.end()).status == 0
        assert is_gone(forked[0])


def descendants_of(pid: int) -> list[int]:
    from headrace.connect.hosts.processes import descendants

    return descendants(pid)


@pytest.mark.requirement(52)
@pytest.mark.parametrize(
    "how", ["leak: 20", "burst: 4000", "fork; leak: 20"], ids=["leak", "burst", "fork"]
)
@on_loop
async def test_task_that_takes_too_much_memory_dies_alone(tmp_path: Path, how: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, other = await launched(launcher, name="other", memory_mb=300)
        how = f"{how}; slow: 0.02" if "leak" in how else how
        host, heard = await launched(launcher, name="leaking", memory_mb=300, chaos_poll=how)
        failed = await heard.first(Failed)
        assert "took" in failed.cause.summary or "MemoryError" in failed.cause.summary
        await heard.end()
        assert is_gone(host.pid)
        await other.first(Started)
        assert "Failed" not in other.kinds()


@pytest.mark.requirement(43)
@on_loop
async def test_host_may_be_ended_without_being_asked(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_stop="hang", trace=str(trace))
        await heard.first(Started)
        before = time.monotonic()
        host.kill()
        await heard.end()
        assert time.monotonic() - before < 4
    assert "stop" not in trace.read_text()


@pytest.mark.requirement(22)
@on_loop
async def test_tasks_of_a_connector_share_nothing_that_one_could_take_along(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        first, heard = await launched(launcher, task=0)
        _, other = await launched(launcher, task=1)
        await heard.first(Started)
        first.ask_stop()
        await heard.end()
        with TaskChannel((await other.first(Started)).address) as channel:
            polled = await asyncio.to_thread(channel.poll, 1, wait=timedelta(seconds=5))
        assert polled.rows.num_rows > 0


@pytest.mark.requirement(29)
@pytest.mark.requirement(47)
@on_loop
async def test_four_endings_are_told_apart(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        returned, heard_returned = await launched(launcher, name="returned")
        _, heard_raised = await launched(launcher, name="raised", chaos_poll="raise")
        killed, heard_killed = await launched(launcher, name="killed", chaos_stop="hang")
        _, heard_exited = await launched(launcher, name="exited", chaos_poll="exit: 7")
        await heard_returned.first(Started)
        await heard_killed.first(Started)
        returned.ask_stop()
        killed.ask_stop()
        killed.kill()
        ends = [
            await heard.end()
            for heard in (heard_returned, heard_raised, heard_killed, heard_exited)
        ]
        assert [(end.status, end.signal) for end in ends] == [
            (0, None),
            (1, None),
            (None, 9),
            (7, None),
        ]
        assert "ended by itself with status 7" in (await heard_exited.first(Failed)).cause.summary
        assert launcher.statistics().hosts == 0


@on_loop
async def test_who_falls_over_its_last_words_was_killed(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start="frail")
        await heard.first(Started)
        host.kill()
        assert (await heard.end()).signal == signal.SIGKILL


@pytest.mark.requirement(46)
@on_loop
async def test_process_that_crashes_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, chaos_poll="segfault")
        cause = (await heard.first(Failed)).cause
        assert "was killed by SIGSEGV, not by its worker" in cause.summary
        assert "Segmentation fault" in cause.trace


@pytest.mark.requirement(30)
@pytest.mark.parametrize(
    ("how", "reason"), [("raise: no disk", "no disk"), ("hang", "healthy() has not answered")]
)
@units
@on_loop
async def test_probe_that_says_no_or_nothing_is_told(
    tmp_path: Path, task: int | None, how: str, reason: str
) -> None:
    async with launcher_in(tmp_path, probe_interval=0.05) as launcher:
        _, heard = await launched(launcher, task=task, **wrong(task, "healthy", how))
        assert reason in (await heard.first(Unhealthy)).reason


@pytest.mark.requirement(46)
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ImportError('no driver')", "cannot be loaded: ImportError: no driver"),
        ("import sys; sys.exit('over')", "cannot be loaded: SystemExit: over"),
        ("def", "cannot be loaded: SyntaxError: "),
        ("class Mine: pass", "which is no connector"),
        (
            (
                "from headrace.connect.testing.chaos import ChaosSource, act\n"
                "class Mine(ChaosSource):\n    def __init__(self): act('raise: early')"
            ),
            "failed in __init__(): ChaosError: early",
        ),
    ],
    ids=["raises", "exits", "syntax", "no-connector", "init"],
)
@on_loop
async def test_plugin_that_cannot_be_made_is_contained(
    tmp_path: Path, body: str, told: str
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "broken_plugin.py").write_text(body)
    async with launcher_in(tmp_path, folders=(str(plugins),)) as launcher:
        _, heard = await launched(launcher, task=None, connector_class="broken_plugin:Mine")
        assert told in (await heard.first(Failed)).cause.summary
        assert (await heard.end()).status == 1
        answer = await launcher.call(asking({}, connector="broken_plugin:Mine"))
        assert answer.failure is not None
        _, other = await launched(launcher)
        await other.first(Started)


@pytest.mark.requirement(46)
@on_loop
async def test_plugin_whose_import_hangs_can_be_ended(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "slow_plugin.py").write_text("import time; time.sleep(3600)")
    settings = {"folders": (str(plugins),), "call_timeout": 0.3}
    async with launcher_in(tmp_path, **settings) as launcher:
        host, heard = await launched(launcher, connector_class="slow_plugin:Mine")
        assert (await launcher.call(asking({}, connector="slow_plugin:Mine"))).timed_out
        host.kill()
        await heard.end()
        assert is_gone(host.pid)


@pytest.mark.requirement(31)
@on_loop
async def test_reconfiguration_may_be_asked_for_by_a_task(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, chaos_start="reconfigure")
        await heard.first(ReconfigureAsked)


@on_loop
async def test_a_value_from_outside_that_changes_is_told_unless_nobody_wants_it(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    async with launcher_in(tmp_path, outside_interval=0.02) as launcher:
        outside: dict[str, Any] = {"door.secret": f"${{file:{secret}}}"}
        _, told = await launched(launcher, task=None, **outside)
        _, deaf = await launched(
            launcher, task=None, name="deaf", **outside, config_action_reload="none"
        )
        await told.first(Started)
        await deaf.first(Started)
        secret.unlink()  # as it is being replaced: that is no change
        await asyncio.sleep(0.1)
        secret.write_text("kingfisher")
        await told.first(OutsideChanged)
        assert told.kinds() == ["Started", "OutsideChanged"]
        assert deaf.kinds() == ["Started"]


@units
@on_loop
async def test_unit_that_says_it_failed_is_stopped(tmp_path: Path, task: int | None) -> None:
    async with launcher_in(tmp_path) as launcher:
        config = wrong(task, "start", "fail: the lamp is out")
        _, heard = await launched(launcher, task=task, **config)
        summary = (await heard.first(Failed)).cause.summary
        assert summary.endswith("says that it failed: the lamp is out")
        assert (await heard.end()).status == 1


@on_loop
async def test_paused_task_is_not_polled_until_it_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, paused=True, trace=str(trace))
        await heard.first(Started)
        await asyncio.sleep(0.1)
        assert "poll" not in trace.read_text()
        host.pause(paused=False)
        await await_that(lambda: "poll" in trace.read_text())


@on_loop
async def test_call_answers_and_its_process_goes(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        answer = await launcher.call(asking({"trace": str(trace)}))
        assert answer.value is True
        await await_that(lambda: launcher.statistics().hosts == 0)
    # The instance that was made for the question has never been started.
    assert calls_in(trace) == ["alter_offsets"]


def calls_in(trace: Path) -> list[str]:
    return [line.split()[0] for line in trace.read_text().splitlines()]


@on_loop
async def test_a_connector_that_runs_is_asked_for_its_tasks_and_started_once(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, task=None, trace=str(trace), max_tasks="3")
        await heard.first(Started)
        for _again in range(2):
            answer = await host.task_configs()
            assert answer is not None
            assert [one["chaos.task"] for one in answer.value] == ["0", "1", "2"]
        assert launcher.statistics().hosts == 1
        host.ask_stop()
        await heard.first(Stopped)
        await heard.end()
        assert await host.task_configs() is None
    assert calls_in(trace) == ["start", "task_configs", "task_configs", "stop"]


@on_loop
async def test_a_connector_with_two_numbers_of_tasks_fails_and_names_both_keys(
    tmp_path: Path,
) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, task=None, tasks_max="2", max_tasks="3")
        summary = (await heard.first(Failed)).cause.summary
        assert "The keys tasks.max and max.tasks mean the same and disagree" in summary


@on_loop
async def test_a_host_that_says_what_nobody_can_read_is_ended_with_its_words(
    tmp_path: Path,
) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher)
        await heard.first(Started)
        ours, theirs = socket.socketpair()
        # As if it came through the channel that the host has.
        await asyncio.get_running_loop().create_connection(lambda: host, sock=ours)
        theirs.sendall(b'{"type":"Sung","song":"la"}\n')
        summary = (await heard.first(Failed)).cause.summary
        assert 'its host is of another version than the worker: b\'{"type":"Sung"' in summary
        await heard.end()
        assert heard.kinds() == ["Started", "Failed", "Exited"]
        theirs.close()


@pytest.mark.requirement(46)
@on_loop
async def test_a_connector_that_cannot_say_its_tasks_gives_the_cause_and_lives_on(
    tmp_path: Path,
) -> None:
    async with launcher_in(tmp_path) as launcher:
        wrong: Any = {"chaos.connector.task_configs": "raise: no"}
        host, heard = await launched(launcher, task=None, **wrong)
        await heard.first(Started)
        answer = await host.task_configs()
        assert answer is not None
        assert answer.failure is not None
        assert "failed in task_configs(): ChaosError: no" in answer.failure.summary
        assert host.alive()


@pytest.mark.parametrize("how", ["exit: 3", "hang-hard"])
@on_loop
async def test_a_question_for_tasks_is_over_when_the_connector_is_gone(
    tmp_path: Path, how: str
) -> None:
    async with launcher_in(tmp_path) as launcher:
        wrong: Any = {"chaos.connector.task_configs": how}
        host, heard = await launched(launcher, task=None, **wrong)
        await heard.first(Started)
        asked = asyncio.create_task(host.task_configs())
        if how == "hang-hard":
            await asyncio.wait([asked], timeout=0.2)
            assert not asked.done()
            host.kill()
        assert await asked is None
        await heard.end()


@pytest.mark.requirement(46)
@on_loop
async def test_call_that_raises_gives_its_cause(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        answer = await launcher.call(asking({"chaos.connector.alter_offsets": "raise: no"}))
        assert answer.failure is not None
        assert "ChaosError: no" in answer.failure.summary


@pytest.mark.parametrize("how", ["exit: 3", "segfault"])
@on_loop
async def test_call_whose_process_dies_gives_a_cause(tmp_path: Path, how: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        answer = await launcher.call(asking({"chaos.connector.alter_offsets": how}))
        assert answer.failure is not None
        assert not answer.timed_out


@on_loop
async def test_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, call_timeout=0.5) as launcher:
        before = time.monotonic()
        answer = await launcher.call(asking({"chaos.connector.alter_offsets": "hang-hard"}))
        assert answer.timed_out
        assert time.monotonic() - before < 3
        await await_that(lambda: launcher.statistics().hosts == 0)


def asking(config: dict[str, str], connector: str = SOURCE) -> PluginCall:
    return PluginCall(
        what="alter_offsets",
        connector_class=connector,
        config={"name": "chaos", **config},
        arguments={"offsets": []},
    )


@on_loop
async def test_output_of_a_unit_and_of_its_last_generation_is_kept(tmp_path: Path) -> None:
    logs = tmp_path / "run" / "logs"
    async with launcher_in(tmp_path) as launcher:
        for generation in (8, 9, 10):
            for name, task in (("a", 0), ("a", None), ("ä", None)):
                host, heard = await launched(launcher, name=name, task=task, generation=generation)
                host.kill()
                # The log of one that lives is kept.
                await heard.end()
        kept = sorted(path.name for path in logs.iterdir())
    connector = [f"a.connector.{generation}.log" for generation in (10, 9)]
    assert kept[2:] == [*connector, "a.task-0.10.log", "a.task-0.9.log"]
    assert len(kept) == 6


@on_loop
async def test_a_log_that_has_grown_long_is_cut_while_its_host_runs_on(tmp_path: Path) -> None:
    log = tmp_path / "run" / "logs" / "chaos.task-0.1.log"
    async with launcher_in(tmp_path, probe_interval=0.3) as launcher:
        loud = "tests.connect.hosts.chatty:LoudConnector"
        host, heard = await launched(launcher, role="sink", connector_class=loud)
        await heard.first(Started)
        await await_that(lambda: log.read_bytes().startswith(b"... (the beginning was cut)"))
        # It may have been cut amid a line.
        await await_that(lambda: b" enough\n" in log.read_bytes())
        size = log.stat().st_size
        await await_that(lambda: log.stat().st_size > size)
        assert host.alive()
        assert set(heard.kinds()) <= {"Started", "Healthy"}


@on_loop
async def test_logs_of_a_connector_are_dropped_but_for_those_of_hosts_that_live(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "run" / "logs"
    async with launcher_in(tmp_path) as launcher:
        for name, task, generation in (("a", 0, 1), ("a", 12, 1), ("a", None, 1), ("a-b", None, 1)):
            host, heard = await launched(launcher, name=name, task=task, generation=generation)
            host.kill()
            await heard.end()
        await launched(launcher, name="a", task=None, generation=2)
        launcher.drop_logs("a")
        assert sorted(path.name for path in logs.iterdir()) == [
            "a-b.connector.1.log",
            "a.connector.2.log",
        ]


@on_loop
async def test_first_use_of_a_topic_is_told(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, topic="lines", records="30")
        await heard.first(TopicTouched)
        await asyncio.sleep(0.1)
        assert [event for event in heard.events if isinstance(event, TopicTouched)] == [
            TopicTouched("lines")
        ]


@on_loop
async def test_host_that_is_killed_says_where_it_was(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_poll="hang", trace=str(trace))
        await await_that(lambda: trace.exists() and "poll" in trace.read_text())
        host.kill()
        await heard.end()
        assert "chaos.py" in host.log.read_text()
        assert "in poll" in host.log.read_text()


@on_loop
async def test_launch_that_is_given_up_leaves_no_host(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        await launched(launcher)
        launching = asyncio.create_task(launched(launcher, name="unwanted"))
        await await_that(lambda: launcher.statistics().hosts == 2)
        launching.cancel()
        await asyncio.wait([launching])
        if launching.cancelled():
            await await_that(lambda: launcher.statistics().hosts == 1)


@on_loop
async def test_many_launches_at_once_do(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        begun = await asyncio.gather(
            *(launched(launcher, name=f"n{number}", records="0") for number in range(50))
        )
        for _, heard in begun:
            await heard.first(Started)
        assert len({host.pid for host, _ in begun}) == 50
