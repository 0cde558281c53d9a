"""Turns that batches of many jobs take, so that few run at once and none holds up the others."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["Turn", "Turns"]


class Turns:
    """So many batches of all the jobs that share it run at once, but for those that take long.

    Spark has more slots than there are turns: a batch that waits for code which hangs sits in one
    of those, and its turn is another's.

    Parameters
    ----------
    most
        Batches that have a turn at the same time.

    Examples
    --------
    >>> turns = Turns(1)
    >>> with turns.take(0.1, lasting=60):
    ...     turns.take(0.1, lasting=60) is None
    True
    """

    def __init__(self, most: int) -> None:
        self._free = threading.BoundedSemaphore(most)

    def take(self, seconds: float, *, lasting: float) -> Turn | None:
        """Wait for a turn, so many seconds at most; None: there was none.

        Parameters
        ----------
        seconds
            How long to wait.
        lasting
            After so many seconds the turn may be another's, though the batch goes on.
        """
        return Turn(self._free, lasting) if self._free.acquire(timeout=seconds) else None


class Turn:
    """The turn of one batch, until the block is left or it has lasted long; for one thread."""

    def __init__(self, free: threading.Semaphore, lasting: float) -> None:
        self._free = free
        self._until = time.monotonic() + lasting
        self._over = False

    def look(self) -> None:
        """Give the turn to another batch if it has lasted long."""
        if time.monotonic() >= self._until:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._free.release()
