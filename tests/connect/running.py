"""A worker with its REST API, in a thread of its own, for tests that call it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import pytest

from headrace.connect.assignment import Assignment, assign
from headrace.connect.coordination import Coordinator, Members
from headrace.connect.log import (
    ClusterView,
    CompactedRecord,
    Log,
    MemoryLog,
    Record,
    StatusSet,
    fold,
)
from headrace.connect.rest import RestServer
from headrace.connect.worker import (
    Connect,
    Launcher,
    PositionStore,
    Startup,
    Worker,
    WorkerSettings,
)
from tests.connect.fakes.launcher import FakeLauncher

__all__ = [
    "OwnLog",
    "Running",
    "coordinated",
    "make_worker",
    "quick_settings",
    "running",
    "started",
]

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


class OwnLog(MemoryLog):
    """A log that gives all work to one worker at once, as a coordinator would."""

    def __init__(self, worker: str = "w1") -> None:
        super().__init__()
        self._worker = worker
        self._view = ClusterView()

    async def append(self, record: Record | CompactedRecord) -> int:
        position = await super().append(record)
        if not isinstance(record, StatusSet):  # nothing is assigned by what happens to copies
            self._view, _ = fold(self._view, record, position)
            before = Assignment.of(self._view.assignment)
            after = assign(self._view, {self._worker}, before, 0.0, 0.0)
            if after.generation != before.generation:
                made = after.record(self._view, self._worker)
                self._view, _ = fold(self._view, made, self.put([made]))
        return position


async def _stay() -> None:
    """Be a member anew."""


def make_worker(
    log: Log,
    launcher: Launcher,
    settings: WorkerSettings | None = None,
    startup: Startup | None = None,
) -> Worker:
    """A worker that can always join again."""
    return Worker(log, launcher, settings or quick_settings(), _stay, startup=startup)


class OneMember:
    """The membership of a worker that is by itself."""

    async def workers(self, lost_since: Mapping[str, float] | None = None) -> set[str]:
        del lost_since
        return {"w1"}

    async def changed(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def coordinated(log: Log, *, purge_after: float = 60) -> AsyncIterator[None]:
    """Keep the log short, as long as the block lasts, in short turns."""
    members = cast("Members", OneMember())
    coordinator = Coordinator(log, members, "w1", delay=30, purge_after=purge_after)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_SURPLUS", 100), ("_BETWEEN", 0.05), ("_LONGEST_PAUSE", 0.05)):
            patch.setattr(f"headrace.connect.coordination.coordinator.{name}", value)
        coordinator.start()
        yield
        await coordinator.stop()


@contextlib.asynccontextmanager
async def started(
    launcher: FakeLauncher,
    log: Log | None = None,
    *,
    settings: WorkerSettings | None = None,
) -> AsyncIterator[Connect]:
    """A worker in this event loop, without REST."""
    worker = make_worker(log or OwnLog(), launcher, settings)
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
    make_log: Callable[[], Log] = OwnLog,
    certificate: Path | None = None,
) -> Iterator[Running]:
    """A worker with its REST API on a free port, until it is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="connect-worker")
    thread.start()
    ended = asyncio.Event()

    async def live(ready: asyncio.Future[tuple[str, Connect, Launcher]]) -> None:
        launcher = make_launcher()
        worker = make_worker(make_log(), launcher, settings)
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
