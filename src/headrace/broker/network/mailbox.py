"""Calls from other threads into the event loop, many for one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Carries calls from any thread to the loop's own.

    Waking a loop costs a system call, so calls that come while it is being woken share one.

    Parameters
    ----------
    loop
        The loop whose thread makes the calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._waking = False

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make a call soon; any thread may ask."""
        self._calls.append(call)
        if not self._waking:
            self._waking = True
            # The loop is closed only when nobody waits for an answer any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            calls.popleft()()
