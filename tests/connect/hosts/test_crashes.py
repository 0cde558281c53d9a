"""Workers, fork servers and keepers that are killed: nothing of a host is left, no host suffers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.connect.hosts.processes import descendants, has_ended
from headrace.connect.worker import Exited, Failed, Started
from headrace.errors import StoreLockedError
from tests.breaking import break_task
from tests.connect.hosts.running import (
    await_that,
    descendants_marked,
    is_gone,
    launched,
    launcher_in,
    on_loop,
)

#: A worker with two hosts, one of which has a daemon; it says who they are, and waits.
WORKER = """
import asyncio, sys
from pathlib import Path
from headrace.connect.worker import Started
from tests.connect.hosts.running import launched, launcher_in

async def main():
    async with launcher_in(Path(sys.argv[1])) as launcher:
        pids = []
        for name, how in (("a", ""), ("b", sys.argv[2])):
            host, heard = await launched(launcher, name=name, chaos_start=how)
            await heard.first(Started)
            pids += [host.keeper, host.pid]
        print(*pids, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@on_loop
async def test_host_that_is_watched_no_more_is_ended_and_proven_gone(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher)
        await heard.first(Started)
        await break_task("end of task 0 of connector 'chaos'")
        await asyncio.wait_for(asyncio.shield(host.gone), 10)
        failed = await heard.first(Failed)
        assert "its watch has ended by BrokenError" in failed.cause.summary
        assert (await heard.end()).signal == signal.SIGKILL
        assert is_gone(host.pid)


def started_worker(folder: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a worker in a process of its own; give it and all processes below it."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), how], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    keepers = [int(pid) for pid in worker.stdout.readline().split()][::2]
    assert len(keepers) == 2
    below = {pid for keeper in keepers for pid in [keeper, *descendants(keeper)]}
    return worker, sorted(below | set(descendants(worker.pid)))


def killed(worker: subprocess.Popen[str]) -> float:
    worker.kill()
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()
    return time.monotonic()


@pytest.mark.requirement(48)
@pytest.mark.requirement(49)
@pytest.mark.parametrize("how", ["fork: daemon", "fork: clean"])
def test_worker_killed_leaves_no_process_after_two_seconds(tmp_path: Path, how: str) -> None:
    worker, below = started_worker(tmp_path, how)
    # Fork server, two keepers, two hosts, a daemon.
    assert len(below) == 6
    handles = [os.pidfd_open(pid) for pid in below]
    at = killed(worker)
    try:
        assert all(has_ended(handle, max(0.0, at + 2 - time.monotonic())) for handle in handles)
    finally:
        for handle in handles:
            os.close(handle)


@pytest.mark.requirement(49)
@on_loop
async def test_successor_ends_what_a_worker_has_left(tmp_path: Path) -> None:
    worker, below = started_worker(tmp_path, "fork: daemon")
    # All who would clean up are stopped before the worker dies, so that all of it is left.
    for pid in below:
        os.kill(pid, signal.SIGSTOP)
    await await_that(lambda: all(state_of(pid) == "T" for pid in below))
    handles = [os.pidfd_open(pid) for pid in below]
    killed(worker)
    assert len(descendants_marked(tmp_path)) == 6
    launcher = launcher_in(tmp_path)
    assert await launcher.open() == 6
    assert all(has_ended(handle) for handle in handles)
    for handle in handles:
        os.close(handle)
    _, heard = await launched(launcher)
    await heard.first(Started)
    await launcher.close()


def state_of(pid: int) -> str:
    return stat(pid)[0]


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@on_loop
async def test_folder_belongs_to_one_worker_at_a_time(tmp_path: Path) -> None:
    async with launcher_in(tmp_path):
        with pytest.raises(StoreLockedError, match="another Connect worker uses the folder"):
            await launcher_in(tmp_path).open()
    async with launcher_in(tmp_path):
        pass


@pytest.mark.requirement(45)
@on_loop
async def test_keeper_killed_takes_its_host_along(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start="fork: clean")
        _, other = await launched(launcher, name="other")
        await heard.first(Started)
        below = descendants(host.keeper)
        assert len(below) == 2
        os.kill(host.keeper, signal.SIGKILL)
        assert (await heard.first(Exited)).signal == signal.SIGKILL
        assert all(is_gone(pid) for pid in below)
        assert "was killed together with its keeper" in (await heard.first(Failed)).cause.summary
        await other.first(Started)
        assert "Failed" not in other.kinds()


@on_loop
async def test_keeper_that_does_not_act_is_gone_without(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start="fork: session")
        await heard.first(Started)
        below = descendants(host.keeper)
        os.kill(host.keeper, signal.SIGSTOP)
        host.kill()
        await heard.end()
        assert all(is_gone(pid) for pid in below)


@on_loop
async def test_fork_server_killed_harms_no_host_and_is_replaced(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher)
        await heard.first(Started)
        server = fork_server_of(host.keeper)
        os.kill(server, signal.SIGKILL)
        await await_that(lambda: is_gone(server))
        other, heard_other = await launched(launcher, name="other")
        await heard_other.first(Started)
        assert fork_server_of(other.keeper) != server
        assert host.alive()
        host.kill()
        await heard.end()
        assert is_gone(host.pid)


@on_loop
async def test_host_without_keeper_and_fork_server_is_found_by_its_mark(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard = await launched(launcher, chaos_start="fork: daemon")
        await heard.first(Started)
        below = descendants(host.keeper)
        server = fork_server_of(host.keeper)
        for pid in (server, host.keeper):
            os.kill(pid, signal.SIGSTOP)
        for pid in (server, host.keeper):
            os.kill(pid, signal.SIGKILL)
        await heard.end()
        assert all(is_gone(pid) for pid in below)


def fork_server_of(keeper: int) -> int:
    return int(stat(keeper)[1])


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


@pytest.mark.parametrize("warm", [False, True])
@on_loop
async def test_fork_server_and_keepers_have_one_thread_each(tmp_path: Path, warm: bool) -> None:
    async with launcher_in(tmp_path, warm=warm) as launcher:
        host, heard = await launched(launcher)
        await heard.first(Started)
        for pid in (host.keeper, fork_server_of(host.keeper)):
            assert len(threads_of(pid)) == 1


@on_loop
async def test_launcher_that_closes_leaves_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with launcher_in(tmp_path) as launcher:
        for name in ("a", "b"):
            await launched(launcher, name=name, chaos_start="fork: daemon; hang-hard")
        await await_that(lambda: len(descendants_marked(tmp_path)) == 7)
    assert descendants_marked(tmp_path) == []
    assert {one for one in threading.enumerate() if "asyncio" not in one.name} <= before


@on_loop
async def test_storm_of_launches_and_kills_leaves_nothing(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        begun = await asyncio.gather(
            *(launched(launcher, name=f"n{number}") for number in range(12))
        )
        for number, (host, _) in enumerate(begun):
            (host.kill if number % 2 else host.ask_stop)()
        for _, heard in begun:
            await heard.end()
        assert launcher.statistics().hosts == 0
