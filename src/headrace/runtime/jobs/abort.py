"""Ending a job from outside: its driver is fenced off, and what it left in between is settled."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import FencedError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.topic import CommitTopic
from headrace.runtime.commit.lease import Lease
from headrace.runtime.jobs.standings import standing_of_job
from headrace.runtime.state.home import StateHome
from headrace.topology.names import commit_topic

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.protocol.transactions import CommitRecord, StagedBatch

__all__ = ["Aborted", "abort"]

logger = logging.getLogger(__name__)

#: How long a driver that is fenced off may take to notice it and end.
_PATIENCE = timedelta(seconds=20)
_POLL = 0.2
#: Other drivers that may open an epoch at the same moment.
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """What an abort did."""

    #: The epoch that is fenced off, and who opened it.
    epoch: int
    driver: str
    #: Whether a driver held the job's lease.
    was_running: bool
    #: The record that the next start goes on from.
    record: CommitRecord
    #: Whether the last batch was committed and not published, which was done now.
    published: bool
    #: What was staged for batches that are not committed: it never becomes visible.
    dropped: list[StagedBatch]


def abort(
    client: Client,
    job: str,
    *,
    patience: timedelta = _PATIENCE,
    times: LeaseTimes | None = None,
) -> Aborted:
    """Fence off whoever runs a job, drop what is staged, and publish what is committed.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Its name.
    patience
        On RocketMQ, where a batch is left to publish: how long the driver may take to end before
        its lease is taken from it.  Then a whole lease is waited for.
    times
        How long a lease lasts on the brokers of a RocketMQ.

    Raises
    ------
    StateError
        The cluster has no such job.
    """
    before = standing_of_job(client, job)
    home = StateHome.of(job, client)
    owner = str(DriverName.here())
    try:
        if home.tagged:
            taking = _Taking(client, job, owner, before.driver, patience, times or LeaseTimes())
            record, published = _settle(home, taking)
        else:
            record, published = home.transactions.open(owner).record, False
    finally:
        home.transactions.close()
    return Aborted(
        epoch=before.record.epoch,
        driver=before.driver,
        was_running=bool(before.holder),
        record=record,
        published=published,
        dropped=before.staged,
    )


@dataclass(frozen=True, slots=True)
class _Taking:
    """How the lease of a driver is taken over."""

    client: Client
    job: str
    owner: str
    #: Who holds it.
    driver: str
    patience: timedelta
    times: LeaseTimes

    def take(self) -> None:
        """Wait until the driver has ended; one that does not end is outwaited."""
        lease = Lease(self.client, self.job, commit_topic(self.job), self.owner)
        if _granted(lease, self.patience.total_seconds()):
            return
        logger.warning(
            "job %s: its driver (%s) does not end; its lease is taken from it, and what is left to"
            " publish is published in %g s, when it has surely stopped",
            self.job,
            self.driver,
            self.times.expiry,
        )
        lease.release_for(self.driver)
        until = time.monotonic() + self.times.expiry
        while time.monotonic() < until:
            lease.acquire()
            time.sleep(_POLL)


def _granted(lease: Lease, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not lease.acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _settle(home: StateHome, taking: _Taking) -> tuple[CommitRecord, bool]:
    """Fence the driver off by the order of the log, and finish what it has committed."""
    topic = CommitTopic(home.client, home.consumer, commit_topic(home.job))
    record = _fence(topic, taking.owner)
    if home.transactions.is_published(record):
        # The driver before this one can commit nothing more, so it publishes nothing more.
        closed = msgspec.structs.replace(record, kind="close", timestamp=_now())
        topic.append(closed)
        return record, False
    taking.take()
    return home.transactions.open(taking.owner).record, True


def _fence(topic: CommitTopic, owner: str) -> CommitRecord:
    for _ in range(_TRIES):
        log = topic.refresh()
        last = log.record
        assert last is not None, "a job that has a standing has a record"
        opened = msgspec.structs.replace(
            last,
            kind="open",
            epoch=last.epoch + 1,
            driver=owner,
            # It opens without the lease: the driver before it may still hold that.
            lock_keeper="",
            timestamp=_now(),
        )
        topic.append(opened)
        if log.record is not None and log.driver == owner:
            return log.record
        # A commit came in between, or another driver opened: this one builds on that.
        topic.again()
    raise FencedError(
        f"job '{topic.queue.topic}' is opened again and again by other drivers",
        hint="look who starts it: headrace job history shows the drivers",
    )


def _now() -> int:
    return int(time.time() * 1000)
