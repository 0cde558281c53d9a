"""What a user sees while state is restored: nothing of short restores, one bar of long ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Restore", "RestoreWatch"]

#: Restores that take no longer than this are not worth a word, s.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore at one moment, over all stores and partitions."""

    #: State messages read, and to read.
    done: int
    total: int
    seconds: float
    over: bool = False

    def __str__(self) -> str:
        if self.over:
            return f"restored state · {self.total:,} messages in {self.seconds:.1f} s"
        share = self.done / self.total if self.total else 0
        return f"restoring state · {share:.0%} · {self.done:,} of {self.total:,} messages"


class RestoreWatch:
    """Makes one restore of many, from what is told of those that run at a moment.

    Stores and partitions are restored side by side, and one that is done is told of no more: it
    still counts, so that the whole never goes back.

    Parameters
    ----------
    clock
        Gives seconds.

    Examples
    --------
    >>> watch = RestoreWatch(iter([0.0, 2.0, 3.0, 4.0]).__next__)
    >>> print(watch.see(10, 200))
    None
    >>> print(watch.see(150, 200))
    restoring state · 75% · 150 of 200 messages
    >>> print(watch.see(60, 80))
    restoring state · 90% · 180 of 200 messages
    >>> print(watch.see(0, 0))
    restored state · 200 messages in 4.0 s
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._finished = 0
        self._running = 0
        self._shown = False

    def see(self, done: int, total: int) -> Restore | None:
        """Take what the running restores have read, and have to read; give what is to be shown."""
        if not total:
            return None if self._began is None else self._ended(self._began)
        now = self._clock()
        if self._began is None:
            self._began = now
        self._finished += max(0, self._running - total)
        self._running = total
        if now - self._began <= _PATIENCE:
            return None
        self._shown = True
        return Restore(self._finished + done, self._finished + total, now - self._began)

    def _ended(self, began: float) -> Restore | None:
        total, shown = self._finished + self._running, self._shown
        self._began, self._finished, self._running, self._shown = None, 0, 0, False
        return Restore(total, total, self._clock() - began, over=True) if shown else None
