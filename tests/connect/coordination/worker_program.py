"""A worker of a cluster as a process that can be killed; its hosts hold a lock each.

The lock of a host ends with the process, as real hosts do, so that a second live copy of a unit is
noticed whatever the log says.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from datetime import timedelta
from pathlib import Path

from headrace.client import AsyncClient
from headrace.connect.coordination import Cluster, ClusterTimes
from headrace.connect.worker import HostSpec, Listener, Worker
from headrace.errors import WorkerIdTakenError
from tests.connect.fakes.launcher import FakeHost, FakeLauncher
from tests.connect.running import quick_settings

TIMES = ClusterTimes(delay=timedelta(seconds=3), pull_wait=timedelta(milliseconds=300))


class LockingLauncher(FakeLauncher):
    """Holds a lock for each unit that runs, and notes one that is held already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(call_timeout=10)
        self._folder = folder
        self._locks: dict[int, int] = {}

    async def launch(self, spec: HostSpec, listener: Listener) -> FakeHost:
        name = f"{spec.connector}-{spec.task}"
        lock = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (self._folder / f"twice-{name}-{spec.generation}").touch()
        host = await super().launch(spec, listener)
        self._locks[host.pid] = lock
        return host

    def gone(self, host: FakeHost) -> None:
        os.close(self._locks.pop(host.pid))


async def joined(client: AsyncClient, name: str) -> Cluster:
    while True:
        try:
            return await Cluster.join(client, "group", name, TIMES)
        except WorkerIdTakenError:  # its last life has ended a moment ago
            await asyncio.sleep(0.1)


async def main(address: str, name: str, folder: Path) -> None:
    async with AsyncClient(address) as client:
        cluster = await joined(client, name)
        settings = quick_settings(
            worker_id=name,
            fence_after="60 s",
            rebalance_delay="90 s",
            start_timeout="30 s",
            call_timeout="10 s",
        )
        launcher = LockingLauncher(folder)
        worker = Worker(cluster.log, launcher, settings, cluster.join_again)
        await worker.start()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
