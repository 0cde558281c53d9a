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

__all__ = ["CallFailure", "call_all"]


class CallFailure(Exception):  # noqa: N818 - says which call failed, on its way to the real error
    """A call raised ``error``.

    Parameters
    ----------
    index
        Number of the call.
    error
        What it raised.
    """

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


def call_all(
    function: Callable[..., Awaitable[Any]], calls: Sequence[tuple[Any, ...]], max_in_flight: int
) -> list[Any]:
    """Await the function for each tuple of arguments and give the results in order.

    All calls of a process run on one event loop, so that what the function keeps open, a
    session for example, serves later batches too.

    Raises
    ------
    CallFailure
        A call failed: the first in order of those that did.  Calls behind it are cancelled.
    """
    return _run(_Calls(function, calls).gather(max_in_flight))


class _Calls:
    def __init__(
        self, function: Callable[..., Awaitable[Any]], calls: Sequence[tuple[Any, ...]]
    ) -> None:
        self._function = function
        self._calls = calls
        self._next = 0
        self._end = len(calls)
        self._failure: CallFailure | None = None
        self.results: list[Any] = [None] * len(calls)

    async def gather(self, max_in_flight: int) -> list[Any]:
        count = min(max_in_flight, len(self._calls))
        workers = [asyncio.ensure_future(self._work()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        if self._failure is not None:
            raise self._failure
        return self.results

    async def _work(self) -> None:
        while self._next < self._end:
            index = self._next
            self._next += 1
            try:
                self.results[index] = await self._function(*self._calls[index])
            except Exception as error:  # noqa: BLE001 - users' functions raise what they like
                # Calls before this one are awaited still: the first failure in order counts.
                if self._failure is None or index < self._failure.index:
                    self._failure = CallFailure(index, error)
                    self._end = min(self._end, index)


class _Loops(threading.local):
    """The event loop of this thread."""

    runner: asyncio.Runner | None = None
    pid = 0


_loops = _Loops()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _runner().run(coroutine)
    # The caller's own loop waits for us, so another thread has to run this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _runner() -> asyncio.Runner:
    if _loops.runner is None or _loops.pid != os.getpid():
        _loops.runner, _loops.pid = asyncio.Runner(), os.getpid()
        atexit.register(_loops.runner.close)
    return _loops.runner
