"""What happens once before a job runs: connect, check topics, make the job's own."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.client import Admin, Client
from headrace.client.settings import read_certificates
from headrace.errors import ConfigurationError, ConnectionFailedError, TopicNotFoundError
from headrace.protocol.codes import Perm
from headrace.runtime.commit.journal.retention import check_retention
from headrace.runtime.job_plan import JobConnection, JobPlan
from headrace.runtime.state.checks import other_partitions
from headrace.runtime.state.home import commits_units
from headrace.spark.cluster import on_one_machine
from headrace.topology.names import journal_topic

if TYPE_CHECKING:
    from headrace.runtime.state.interface import StoreFactory
    from headrace.settings import JobSettings
    from headrace.spark.plans import PlanHandle
    from headrace.topology import Topology

__all__ = ["Prepared", "make_connection", "prepare_topics"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job needs to start, but an epoch."""

    connection: JobConnection
    handle: PlanHandle
    #: Writable queues of the topics that it writes.
    queues: dict[str, list[str]]


_COMPACTION = {"cleanup.policy": "COMPACTION"}


def make_connection(
    topology: Topology,
    settings: JobSettings,
    namesrv: str,
    stores: StoreFactory | None = None,
) -> JobConnection:
    """Connect to the job's cluster, of whichever kind it is.

    Raises
    ------
    ConnectionFailedError
        No name server answers at the address.
    SettingsError
        The file of certificates is not there, or holds none.
    """
    # Workers may have another working folder than the driver, and other files.
    ca, state = settings.tls_ca, settings.local_state
    if on_one_machine(settings.master):
        state = state.resolve()
    settings = replace(settings, state_dir=state, tls_ca=None)
    plan = JobPlan(
        topology.with_policy(settings.poison),
        settings,
        namesrv,
        embedded=True,
        stores=stores,
        tls_ca_data=None if ca is None else read_certificates(ca),
    )
    first = replace(plan.client_settings, connect_timeout=settings.connect_timeout)
    with Client(namesrv, first) as client:
        embedded = commits_units(client, plan.job)
    return JobConnection(replace(plan, embedded=embedded))


def prepare_topics(job: JobConnection) -> dict[str, list[str]]:
    """Check the topics that a job reads and writes, make those that are its own.

    Its own are state and commit topics, and those that :meth:`Stream.through` names.

    Gives the writable queues of every sink and state topic, in order.

    Raises
    ------
    TopicNotFoundError
        A source or sink topic does not exist.
    PartitionCountError
        A state topic has fewer queues than the job has partitions.
    ConnectionFailedError
        No broker is there, or one that holds a topic of a job which has run is away for too long.
    """
    plan = job.plan
    admin = Admin(job.client)
    home = _home_broker(job)
    known = set(admin.topics())
    _make_batch_topics(job, admin, known)
    for through in plan.topology.throughs:
        if through.topic not in known:
            admin.create_topic(through.topic, queues=through.queues)
    for topic in plan.source_topics:
        _queues(job, topic, f"job '{plan.job}' reads topic '{topic}'")
    queues = {
        topic: _queues(job, topic, f"job '{plan.job}' writes topic '{topic}'")
        for topic in plan.sink_topics
    }
    for topic in plan.state_topics.values():
        if topic not in known:
            admin.create_topic(
                topic, plan.settings.partitions, attributes=_COMPACTION, brokers=home
            )
        found = _queues(job, topic, f"job '{plan.job}' keeps state in topic '{topic}'")
        if len(found) < plan.settings.partitions:
            raise other_partitions(plan.job, len(found), plan.settings.partitions)
        # A job that was rescaled to fewer partitions leaves the other queues empty.
        queues[topic] = found[: plan.settings.partitions]
    _make_commit_topic(job, admin, home)
    _queues(job, plan.topology.commit_topic, f"job '{plan.job}' commits to")
    if not plan.embedded:
        journal = journal_topic(plan.job)
        if journal not in known:
            admin.create_topic(journal, plan.settings.partitions, brokers=home)
        _queues(job, journal, f"job '{plan.job}' stages in topic '{journal}'")
        check_retention(job.client, plan.job, plan.state_topics.values(), plan.settings)
    job.expect_topics()
    return queues


def _home_broker(job: JobConnection) -> list[str]:
    """Choose the broker of a job's own topics: where its commit topic is, else by its name.

    The order of a commit topic decides what is committed: it has one queue, on one broker.
    """
    client, plan = job.client, job.plan
    topic = plan.topology.commit_topic
    if _brokers_of(client, topic):
        client.expect([topic])
        (queue, *_) = client.queues(topic)
        record = job.transactions.plan([], {}, 0, 0).record
        if record is not None:
            if record.epoch and not (plan.embedded or record.driver):
                raise ConfigurationError(
                    f"job '{plan.job}' has run on one broker of Headrace's, where a batch is a unit,"
                    f" and {plan.namesrv} shows several, on which none is",
                    hint="let only its broker register there, or start it under a new name",
                )
            job.expect_topics(record)
        return [queue.broker]
    brokers = sorted(client.brokers())
    if not brokers:
        raise ConnectionFailedError(
            f"job '{plan.job}' finds no broker at the name server {plan.namesrv}: none has"
            " registered there, or all are away",
            hint="start the brokers; `mqadmin clusterList` shows those that are there",
        )
    return [brokers[zlib.crc32(plan.job.encode()) % len(brokers)]]


def _make_commit_topic(job: JobConnection, admin: Admin, home: list[str]) -> None:
    """Make the commit topic on its broker, and take its name on all others.

    A name server forgets the topics of a broker that is away.  A commit topic made anew on another
    one would begin with nothing, and the job would do everything a second time.
    """
    topic = job.plan.topology.commit_topic
    held = _brokers_of(job.client, topic)
    if not held:
        admin.create_topic(topic, 1, attributes=_COMPACTION, brokers=home)
    others = sorted({*job.client.brokers()} - held - {*home})
    if others:
        admin.create_topic(topic, 1, attributes=_COMPACTION, brokers=others, perm=Perm(0))


def _brokers_of(client: Client, topic: str) -> set[str]:
    try:
        return {part.broker_name for part in client.route(topic, refresh=True).queue_datas}
    except TopicNotFoundError:
        return set()


def _make_batch_topics(job: JobConnection, admin: Admin, known: set[str]) -> None:
    for sink in job.plan.topology.batch_sinks:
        if sink.topic not in known:
            admin.create_topic(sink.topic, queues=job.plan.settings.partitions)
        if sink.done_topic not in known:
            admin.create_topic(sink.done_topic, queues=1, attributes=_COMPACTION)


def _queues(job: JobConnection, topic: str, purpose: str) -> list[str]:
    try:
        return [queue.name for queue in sorted(job.client.queues(topic, for_="write"))]
    except TopicNotFoundError:
        hint = f"make it: headrace topic create {topic} --namesrv {job.plan.namesrv}"
        if _brokers_of(job.client, job.plan.topology.commit_topic):
            hint += "; if it was there before, start its broker instead, which is away"
        raise TopicNotFoundError(
            f"{purpose}, which does not exist on {job.plan.namesrv}", hint=hint
        ) from None
    except ConnectionFailedError as error:
        raise ConnectionFailedError(f"{purpose}: {error.message}", hint=error.hint) from error
