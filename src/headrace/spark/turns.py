"""Turns that the batches of many jobs take, so that few run at once and none holds up the others."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Turns"]

#: Whoever waits looks so often whether it still must, s.
_LOOK_SECONDS = 0.2


class Turns:
    """So many batches of all the jobs that share it run at once, but for those that take long.

    Turns go in the order in which they were asked for.  Spark has more slots than there are turns:
    a batch that waits for code which hangs sits in one of those, and its turn is another's.

    Parameters
    ----------
    most
        Batches that have a turn at the same time.

    Examples
    --------
    >>> turns = Turns(1)
    >>> with turns.turn(60):
    ...     with turns.turn(60, unless=lambda: True) as mine:
    ...         mine
    False
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[_Turn] = deque()
        #: Those that have a turn, and until when nobody takes it from them.
        self._running: dict[_Turn, float] = {}

    @contextmanager
    def turn(self, lasting: float, *, unless: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait for a turn and have it until the block is left; tell whether there was one.

        Parameters
        ----------
        lasting
            After so many seconds it may be another's, though the block goes on.
        unless
            Tells that the wait is over: the block runs without a turn.
        """
        mine = _Turn(lasting)
        with self._lock:
            self._waiting.append(mine)
            self._hand_out()
        try:
            while not (got := mine.come.wait(_LOOK_SECONDS)) and not unless():
                with self._lock:
                    self._hand_out()
            yield got
        finally:
            with self._lock:
                self._running.pop(mine, None)
                if mine in self._waiting:
                    self._waiting.remove(mine)
                self._hand_out()

    def _hand_out(self) -> None:
        """Give turns to those that wait, also what others have had for long."""
        now = time.monotonic()
        if self._waiting:
            self._running = {turn: until for turn, until in self._running.items() if until > now}
        while self._waiting and len(self._running) < self._most:
            turn = self._waiting.popleft()
            self._running[turn] = now + turn.lasting
            turn.come.set()


class _Turn:
    """What one batch waits for."""

    def __init__(self, lasting: float) -> None:
        self.lasting = lasting
        self.come = threading.Event()
