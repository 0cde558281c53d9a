"""The lease of a worker's hosts: they end with it, whatever has become of the worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.connect.worker import Exited, Failed, Started
from headrace.leases import boot_time
from tests.connect.hosts.running import await_that, is_gone, launched, launcher_in, on_loop

#: A worker with a host and a lease of a second; it says who the host is, and stands still.
WORKER = """
import asyncio, os, signal, sys
from pathlib import Path
from headrace.leases import boot_time
from headrace.connect.worker import Started
from tests.connect.hosts.running import launched, launcher_in

async def main():
    async with launcher_in(Path(sys.argv[1])) as launcher:
        host, heard = await launched(launcher)
        await heard.first(Started)
        launcher.live_until(boot_time() + 1)
        print(host.pid, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(main())
"""


@on_loop
async def test_a_host_lives_for_as_long_as_the_lease_is_extended(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        launcher.live_until(boot_time() + 60)
        host, heard = await launched(launcher)
        await heard.first(Started)
        launcher.live_until(boot_time() + 120)
        assert host.alive()
        launcher.live_until(boot_time())
        failed = await heard.first(Failed)
        assert "was ended with its worker's lease" in failed.cause.summary
        assert (await heard.first(Exited)).signal == signal.SIGKILL


@on_loop
async def test_a_host_that_is_started_without_a_lease_ends_at_once(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        launcher.live_until(boot_time())
        _, heard = await launched(launcher)
        await heard.first(Exited)


@pytest.mark.requirement(49)
@on_loop
async def test_the_host_of_a_worker_that_stands_still_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:  # noqa: ASYNC220
        try:
            assert worker.stdout is not None
            pid = int(worker.stdout.readline())
            await await_that(lambda: is_gone(pid))
            assert worker.poll() is None
        finally:
            worker.kill()
