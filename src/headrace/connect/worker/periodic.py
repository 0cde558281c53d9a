"""A function that runs every so often, or at once when somebody wakes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.watched import OnFailure, watched_task

__all__ = ["Periodic"]

logger = logging.getLogger(__name__)

#: A run that does not end holds up nobody's end for longer.
_PATIENCE = 5.0


class Periodic:
    """Runs a function at intervals, and at once after :meth:`wakeup`.

    Wakeups while it waits become one run; one that comes during a run makes exactly one more.
    A run that raises is logged, and the next one happens all the same.

    Parameters
    ----------
    function
        What is run, never twice at a time.
    interval
        Seconds between the end of a run and the next.
    name
        Says in the log which one failed.
    on_failure
        Told of an error that has ended it, which that of a run does not.
    """

    def __init__(
        self,
        function: Callable[[], Awaitable[None]],
        interval: float,
        *,
        name: str,
        on_failure: OnFailure,
    ) -> None:
        self._function = function
        self._interval = interval
        self._name = name
        self._on_failure = on_failure
        self._wanted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        #: Runs that have ended, well or not.
        self.runs = 0
        #: When the last one ended, by the event loop's clock.
        self.last_run: float | None = None

    def start(self) -> None:
        """Begin, with a run at once."""
        self._loop = asyncio.get_running_loop()
        self._wanted.set()
        self._task = watched_task(self._run(), name=self._name, on_failure=self._on_failure)

    def wakeup(self) -> None:
        """Have the function run now, or once more if it runs already; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if _running_loop() is loop:
            self._wanted.set()
        else:
            loop.call_soon_threadsafe(self._wanted.set)

    async def stop(self) -> None:
        """Let a run end that has begun, and begin no other."""
        task, self._task = self._task, None
        if task is None:
            return
        self._loop = None
        self._over = True
        self._wanted.set()
        await asyncio.wait([task], timeout=_PATIENCE)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        # No wait_for: in Python 3.11 it may swallow what it is woken by.
        loop = asyncio.get_running_loop()
        while not self._over:
            timer = loop.call_later(self._interval, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
            self._wanted.clear()
            if not self._over:
                await self._run_once()

    async def _run_once(self) -> None:
        try:
            await self._function()
        except Exception:
            logger.exception("%s failed; it runs again", self._name)
        self.runs += 1
        self.last_run = asyncio.get_running_loop().time()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
