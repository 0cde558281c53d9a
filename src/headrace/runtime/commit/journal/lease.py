"""The lease of a driver on RocketMQ: the broker's lock on the commit topic, and how long it holds.

Epochs keep two drivers from committing, but nobody can take back what an old one still publishes.
So a driver publishes only while it holds the lease, and its successor waits until it has surely
stopped.

Brokers keep locks in memory.  So a driver says with each record which process of the broker keeps
its lock: where that same process gives the lock to another one, it was not renewed for as long as
it lasts.  Another process, of a broker that was restarted or replaced, knows nothing of it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, JobFailedError, LeaseLostError
from headrace.leases import LeaseTerm, boot_time
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import RuntimeInfo
from headrace.protocol.routes import loads
from headrace.runtime.commit.drivers import DriverName, Lease, LeaseWait

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client import Client
    from headrace.protocol.transactions import CommitReader
    from headrace.runtime.commit.journal.topic import CommitTopic


logger = logging.getLogger(__name__)

_LOOK = 0.5
_SAME = timedelta(seconds=1)
#: Between the address of a broker and the time when its process began, ms since 1970.
_SINCE = " since "
#: How long a request of a process that has died may still be on its way.
_UNDER_WAY = 1.0


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease lasts, in seconds.

    Examples
    --------
    >>> LeaseTimes(60.0)
    LeaseTimes(expiry=60.0)
    >>> LeaseTimes(60.0).renewal, LeaseTimes(60.0).trusted
    (20.0, 45.0)
    """

    #: Brokers give a lock to others after so long without a word.
    expiry: float = 60.0

    @property
    def renewal(self) -> float:
        """Pause between two renewals."""
        return self.expiry / 3

    @property
    def trusted(self) -> float:
        """How old a renewal may be for the lease to count as held."""
        return self.expiry * 3 / 4


def remaining_wait(
    times: LeaseTimes,
    *,
    granted_for: float | None,
    ended: bool,
    dead_for: float | None,
    expired: bool = False,
) -> float | None:
    """Return how many seconds a successor still waits, or None: until something happens.

    Parameters
    ----------
    granted_for
        How long it has held the lock; None if it does not hold it.
    ended
        Its predecessor ended in order, or there was none.
    dead_for
        How long its predecessor has been known to be dead; None if it may be alive.
    expired
        The lock of its predecessor is known to have expired, not to have been forgotten.

    Examples
    --------
    >>> times = LeaseTimes(60.0)
    >>> remaining_wait(times, granted_for=5.0, ended=False, dead_for=None)
    55.0
    >>> remaining_wait(times, granted_for=0.0, ended=True, dead_for=None)
    0.0
    """
    if granted_for is None:
        return None
    if ended or expired:
        return 0.0
    if dead_for is not None:
        return max(0.0, _UNDER_WAY - dead_for)
    return max(0.0, times.expiry - granted_for)


