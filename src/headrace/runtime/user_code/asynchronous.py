"""Awaiting many calls of a coroutine function at once, with the results in order."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

__all__ = ["call_all"]


def call_all(
    function: Callable[..., Awaitable[Any]],
    calls: Sequence[tuple[Any, ...]],
    max_in_flight: int,
    *,
    stops: bool,
) -> tuple[list[Any], dict[int, Exception]]:
    """Await the function for each tuple of arguments; give results in order, and failures.

    All calls of a process run on one event loop, so that what the function keeps open, a
    session for example, serves later batches too.

    Parameters
    ----------
    function
        Gives what is awaited.
    calls
        Arguments of each call.
    max_in_flight
        So many calls wait at the same time.
    stops
        No call begins behind one that failed; those before it end, so that the first failure is
        always the same.
    """
    batch = _Calls(function, calls, stops=stops)
    _run(batch.gather(max_in_flight))
    return batch.results, batch.failures


class _Calls:
    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        calls: Sequence[tuple[Any, ...]],
        *,
        stops: bool,
    ) -> None:
        self._function = function
        self._calls = calls
        self._stops = stops
        self._next = 0
        self._end = len(calls)
        self.results: list[Any] = [None] * len(calls)
        self.failures: dict[int, Exception] = {}

    async def gather(self, max_in_flight: int) -> None:
        count = min(max_in_flight, len(self._calls))
        workers = [asyncio.ensure_future(self._work()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    async def _work(self) -> None:
        while self._next < self._end:
            index = self._next
            self._next += 1
            try:
                self.results[index] = await self._function(*self._calls[index])
            except Exception as error:  # noqa: BLE001 - users' functions raise what they like
                self.failures[index] = error
                if self._stops:
                    self._end = index


class _Loops(threading.local):
    """The event loop of this thread."""

    runner: asyncio.Runner | None = None
    pid = 0


_loops = _Loops()


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _runner().run(coroutine)
        return
    # The caller's own loop waits for us, so another thread has to run this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


def _runner() -> asyncio.Runner:
    if _loops.runner is None or _loops.pid != os.getpid():
        _loops.runner, _loops.pid = asyncio.Runner(), os.getpid()
        atexit.register(_loops.runner.close)
    return _loops.runner
