"""Connectors that share a host: what each does by itself, and what all of them suffer together."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.connect_worker import await_true
from headrace.connect.config import Masking
from headrace.connect.hosts import HostSettings, ProcessLauncher, host as hosting
from headrace.connect.log import ClusterView, ConnectorPut, TasksPut, fold
from headrace.connect.worker import Failed, PluginAnswer, Started, WorkerSettings
from headrace.connect.worker.catalog import PluginDescription
from headrace.connect.worker.worker import host_spec
from headrace.leases import boot_time
from tests.connect.fakes.launcher import FakePositions
from tests.connect.hosts.leaky import PASSWORD, TOKEN
from tests.connect.hosts.running import (
    SINK,
    SOURCE,
    Heard,
    WithoutData,
    await_that,
    is_gone,
    launcher_in,
    lodged,
    on_loop,
)
from tests.connect.running import Running, quick_settings, running

LEAKY = "tests.connect.hosts.leaky:LeakyConnector"
LEAKY_TEXTS = {"connector.class": LEAKY, "topics": "t", "password": "nothing", "token": "nothing"}


async def started(launcher: ProcessLauncher, *names: str, **config: Any) -> list[Any]:
    """Have connectors share a host; give each with what is heard of it, once all have started."""
    found = [await lodged(launcher, name, **config) for name in names]
    for _, heard in found:
        await heard.first(Started)
    return found


async def told(heard: Heard) -> str:
    return (await heard.first(Failed)).cause.summary


@on_loop
async def test_connectors_of_a_class_live_in_one_process_each_in_a_thread_of_its_own(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        (a, heard_a), (b, heard_b), (c, heard_c) = await started(
            launcher, "a", "b", "c", trace=str(trace), tasks_max="2"
        )
        assert len({one.pid for one in (a, b, c)}) == launcher.statistics().hosts == 1
        answers = await asyncio.gather(*(one.task_configs() for one in (a, b, c)))
        assert [len(one.value) for one in answers if isinstance(one, PluginAnswer)] == [2, 2, 2]
        a.ask_stop()
        assert (await heard_a.end()).status == 0
        assert not a.alive()
        assert b.alive()
        assert not is_gone(a.pid)
        c.ask_stop()
        await heard_c.end()
        assert not is_gone(b.pid)
        b.ask_stop()
        assert (await heard_b.end()).status == 0
        # With the last of them, all that any of them has left is gone.
        assert is_gone(b.pid)
        assert launcher.statistics().hosts == 0
    for heard in (heard_a, heard_b, heard_c):
        assert heard.kinds() == ["Started", "Stopped", "Exited"]
    calls = [line.split() for line in trace.read_text().splitlines()]
    assert {call[1] for call in calls} == {str(a.pid)}
    assert sorted(call[0] for call in calls) == sorted(["start", "task_configs", "stop"] * 3)
    # Each is called by one thread of its own, and none by the process's main thread.
    threads = [call[2] for call in calls]
    assert str(a.pid) not in threads
    assert [threads.count(one) for one in set(threads)] == [3, 3, 3]


@on_loop
async def test_another_class_has_another_process(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, _),) = await started(launcher, "a")
        ((b, _),) = await started(launcher, "b", connector_class=SINK)
        assert a.pid != b.pid


@pytest.mark.parametrize("how", ["raise: no such table", "fail: no such table"])
@on_loop
async def test_one_that_fails_ends_and_the_others_go_on(tmp_path: Path, how: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard_a),) = await started(launcher, "a")
        b, heard_b = await lodged(launcher, "b", chaos_connector_start=how)
        assert "no such table" in await told(heard_b)
        assert (await heard_b.end()).status == 1
        assert not b.alive()
        assert b.pid == a.pid
        # It comes back beside the others.
        ((again, _),) = await started(launcher, "b", generation=2)
        assert again.pid == a.pid
        answer = await a.task_configs()
        assert answer is not None
        assert answer.failure is None
        assert heard_a.kinds() == ["Started"]


@on_loop
async def test_one_that_does_not_stop_takes_the_others_along_who_say_so(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard_a),) = await started(launcher, "a")
        ((x, heard_x),) = await started(launcher, "x", chaos_connector_stop="hang")
        x.ask_stop()
        await asyncio.sleep(0.1)
        assert x.alive()
        x.kill()
        assert (await heard_x.end()).signal == signal.SIGKILL
        assert heard_x.kinds() == ["Started", "Exited"]
        assert await told(heard_a) == (
            f"connector 'a' failed: the host that it shares with others of {SOURCE} was ended, as"
            " connector 'x' did not stop"
        )
        assert "in stop" in (await heard_a.first(Failed)).cause.trace
        assert (await heard_a.end()).signal == signal.SIGKILL
        assert heard_a.kinds() == ["Started", "Failed", "Exited"]
        assert is_gone(a.pid)
        ((again, _),) = await started(launcher, "a", generation=2)
        assert again.pid != a.pid


@on_loop
async def test_one_that_is_killed_unasked_may_stop_first_for_the_sake_of_the_others(
    tmp_path: Path,
) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard_a), (b, heard_b)) = await started(launcher, "a", "b")
        b.kill()
        assert (await heard_b.end()).status == 0
        assert heard_a.kinds() == ["Started"]
        assert a.alive()
        ((c, heard_c),) = await started(launcher, "c", chaos_connector_stop="hang")
        before = time.monotonic()
        c.kill()
        await heard_c.end()
        assert time.monotonic() - before < 4
        assert is_gone(a.pid)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("segfault", "was killed by SIGSEGV, not by its worker"),
        ("exit: 3", "ended by itself with status 3, without stop()"),
    ],
)
@on_loop
async def test_a_crash_is_told_of_all(tmp_path: Path, how: str, why: str) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard_a),) = await started(launcher, "a")
        ((b, heard_b),) = await started(launcher, "b", **{"chaos.connector.task_configs": how})
        assert await b.task_configs() is None
        for name, heard in (("a", heard_a), ("b", heard_b)):
            summary = await told(heard)
            assert summary.startswith(f"connector '{name}' failed: the host that it shares with")
            assert summary.endswith(why)
            await heard.end()
            assert heard.kinds() == ["Started", "Failed", "Exited"]
        assert is_gone(a.pid)


@on_loop
async def test_the_end_of_the_lease_and_a_killed_keeper_are_told_of_all(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        launcher.live_until(boot_time() + 60)
        found = await started(launcher, "a", "b")
        launcher.live_until(boot_time())
        for _, heard in found:
            assert "was ended with its worker's lease" in await told(heard)
            assert (await heard.end()).signal == signal.SIGKILL


@on_loop
async def test_memory_of_a_shared_host_is_bounded_as_a_whole(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((_, heard_a),) = await started(launcher, "a", memory_mb=300)
        config = {"chaos.connector.task_configs": "leak: 400; slow: 60"}
        ((b, _),) = await started(launcher, "b", memory_mb=300, **config)
        assert await b.task_configs() is None
        assert "MB of memory, more than it may" in await told(heard_a)


@on_loop
async def test_secrets_of_all_are_hidden_in_what_any_of_them_prints(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    secrets = {"password": PASSWORD, "token": f"${{file:{tmp_path}/token}}"}
    async with launcher_in(tmp_path) as launcher:
        launcher.set_level("headrace.connect.plugin", logging.DEBUG)
        await started(launcher, "knows", **LEAKY_TEXTS | secrets)
        says = f"{PASSWORD} and {TOKEN}"
        await started(launcher, "prints", **LEAKY_TEXTS, says=says)
        (log,) = (tmp_path / "run" / "logs").glob("*.shared.1.log")
        written = log.read_text()
    assert "said ******** and ********\n" in written
    # Whose thread it was stands beside what is logged.
    line = "DEBUG [prints] headrace.connect.plugin.prints: whispered ******** and ********\n"
    assert line in written


@on_loop
async def test_a_level_reaches_connectors_that_share_a_host(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        await started(launcher, "a", **LEAKY_TEXTS, says="one")
        launcher.set_level("headrace.connect.plugin", logging.DEBUG)
        await started(launcher, "b", **LEAKY_TEXTS, says="two")
        (log,) = (tmp_path / "run" / "logs").iterdir()
        written = log.read_text()
    assert "whispered one" not in written
    assert "whispered two" in written


@on_loop
async def test_logs_of_shared_hosts_are_dropped_with_the_last_who_wrote_there(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "run" / "logs"
    async with launcher_in(tmp_path) as launcher:
        for _ in range(3):
            found = await started(launcher, "a", "b")
            for unit, heard in found:
                unit.ask_stop()
                await heard.end()
        assert sorted(one.name.partition(".")[2] for one in logs.iterdir()) == [
            "shared.2.log",
            "shared.3.log",
        ]
        ((_, _),) = await started(launcher, "a")
        launcher.drop_logs("a")
        assert len(list(logs.iterdir())) == 2
        launcher.drop_logs("b")
        (left,) = logs.iterdir()
        assert left.name.endswith(".shared.4.log")


@on_loop
async def test_what_is_installed_meanwhile_needs_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard_a),) = await started(launcher, "a")
        monkeypatch.setattr(launcher, "installed", lambda: "more")
        ((b, _),) = await started(launcher, "b")
        assert b.pid != a.pid
        a.ask_stop()
        assert (await heard_a.end()).status == 0
        assert is_gone(a.pid)
        ((c, _),) = await started(launcher, "c")
        assert c.pid == b.pid


@on_loop
async def test_many_that_begin_at_once_share_one_process(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        found = await asyncio.gather(*(lodged(launcher, f"n{number}") for number in range(30)))
        for _, heard in found:
            await heard.first(Started)
        assert len({unit.pid for unit, _ in found}) == 1
        for unit, _ in found:
            unit.ask_stop()
        for _, heard in found:
            assert (await heard.end()).status == 0
        await await_that(lambda: launcher.statistics().hosts == 0)


@on_loop
async def test_a_launcher_that_closes_ends_shared_hosts(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        ((a, heard),) = await started(launcher, "a", chaos_connector_start="fork: daemon")
    assert heard.kinds() == ["Started", "Exited"]
    assert is_gone(a.pid)


def test_a_unit_that_cannot_be_made_out_fails_alone() -> None:
    worker, theirs = socket.socketpair()
    worker.settimeout(10)
    before = set(threading.enumerate())
    with worker, worker.makefile("rb") as lines:
        hosting._take_in(theirs, Masking())
        assert orjson.loads(lines.readline())["type"] == "Born"
        worker.sendall(b'{"kind": 7}\n')
        failed, left = map(orjson.loads, lines)
    assert failed["type"] == "Failed"
    assert "a connector failed in its host: " in failed["cause"]["summary"]
    assert left["type"] == "Left"
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def test_a_unit_whose_launch_is_given_up_leaves() -> None:
    worker, theirs = socket.socketpair()
    before = set(threading.enumerate())
    hosting._take_in(theirs, Masking())
    worker.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("config", "more", "shares"),
    [
        ({}, {}, ""),
        ({}, {"share_hosts": True}, "shop.Orders"),
        ({}, {"share_hosts": True, "memory_mb": 500}, "shop.Orders"),
        ({"task.memory.mb": "500"}, {"share_hosts": True}, ""),
    ],
)
def test_who_shares(config: dict[str, str], more: dict[str, Any], shares: str) -> None:
    view, _ = fold(ClusterView(), ConnectorPut(request="a", name="a", config=config), 0)
    tasks = TasksPut(name="a", config_version=view.entries["a"].version, configs=[{}])
    view, _ = fold(view, tasks, 1)
    plugin, settings = (
        PluginDescription(class_name="shop.Orders", type="source"),
        WorkerSettings(**more),
    )
    specs = [host_spec(one, view.entries["a"], plugin, settings) for one in view.units()]
    assert [(one.kind, one.shares) for one in specs] == [("connector", shares), ("task", "")]


# A worker with hosts, seen by REST


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Running]:
    settings = quick_settings(
        share_hosts=True, start_timeout="60 s", graceful_timeout="500 ms", kill_timeout="2 s"
    )
    hosts = HostSettings(call_timeout=60.0, probe_interval=0)
    positions = FakePositions()
    with running(
        lambda: WithoutData(tmp_path / "run", hosts), lambda _: positions, settings=settings
    ) as one:
        # What all hosts are forked from takes its time on a busy machine.
        one.http.get("/connector-plugins", timeout=60).raise_for_status()
        yield one


def put(worker: Running, name: str, **config: str) -> None:
    texts = {
        "connector.class": SOURCE,
        "restart.max.attempts": "-1",
        "restart.pause.ms": "50",
        **{key.replace("_", "."): text for key, text in config.items()},
    }
    worker.ask("PUT", f"/connectors/{name}/config", json=texts).raise_for_status()


def copies(worker: Running) -> dict[tuple[str, int | None], dict[str, Any]]:
    """What lives on a worker."""
    found = worker.ask("GET", "/admin/tasks").json()
    return {(one["connector"], one["task"]): one for one in found if one["pid_alive"]}


def pids(worker: Running) -> set[int]:
    return {one["pid"] for one in copies(worker).values()}


def run(worker: Running, *names: str) -> bool:
    found = copies(worker)
    units = [(name, task) for name in names for task in (None, 0)]
    return all(unit in found and found[unit]["phase"] == "RUNNING" for unit in units)


def until(what: str, holds: Callable[[], bool]) -> None:
    await_true(what, holds, timedelta(seconds=60))


def test_a_worker_starts_again_what_one_that_hangs_has_taken_along(worker: Running) -> None:
    names = ("a", "b", "x")
    # They did nothing: they need not ask for it.
    put(worker, "a", restart_max_attempts="0")
    put(worker, "b", restart_max_attempts="0")
    put(worker, "x", chaos_connector_stop="hang")
    until("three connectors that run", lambda: run(worker, *names))
    before = copies(worker)
    (shared,) = {before[name, None]["pid"] for name in names}
    assert len({one["pid"] for one in before.values()}) == 4
    worker.ask("DELETE", "/connectors/x").raise_for_status()
    until("the end of their host", lambda: shared not in pids(worker))
    until("two that run again", lambda: run(worker, "a", "b"))
    assert is_gone(shared)
    after = copies(worker)
    assert after.keys() == {(name, task) for name in "ab" for task in (None, 0)}
    assert after["a", None]["pid"] == after["b", None]["pid"]
    assert after["a", None]["restarts"] == 1
    # One that stops when it is asked is no matter to the others.
    worker.ask("DELETE", "/connectors/b").raise_for_status()
    until("the end of one", lambda: ("b", None) not in copies(worker))
    assert copies(worker)["a", None]["pid"] == after["a", None]["pid"]
