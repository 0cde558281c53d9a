"""A worker of a cluster as a process, with real hosts and no data plane.

``python -m tests.connect.coordination.host_program ADDRESS NAME FOLDER [WORD|GROUP]``; with the word
``deathless`` its hosts outlive its lease, and with ``endless`` the lease itself is never over, which
is what tests of the lease have to notice.  Of a group that is named, it has the times of a worker
that is told nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from headrace.client import AsyncClient
from headrace.connect.hosts import HostSettings
from headrace.connect.running import RunningWorker, joined_cluster, serve
from headrace.connect.worker import WorkerSettings
from headrace.connect.worker.lease import WorkerLease, WorkerRights
from tests.connect.chaos import marked
from tests.connect.hosts.running import WithoutData
from tests.connect.running import quick_settings

__all__: list[str] = []


class Deathless(WithoutData):
    """Lets hosts live for ever."""

    def live_until(self, time: float) -> None:
        del time


def never_over(self: WorkerLease) -> WorkerRights:
    """Have a worker go on, whatever it has not read."""
    del self
    return WorkerRights.HELD


def tell(running: RunningWorker) -> None:
    print(running.url, flush=True)


def settings_of(name: str, folder: Path, group: str) -> WorkerSettings:
    if group:
        return WorkerSettings(worker_id=name, group=group, data=folder / name, port=0)
    return quick_settings(
        worker_id=name,
        group="group",
        data=folder / name,
        fence_after="2 s",
        rebalance_delay="5 s",
        start_timeout="60 s",
        graceful_timeout="500 ms",
    )


async def main(address: str, settings: WorkerSettings, kind: type[WithoutData]) -> None:
    hosts = HostSettings(call_timeout=60, probe_interval=0, modules=(marked.__name__,))
    async with (
        kind(settings.data / "hosts", hosts) as launcher,
        AsyncClient(address) as client,
        joined_cluster(client, settings) as cluster,
    ):
        await serve(settings, launcher, cluster, ready=tell)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    address, name, folder, *words = sys.argv[1:]
    broken = words in (["deathless"], ["endless"])
    if words == ["endless"]:
        WorkerLease.standing = never_over  # type: ignore[method-assign]
    settings = settings_of(name, Path(folder), "" if broken else "".join(words))
    asyncio.run(main(address, settings, Deathless if broken else WithoutData))
