"""A worker's right to run what the log of a cluster gives it, and how it ends."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.leases import LeaseTerm, boot_time

if TYPE_CHECKING:
    from headrace.connect.log import Log
    from headrace.connect.worker.following import LogFollower
    from headrace.connect.worker.launching import Launcher
    from headrace.connect.worker.settings import WorkerSettings


logger = logging.getLogger(__name__)

#: A lease is over after this part of the time for which the others wait: the rest is for the
#: kernel to end what still runs, and for clocks that do not go alike.
_SHARE = 0.8


class WorkerRights(enum.Enum):
    """What a worker may do."""

    #: It runs what is its own.
    HELD = enum.auto()
    #: It has not read its log for long: it asks all that it runs to stop.
    FENCED = enum.auto()
    #: Others may run its units at any moment: it kills what is left, and has to join again.
    OVER = enum.auto()


_SAID = {
    WorkerRights.HELD: "worker %s reads its log again, to what was its end %.1f s ago",
    WorkerRights.FENCED: "worker %s has not read its log for %.1f s: it asks all that it runs to stop",
    WorkerRights.OVER: "worker %s has not read its log for %.1f s, and others may run its tasks by now:"
    " it kills what is left of them, and joins again",
}


class WorkerLease(LeaseTerm):
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
        Gives the time in seconds; None: :func:`~headrace.leases.boot_time`.

    Examples
    --------
    >>> now = 100.0
    >>> lease = WorkerLease("w1", fence=3.0, delay=10.0, clock=lambda: now)
    >>> lease.standing().name, lease.until
    ('HELD', 108.0)
    >>> now = 104.0
    >>> lease.standing().name
    'FENCED'
    >>> lease.renew(asked=103.0)
    >>> lease.standing().name, lease.until
    ('HELD', 111.0)
    >>> now = 112.0
    >>> lease.renew(asked=112.0)
    >>> lease.standing().name, lease.until
    ('OVER', 111.0)
    """

    def __init__(
        self,
        worker: str,
        *,
        fence: float,
        delay: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(delay * _SHARE, clock)
        super().renew(self.clock())
        self._worker, self._fence = worker, fence
        self._standing = WorkerRights.HELD

    def renew(self, asked: float) -> None:
        """Note that the log has been read to what was its end at that time."""
        if self.standing() is not WorkerRights.OVER:
            super().renew(asked)

    def begin_again(self, asked: float) -> None:
        """Begin a new lease of the worker: nothing that it ran is left, and it has joined again."""
        logger.warning("worker %s has joined its cluster again", self._worker)
        self.end()
        super().renew(asked)
        self._standing = WorkerRights.HELD

    def standing(self) -> WorkerRights:
        """Return what the worker may do now."""
        if self._standing is WorkerRights.OVER:
            return self._standing
        before, silence = self._standing, self.silence
        self._standing = WorkerRights.HELD
        if silence >= self.length:
            self._standing = WorkerRights.OVER
        elif silence >= self._fence:
            self._standing = WorkerRights.FENCED
        if self._standing is not before:
            self._tell(silence)
        return self._standing

    def _tell(self, silence: float) -> None:
        logger.error(_SAID[self._standing], self._worker, silence)


# The membership of a worker in a cluster, as far as it decides what the worker may run.

JoinAgain = Callable[[], Awaitable[None]]
"""Becomes a member anew, which fails where another worker has the name by now."""

#: Seconds between two looks at the lease, at least so many of them in the time that it has.
_LOOK, _LOOKS = 1.0, 8


class WorkerMembership:
    """Keeps a worker's lease: renews it as the log is read, and passes it on to what runs.

    Parameters
    ----------
    settings
        Whose; of the worker.
    log, follower
        What there is to read, and what has been read of it.
    launcher
        Ends what it has launched when the lease is over, also where this process stands still.
    join_again
        Becomes a member anew, once a lease is over.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        log: Log,
        follower: LogFollower,
        launcher: Launcher,
        join_again: JoinAgain,
    ) -> None:
        self._name = settings.name
        self._delay = settings.rebalance_delay.total_seconds()
        self._fence = settings.fence_after.total_seconds()
        self._log, self._follower, self._launcher = log, follower, launcher
        self._join_again = join_again
        self._lease = self._new()
        self._refusal = ""
        #: Whether it is a member anew, and its new lease has not begun.
        self._joined = False

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(_LOOK, self._fence / _LOOKS)

    @property
    def trouble(self) -> str:
        """Return what is wrong where the standing is not good."""
        text = "the worker is cut off from its cluster"
        return f"{text}, and cannot join again: {self._refusal}" if self._refusal else text

    def begin(self) -> None:
        """Begin the lease: the log has been read just now."""
        self._lease = self._new()
        self._launcher.live_until(self._lease.until)

    async def outlive(self) -> None:
        """Wait until nobody can run anything under this worker's name but this worker.

        It is a member, and was none before: who had the name then has not read the log since.
        """
        logger.warning(
            "worker %s ran elsewhere before, and nobody has said that it ended: it begins in %g s;"
            " a worker that starts in the folder of its last life begins at once",
            *(self._name, self._delay),
        )
        await asyncio.sleep(self._delay)

    def standing(self) -> WorkerRights:
        """Return what the worker may run now; renew its lease where that is right."""
        if self._counts():
            self._lease.renew(self._log.heard_at())
        now = self._lease.standing()
        if now is not WorkerRights.OVER:
            self._launcher.live_until(self._lease.until)
        return now

    async def begin_again(self) -> None:
        """Join anew, once nothing is left of what ran; what fails or is early, the next pass tries.

        A new lease begins only when the log no longer counts the worker as lost: else others might
        still settle what it begins to run.
        """
        if boot_time() - self._log.heard_at() >= self._fence:
            return
        if not self._joined:
            await self._join()
        if self._joined and self._counts():
            self._joined = False
            self._lease.begin_again(self._log.heard_at())

    async def _join(self) -> None:
        try:
            await self._join_again()
        except HeadraceError as error:
            self._refusal = str(error)
            logger.error("worker %s cannot join again yet: %s", self._name, error)
        else:
            self._refusal, self._joined = "", True

    def _counts(self) -> bool:
        """Whether all of the log is read, as far as it is known, and the worker not lost in it."""
        view = self._follower.view
        lost = view.assignment is not None and self._name in view.assignment.lost
        return not lost and view.position >= self._log.statistics().end - 1

    def _new(self) -> WorkerLease:
        return WorkerLease(self._name, fence=self._fence, delay=self._delay)
