"""The time for which a lease is held, by a clock that goes on while the machine sleeps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def boot_time() -> float:
    """Return the seconds since the machine was started: the same in all of its processes.

    The time for which it slept counts, as it does for the other machines.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseTerm:
    """How long a lease is held, counted from the question whose answer renewed it last.

    A lease that was not asked for in time is lost, as somebody else may have had it since: no
    answer counts any more until :meth:`end` was called.

    Parameters
    ----------
    length
        Seconds for which it is held.
    clock
        Returns the time in seconds; None means :func:`boot_time`.

    Examples
    --------
    >>> now = 105.0
    >>> term = LeaseTerm(8.0, clock=lambda: now)
    >>> term.renew(asked=103.0)
    >>> term.silence, term.until
    (2.0, 111.0)
    >>> now = 112.0
    >>> term.renew(asked=112.0)
    >>> term.until
    111.0
    """

    def __init__(self, length: float, clock: Callable[[], float] | None = None) -> None:
        self.length, self.clock = length, clock or boot_time
        self._asked = -math.inf

    @property
    def silence(self) -> float:
        """Seconds since that question; infinite where there was none."""
        return self.clock() - self._asked

    @property
    def until(self) -> float:
        """When it is over, unless it is renewed before."""
        return self._asked + self.length

    def end(self) -> None:
        """End the term: the next answer begins it again."""
        self._asked = -math.inf

    def renew(self, asked: float) -> None:
        """Take note of an answer to what was asked at that time.

        A time and no age: a process that is stopped while it counts would take an age for less.
        """
        if asked < self.until or self._asked == -math.inf:
            self._asked = max(self._asked, asked)
