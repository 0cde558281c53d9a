"""A worker of a cluster as a process, with real hosts and no data plane.

``python -m tests.connect.coordination.host_program ADDRESS NAME FOLDER [deathless]``; with the last
word its hosts outlive its lease, which is what a test of the lease has to notice.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from headrace.client import AsyncClient
from headrace.connect.hosts import HostSettings
from headrace.connect.running import RunningWorker, joined_cluster, serve
from tests.connect.chaos import marked
from tests.connect.hosts.running import WithoutData
from tests.connect.running import quick_settings

__all__: list[str] = []


class Deathless(WithoutData):
    """Lets hosts live for ever."""

    def live_until(self, time: float) -> None:
        del time


def tell(running: RunningWorker) -> None:
    print(running.url, flush=True)


async def main(address: str, name: str, folder: Path, kind: type[WithoutData]) -> None:
    settings = quick_settings(
        worker_id=name,
        group="group",
        data=folder / name,
        fence_after="2 s",
        rebalance_delay="5 s",
        start_timeout="60 s",
        graceful_timeout="500 ms",
    )
    hosts = HostSettings(call_timeout=60, probe_interval=0, modules=(marked.__name__,))
    async with (
        kind(settings.data / "hosts", hosts) as launcher,
        AsyncClient(address) as client,
        joined_cluster(client, settings) as cluster,
    ):
        await serve(settings, launcher, cluster=cluster, ready=tell)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    words = sys.argv[1:]
    launcher = Deathless if words[3:] == ["deathless"] else WithoutData
    asyncio.run(main(words[0], words[1], Path(words[2]), launcher))
