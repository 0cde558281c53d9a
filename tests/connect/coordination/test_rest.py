"""REST of a cluster: what is put on one worker holds on all."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import AsyncClient
from headrace.connect.coordination import Cluster, ClusterTimes
from headrace.connect.running import RunningWorker, running_worker
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.loggers import NotedLevels
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import quick_settings
from tests.connect.waiting import eventually

TIMES = ClusterTimes(delay=timedelta(seconds=1), pull_wait=timedelta(milliseconds=200))


async def answered(http: httpx.AsyncClient, url: str, expected: Any) -> None:
    """Wait until a resource says what it should; each look is short."""
    last: Any = None
    for _ in range(200):
        last = (await http.get(url)).json()
        if _holds(last, expected):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(last)


def _holds(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            _holds(found.get(key), value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(_holds, found, expected))
        )
    return bool(found == expected)


@pytest.mark.requirement(4)
@pytest.mark.requirement(9)
def test_what_one_worker_is_told_holds_on_all(tmp_path: Path) -> None:
    async def body(address: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            workers: list[RunningWorker] = []
            launchers: list[FakeLauncher] = []
            for name in ("w1", "w2"):
                client = await stack.enter_async_context(AsyncClient(address))
                cluster = await Cluster.join(client, "group", name, TIMES)
                stack.push_async_callback(cluster.leave)
                settings = quick_settings(
                    worker_id=name, start_timeout="30 s", call_timeout="10 s", data=tmp_path / name
                )
                launchers.append(FakeLauncher(call_timeout=10))
                running = running_worker(settings, launchers[-1], cluster)
                workers.append(await stack.enter_async_context(running))
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
            first, second = (worker.url for worker in workers)
            config = config_of(CHAOS, **{"tasks.max": "2"})
            made = await http.post(f"{first}/connectors", json={"name": "a", "config": config})
            assert made.status_code == 201, made.text
            again = await http.post(f"{second}/connectors", json={"name": "a", "config": config})
            assert again.status_code == 409, again.text
            runs = {"state": "RUNNING"}
            for url in (first, second):
                status = {"connector": runs, "tasks": [runs, runs]}
                await answered(http, f"{url}/connectors/a/status", status)
            gone = await http.delete(f"{second}/connectors/a")
            assert gone.status_code == 204, gone.text
            await answered(http, f"{first}/connectors", [])
            # One of the two removes what it had committed.
            views = [worker.connect.worker for worker in workers]
            await eventually(lambda: not any(one.view.entries["a"].leftovers for one in views), 20)
            assert [one for launcher in launchers for one in launcher.forgotten] == ["a"]
            # Both workers are in one process here, so the other one's levels are noted, not set.
            levels = workers[1].connect.worker.loggers = NotedLevels()
            path = f"{first}/admin/loggers/tests.of.clusters"
            level = await http.put(path, params={"scope": "cluster"}, json={"level": "WARN"})
            assert level.status_code == 204, level.text
            await eventually(lambda: levels.noted == [("tests.of.clusters", "WARN")], 20)

    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(asyncio.wait_for(body(broker.address), 90))
