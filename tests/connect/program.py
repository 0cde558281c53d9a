"""A worker as a process, with the fake launcher: ``python -m tests.connect.program FOLDER GRACE``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from headrace.connect.running import RunningWorker, serve
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


async def main(folder: Path, grace: str) -> None:
    settings = WorkerSettings(
        port=0,
        worker_id="w1",
        data=folder,
        graceful_timeout=grace,  # type: ignore[arg-type]
        cancel_timeout="100 ms",  # type: ignore[arg-type]
    )
    launcher = _Telling()

    def tell(running: RunningWorker) -> None:
        print(running.url, flush=True)

    await serve(settings, launcher, positions=launcher.positions, ready=tell)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