class DriverLease(Lease):
    """The lease of one driver.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Name of the job.
    owner
        The driver's name, as its open record has it.
    times
        How long a lease lasts.
    """

    def __init__(self, client: Client, job: str, owner: str, times: LeaseTimes) -> None:
        super().__init__(client, job, owner, renewal=times.renewal)
        self._times = times
        self._term = LeaseTerm(times.trusted)
        #: The error that has ended the keeper.
        self._failure: BaseException | None = None
        self.on_failure = self._fail
        #: What :meth:`take` waits for, while it does.
        self.waiting: LeaseWait | None = None
        #: The broker process that keeps the lock since :meth:`take`; empty: not known.
        self.keeper = ""

    def acquire(self) -> bool:
        """Lock the commit topic, or renew the lock, and return whether it is ours.

        A lease that was not renewed in time is lost, also if the lock is free again: another
        driver may have had it in between.
        """
        asked = boot_time()
        granted = super().acquire()
        if granted and self._is_kept_where_it_was():
            self._term.renew(asked)
        return granted

    def _is_kept_where_it_was(self) -> bool:
        """Return whether the lock is not that of a broker which has taken the place of the first.

        If the first broker came back, a successor would not learn of a lock on the other.
        """
        return not self.keeper or self._address() == _address_of(self.keeper)

    def renew(self) -> None:
        """Renew the lock; where its broker was restarted, learn which process keeps it now."""
        if self.acquire() and self.keeper:
            keeper = self._ask_keeper()
            moved = _address_of(keeper) != _address_of(self.keeper)
            if keeper != self.keeper and not moved and self.acquire():
                self.keeper = keeper

    def held(self) -> bool:
        """Return whether nobody else can have the lease now."""
        return self._failure is None and self._term.silence < self._term.length

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def check(self) -> None:
        """Make sure that nobody else can have the lease now.

        Raises
        ------
        LeaseLostError
            It was not renewed in time.
        """
        if not self.held():
            raise LeaseLostError(
                f"the driver of job '{self._job}' could not renew its lease on the commit topic for"
                f" {self._times.trusted:g} s: another driver may have taken over",
                hint="was this process stopped, or the broker of the commit topic away?",
            ) from self._failure

    def take(
        self, topic: CommitTopic, look: Callable[[CommitReader], None], given_up: threading.Event
    ) -> None:
        """Wait until the lease is ours, and the driver before this one has surely stopped.

        Parameters
        ----------
        look
            Called with the commit log at every look; what it raises ends the wait.
        given_up
            Ends the wait without the lease.

        Raises
        ------
        JobFailedError
            It was given up.
        """
        try:
            self._take(topic, look, given_up)
        finally:
            self.waiting = None

    def _take(
        self, topic: CommitTopic, look: Callable[[CommitReader], None], given_up: threading.Event
    ) -> None:
        granted: float | None = None
        self._term.end()
        self.keeper = ""
        dead: float | None = None
        said, epoch = "", -1
        while True:
            log = topic.refresh()
            look(log)
            if log.epoch != epoch:
                # Whoever has opened meanwhile is the one to wait for.
                epoch, granted, dead = log.epoch, None, None
            predecessor = DriverName.parse(log.driver)
            ended = log.record is None or log.closed or log.driver == self._owner
            if dead is None and predecessor is not None and predecessor.is_dead():
                dead = boot_time()
                self.release_for(log.driver)
            if not (self.acquire() if granted is not None else self._is_granted()):
                granted = None
            elif granted is None:
                granted = boot_time()
            wait = remaining_wait(
                self._times,
                granted_for=None if granted is None else boot_time() - granted,
                ended=ended,
                dead_for=None if dead is None else boot_time() - dead,
                expired=log.record is not None and self.keeper == log.record.lock_keeper != "",
            )
            if wait == 0.0:
                return
            self._wait_for(log.driver, wait)
            what = "until it ends" if wait is None else "for a while"
            if what != said and (wait is None or wait > _UNDER_WAY):
                self._say(wait, log.driver or "of an older release")
                said = what
            if given_up.wait(_LOOK if wait is None else min(_LOOK, wait)):
                raise JobFailedError(
                    f"job '{self._job}' was stopped while it waited for the lease of another"
                    f" driver ({log.driver or 'of an older release'})"
                )

    def _is_granted(self) -> bool:
        """Lock the commit topic for the first time, and learn which process keeps the lock.

        It is asked between two grants, so it has given the first one, or its successor gives the
        second one and nobody takes that for the same.
        """
        self.keeper = ""
        if not self.acquire():
            return False
        keeper = self._ask_keeper()
        granted = self.acquire()
        self.keeper = keeper if granted else ""
        return granted

    def _ask_keeper(self) -> str:
        """Return a name for the broker's process; empty where it does not say when it began."""
        try:
            address = self._address()
            answer = self._client.invoke(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            began = loads(answer.payload, RuntimeInfo).table.get("bootTimestamp", "")
        except HeadraceError as error:
            logger.debug("job %s: the broker does not tell when it began: %s", self._job, error)
            return ""
        return f"{address}{_SINCE}{began}" if began else ""

    def _address(self) -> str:
        return self._client.broker_address(self._queue().broker)

    def _wait_for(self, driver: str, wait: float | None) -> None:
        now, before = datetime.now(UTC), self.waiting
        since = now if before is None else before.since
        until = None if wait is None else now + timedelta(seconds=wait)
        if until and before is not None and before.until:
            # Some milliseconds do not matter.
            until = before.until if abs(until - before.until) < _SAME else until
        self.waiting = LeaseWait(driver=driver, since=since, until=until)

    def _say(self, wait: float | None, driver: str) -> None:
        if wait is None:
            logger.warning(
                "job %s: another driver (%s) runs, or ended without a word less than %g s ago;"
                " waiting for its lease",
                self._job,
                driver,
                self._times.expiry,
            )
        else:
            logger.warning(
                "job %s: the driver before this one (%s) may still run somewhere; going on in"
                " %.0f s, when it has surely stopped",
                self._job,
                driver,
                wait,
            )


def _address_of(keeper: str) -> str:
    return keeper.rpartition(_SINCE)[0]
