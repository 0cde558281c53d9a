"""A worker with its REST API, in a thread of its own, for tests that call it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from headrace.connect.log import Log, MemoryLog
from headrace.connect.rest import RestServer
from headrace.connect.worker import Connect, Launcher, PositionStore, Worker, WorkerSettings
from tests.connect.fakes.launcher import FakeLauncher

__all__ = ["Running", "quick_settings", "running", "started"]

T = TypeVar("T")


def quick_settings(**given: Any) -> WorkerSettings:
    """Settings whose times are short."""
    defaults: dict[str, Any] = {
        "port": 0,
        "worker_id": "w1",
        "graceful_timeout": "300 ms",
        "cancel_timeout": "100 ms",
        "kill_timeout": "200 ms",
        "start_timeout": "500 ms",
        "call_timeout": "300 ms",
    }
    return WorkerSettings(**(defaults | given))


@contextlib.asynccontextmanager
async def started(
    launcher: FakeLauncher,
    log: Log | None = None,
    *,
    settings: WorkerSettings | None = None,
) -> AsyncIterator[Connect]:
    """A worker in this event loop, without REST."""
    worker = Worker(log or MemoryLog(), launcher, settings or quick_settings())
    await worker.start()
    try:
        yield Connect(worker, launcher.positions)
    finally:
        await worker.stop(force=True)
        await launcher.close()


@dataclass(slots=True)
class Running:
    """A worker that runs in another thread."""

    url: str
    connect: Connect
    launcher: Launcher
    loop: asyncio.AbstractEventLoop
    http: httpx.Client
    #: Time of each answer, with what was asked.
    took: list[tuple[float, str]] = field(default_factory=list)

    def do(self, work: Coroutine[Any, Any, T], patience: float = 20) -> T:
        """Run something in the worker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(patience)

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request, and note how long the answer took."""
        answer = self.http.request(method, path, **given)
        self.took.append((answer.elapsed.total_seconds(), f"{method} {path}"))
        return answer


@contextlib.contextmanager
def running(
    make_launcher: Callable[[], Launcher],
    positions_of: Callable[[Launcher], PositionStore],
    *,
    settings: WorkerSettings | None = None,
    make_log: Callable[[], Log] = MemoryLog,
    certificate: Path | None = None,
) -> Iterator[Running]:
    """A worker with its REST API on a free port, until it is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="connect-worker")
    thread.start()
    ended = asyncio.Event()

    async def live(ready: asyncio.Future[tuple[str, Connect, Launcher]]) -> None:
        launcher = make_launcher()
        worker = Worker(make_log(), launcher, settings or quick_settings())
        connect = Connect(worker, positions_of(launcher))
        try:
            async with RestServer(connect.settings) as server:
                server.serve(connect)
                await worker.start()
                ready.set_result((server.url, connect, launcher))
                await ended.wait()
        finally:
            if not ready.done():
                ready.cancel()
            await worker.stop(force=True)
            await launcher.close()

    async def begin() -> tuple[str, Connect, Launcher, asyncio.Task[None]]:
        ready: asyncio.Future[tuple[str, Connect, Launcher]] = loop.create_future()
        life = loop.create_task(live(ready))
        waited: list[asyncio.Future[Any]] = [ready, life]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        return *(await ready), life

    try:
        url, connect, launcher, life = asyncio.run_coroutine_threadsafe(begin(), loop).result(20)
        verify: Any = str(certificate) if certificate is not None else True
        try:
            with httpx.Client(base_url=url, timeout=10, verify=verify) as http:
                yield Running(url, connect, launcher, loop, http)
        finally:
            loop.call_soon_threadsafe(ended.set)
            asyncio.run_coroutine_threadsafe(_ended(life), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _ended(life: asyncio.Task[None]) -> None:
    await life
