"""A worker's right to run what the log of a cluster gives it, and how it ends."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from headrace.connect.lifecycle import boot_time

__all__ = ["Standing", "WorkerLease"]

logger = logging.getLogger(__name__)

#: A lease is over after this part of the time for which the others wait: the rest is for the
#: kernel to end what still runs, and for clocks that do not go alike.
_SHARE = 0.8


class Standing(enum.Enum):
    """What a worker may do."""

    #: It runs what is its own.
    HELD = enum.auto()
    #: It has not read its log for long: it asks all that it runs to stop.
    FENCED = enum.auto()
    #: Others may run its units at any moment: it kills what is left, and has to join again.
    OVER = enum.auto()


_SAID = {
    Standing.HELD: "worker %s reads its log again, to what was its end %.1f s ago",
    Standing.FENCED: "worker %s has not read its log for %.1f s: it asks all that it runs to stop",
    Standing.OVER: "worker %s has not read its log for %.1f s, and others may run its tasks by now:"
    " it kills what is left of them, and joins again",
}


class WorkerLease:
    """A lease that is renewed by reading the log to its end.

    It is counted from the moment at which the end of the log was asked for, so an answer that has
    lain in a buffer renews nothing; and it is not renewed by a log whose newest assignment counts
    the worker as lost.  So it ends before the time is over for which others wait after they have
    put that assignment into the log.

    Parameters
    ----------
    worker
        Names it in what is logged.
    fence
        Seconds without the log after which everything is asked to stop.
    delay
        Seconds for which others wait until they run what a lost worker ran.
    clock
        Gives the time in seconds; of the machine, not of the process.

    Examples
    --------
    >>> now = 100.0
    >>> lease = WorkerLease("w1", fence=3.0, delay=10.0, clock=lambda: now)
    >>> lease.standing().name, lease.until
    ('HELD', 108.0)
    >>> now = 104.0
    >>> lease.standing().name
    'FENCED'
    >>> lease.renew(silent=1.0)
    >>> lease.standing().name, lease.until
    ('HELD', 111.0)
    >>> now = 112.0
    >>> lease.renew(silent=0.0)
    >>> lease.standing().name, lease.until
    ('OVER', 111.0)
    """

    def __init__(
        self, worker: str, *, fence: float, delay: float, clock: Callable[[], float] = boot_time
    ) -> None:
        self._worker = worker
        self._fence, self._length = fence, delay * _SHARE
        self._clock = clock
        self._renewed = clock()
        self._standing = Standing.HELD

    @property
    def until(self) -> float:
        """When it is over, unless it is renewed before."""
        return self._renewed + self._length

    def renew(self, silent: float) -> None:
        """Note that the log has been read to what was its end so many seconds ago."""
        now = self._clock()
        if self._judge(now) is not Standing.OVER:
            self._renewed = max(self._renewed, now - silent)

    def standing(self) -> Standing:
        """Tell what the worker may do now."""
        return self._judge(self._clock())

    def begin_again(self, silent: float) -> None:
        """Give the worker a new lease: nothing that it ran is left, and it has joined again."""
        logger.warning("worker %s has joined its cluster again", self._worker)
        self._renewed = self._clock() - silent
        self._standing = Standing.HELD

    def _judge(self, now: float) -> Standing:
        if self._standing is Standing.OVER:
            return self._standing
        before, silence = self._standing, now - self._renewed
        self._standing = Standing.HELD
        if silence >= self._length:
            self._standing = Standing.OVER
        elif silence >= self._fence:
            self._standing = Standing.FENCED
        if self._standing is not before:
            self._tell(silence)
        return self._standing

    def _tell(self, silence: float) -> None:
        logger.error(_SAID[self._standing], self._worker, silence)
