"""A worker with the fake launcher: ``python -m tests.connect.program NAMESRV FOLDER GRACE``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from headrace.client import AsyncClient
from headrace.connect.running import RunningWorker, joined_cluster, serve
from headrace.connect.worker import WorkerSettings
from tests.connect.fakes.launcher import FakeLauncher

__all__: list[str] = []


class _Telling(FakeLauncher):
    """Says at its end what still lived."""

    async def close(self) -> None:
        alive = sum(host.alive() for host in self.hosts)
        stories = [host.story for host in self.hosts]
        await super().close()
        modules = sorted({name.split(".")[0] for name in sys.modules})
        print(json.dumps({"alive": alive, "stories": stories, "modules": modules}), flush=True)


async def main(namesrv: str, folder: Path, grace: str) -> None:
    settings = WorkerSettings(
        port=0,
        group=folder.name,
        worker_id="w1",
        data=folder,
        graceful_timeout=grace,  # type: ignore[arg-type]
        cancel_timeout="100 ms",  # type: ignore[arg-type]
    )
    launcher = _Telling()

    def tell(running: RunningWorker) -> None:
        print(running.url, flush=True)

    async with AsyncClient(namesrv) as client, joined_cluster(client, settings) as cluster:
        await serve(settings, launcher, cluster, positions=launcher.positions, ready=tell)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
