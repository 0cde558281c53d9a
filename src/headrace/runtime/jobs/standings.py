"""Which jobs a cluster knows, and where each stands, whether its driver runs or not."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from headrace.client import Admin, JobStanding
from headrace.errors import ConnectionFailedError, StateError, TopicNotFoundError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.lease import Lease
from headrace.runtime.jobs.journal import staged_in_journal
from headrace.runtime.state.home import StateHome, commits_units
from headrace.topology.names import commit_topic

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.protocol.transactions import CommitRecord

__all__ = ["check_brokers", "standing_of_job", "standings", "unknown_job"]

_SUFFIX = commit_topic("")
#: What the holder of a lease is called where the cluster does not name it.
_SOMEBODY = "a driver"


def standings(client: Client) -> list[JobStanding]:
    """Give all jobs of a cluster of either kind, by name."""
    admin = Admin(client)
    booked = {job.record.job: job for job in admin.jobs()} if admin.is_headrace() else {}
    # Those that have run on several brokers are in the book of none.
    names = {t.removesuffix(_SUFFIX) for t in admin.topics() if t.endswith(_SUFFIX)} | set(booked)
    if not names:
        check_brokers(client)
    found = (booked.get(name) or _read(client, name) for name in sorted(names))
    return [standing for standing in found if standing is not None]


def standing_of_job(client: Client, job: str) -> JobStanding:
    """Give where one job stands.

    Raises
    ------
    StateError
        The cluster has no such job.
    """
    if commits_units(client, job):
        known = {standing.record.job: standing for standing in Admin(client).jobs()}
        standing = known.get(job)
    else:
        standing = _read(client, job)
    if standing is None:
        raise unknown_job(client, job)
    return standing


def unknown_job(client: Client, job: str) -> StateError:
    """Make the error of a name that no job has; it names one that is near.

    Raises
    ------
    ConnectionFailedError
        The cluster has no broker now, and so no jobs.
    """
    check_brokers(client)
    topics = Admin(client).topics()
    known = [topic.removesuffix(_SUFFIX) for topic in topics if topic.endswith(_SUFFIX)]
    near = difflib.get_close_matches(job, known, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return StateError(
        f"job '{job}' was never started on this cluster",
        hint=hint + "look at its name and at the address: headrace job list shows all jobs",
    )


def check_brokers(client: Client) -> None:
    """Make sure that the name server knows a broker: it forgets one that is away, and its topics.

    Raises
    ------
    ConnectionFailedError
        It knows none.
    """
    if not client.brokers():
        raise ConnectionFailedError(
            "the name server knows no broker now, and so no jobs",
            hint="it forgets a broker that was away for two minutes: start the broker, and look"
            " again",
        )


def _read(client: Client, job: str) -> JobStanding | None:
    """Read where a job stands from its commit topic, on a stock RocketMQ."""
    home = StateHome.of(job, client)
    try:
        record = home.transactions.plan([], {}, 0, 0).record
    except TopicNotFoundError:
        return None
    finally:
        home.transactions.close()
    if record is None:
        return None
    return JobStanding(
        commit_topic=commit_topic(job),
        driver=record.driver,
        record=record,
        holder=_holder(client, record),
        staged=staged_in_journal(client, record),
    )


def _holder(client: Client, record: CommitRecord) -> str:
    """Tell who holds the lease: RocketMQ shows no locks, so it is tried."""
    lease = Lease(client, record.job, commit_topic(record.job), str(DriverName.here()))
    if lease.acquire():
        lease.release()
        return ""
    if record.kind == "close":
        return _SOMEBODY
    driver = DriverName.parse(record.driver)
    # The lock of a driver that was killed lasts a minute longer than itself.
    return "" if driver is not None and driver.is_dead() else record.driver or _SOMEBODY
