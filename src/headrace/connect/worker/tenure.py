"""The membership of a worker in a cluster, as far as it decides what the worker may run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.connect.worker.lease import Standing, WorkerLease
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.log import Log
    from headrace.connect.worker.following import Follower
    from headrace.connect.worker.launching import Launcher
    from headrace.connect.worker.settings import WorkerSettings

__all__ = ["JoinAgain", "Tenure"]

logger = logging.getLogger(__name__)

JoinAgain = Callable[[], Awaitable[None]]
"""Becomes a member anew, which fails where another worker has the name by now."""

#: Seconds between two looks at the lease, at least so many of them in the time that it has.
_LOOK, _LOOKS = 1.0, 8


class Tenure:
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
        follower: Follower,
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
        """Say what is wrong where the standing is not good."""
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

    def standing(self) -> Standing:
        """Tell what the worker may run now; renew its lease where that is right."""
        if self._counts():
            self._lease.renew(self._log.silent_for())
        now = self._lease.standing()
        if now is not Standing.OVER:
            self._launcher.live_until(self._lease.until)
        return now

    async def begin_again(self) -> None:
        """Join anew, once nothing is left of what ran; what fails or is early, the next pass tries.

        A new lease begins only when the log no longer counts the worker as lost: else others might
        still settle what it begins to run.
        """
        if self._log.silent_for() >= self._fence:
            return
        if not self._joined:
            await self._join()
        if self._joined and self._counts():
            self._joined = False
            self._lease.begin_again(self._log.silent_for())

    async def _join(self) -> None:
        try:
            await self._join_again()
        except HeadraceError as error:
            self._refusal = str(error)
            logger.error("worker %s cannot join again yet: %s", self._name, error)  # noqa: TRY400
        else:
            self._refusal, self._joined = "", True

    def _counts(self) -> bool:
        """Whether all of the log is read, as far as it is known, and the worker not lost in it."""
        view = self._follower.view
        lost = view.assignment is not None and self._name in view.assignment.lost
        return not lost and view.position >= self._log.statistics().end - 1

    def _new(self) -> WorkerLease:
        return WorkerLease(self._name, fence=self._fence, delay=self._delay)
