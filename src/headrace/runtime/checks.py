"""What keeps a job from starting: its cluster is read once, and all that is wrong is told at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.client import Admin, Client
from headrace.errors import (
    ConfigurationError,
    ConnectionFailedError,
    HeadraceError,
    NoPermissionError,
    RequestNotSupportedError,
    TopicNotFoundError,
)
from headrace.protocol.routes import COMPACTED, keeps_newest
from headrace.protocol.transactions import CommitRecord, PlanAnswer
from headrace.runtime.commit.journal.transactions import read_ranges
from headrace.runtime.planning import misplaced_offsets
from headrace.runtime.state.steps import Migrations, unusable_state
from headrace.serdes.registry import TableDeserializer
from headrace.topology.errors import dead_letter_topic
from headrace.topology.operators.core import Sink, Source
from headrace.topology.validation import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.runtime.job_plan import JobConnection, JobPlan
    from headrace.topology import Operator, Topology


@dataclass(frozen=True, slots=True)
class NeededTopic:
    """A topic that must be there before the job starts, and who of the job reads or writes it."""

    name: str
    use: str
    operator: Operator
    #: Whether it holds the rows of a table, so that it must keep the newest of each key.
    compacted: bool = False


def needed_topics(topology: Topology) -> list[NeededTopic]:
    """Return the topics of others that a job names; those of its own it makes itself."""
    own = {sink.topic for sink in (*topology.throughs, *topology.batch_sinks)}
    found: dict[str, NeededTopic] = {}
    for needed in _named_topics(topology.operators):
        if needed.name not in own and (needed.compacted or needed.name not in found):
            found[needed.name] = needed
    return list(found.values())


def _named_topics(operators: Iterable[Operator]) -> Iterable[NeededTopic]:
    for operator in operators:
        if isinstance(operator, Source):
            reader = operator.deserializer
            is_table = isinstance(reader, TableDeserializer) and reader.has_message_keys
            for topic in operator.topics:
                yield NeededTopic(topic, "reads", operator, is_table)
        if isinstance(operator, Sink):
            for topic in operator.topics:
                yield NeededTopic(topic, "writes", operator)
        dead_letters = dead_letter_topic(operator.on_error)
        if dead_letters is not None:
            yield NeededTopic(dead_letters, "writes dead letters to", operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What a cluster showed of a job's topics before it started."""

    #: Topics that the job names and that are not there.
    missing: frozenset[str] = frozenset()
    #: Brokers that keep every message of a topic which holds a table, by the topic.
    not_compacted: Mapping[str, str] = field(default_factory=dict)
    #: The job's last commit, and how far its queues reach.
    answer: PlanAnswer
    #: Whether the job has a commit topic, and so was started before.
    was_started: bool = False


def read_cluster(job: JobConnection) -> ClusterSnapshot:
    """Read what a start is checked against; nothing is made or changed.

    A topic of a job that has run is waited for: the name server forgets those of a broker that is
    away.

    Raises
    ------
    ConnectionFailedError
        No broker is there, or one that holds a topic of a job which has run is away for too long.
    ConfigurationError
        The job has run on another kind of cluster.
    """
    client, plan = job.client, job.plan
    was_started = bool(brokers_of(client, plan.topology.commit_topic))
    record = _last_commit(job) if was_started else None
    if not (was_started or client.brokers()):
        raise ConnectionFailedError(
            f"job '{plan.job}' finds no broker at the name server {plan.namesrv}: none has"
            " registered there, or all are away",
            hint="start the brokers; `mqadmin clusterList` shows those that are there",
        )
    needed = needed_topics(plan.topology)
    missing = frozenset(topic.name for topic in needed if not _is_there(job, topic.name))
    tables = [topic.name for topic in needed if topic.compacted and topic.name not in missing]
    read = [topic for topic in job.source_topics() if _is_there(job, topic)]
    ranges = read_ranges(client, job.consumer, read, {}, 0, 0, share=plan.share)
    return ClusterSnapshot(
        missing=missing,
        not_compacted=_not_compacted(client, tables),
        answer=PlanAnswer(
            record=record,
            begins=ranges.begins,
            ends=ranges.ends,
            latest=ranges.latest,
            position=0,
            clock=0,
        ),
        was_started=was_started,
    )


def _last_commit(job: JobConnection) -> CommitRecord | None:
    """Read the newest commit record, and wait from now on for brokers of the topics in it."""
    plan, topic = job.plan, job.plan.topology.commit_topic
    job.client.expect([topic])
    job.client.queues(topic)
    record = job.transactions.plan([], {}, 0, 0).record
    if record is None:
        return None
    if record.epoch and not (plan.embedded or record.driver):
        raise ConfigurationError(
            f"job '{plan.job}' has run on one broker of Headrace's, where a batch is a unit, and"
            f" {plan.namesrv} shows several, on which none is",
            hint="let only its broker register there, or start it under a new name",
        )
    job.expect_topics(record)
    return record


def brokers_of(client: Client, topic: str) -> set[str]:
    """Return the brokers that hold a topic."""
    try:
        return {part.broker_name for part in client.route(topic, refresh=True).queue_datas}
    except TopicNotFoundError:
        return set()


def _is_there(job: JobConnection, topic: str) -> bool:
    try:
        job.client.queues(topic, for_="write")
    except TopicNotFoundError:
        return False
    except ConnectionFailedError as error:
        what = f"job '{job.plan.job}' needs topic '{topic}': {error.message}"
        raise ConnectionFailedError(what, hint=error.hint) from error
    return True


def _not_compacted(client: Client, topics: Iterable[str]) -> dict[str, str]:
    """Return topics that are not compacted, with a broker each, as far as the account may look."""
    found: dict[str, str] = {}
    with suppress(NoPermissionError, RequestNotSupportedError):
        for topic in topics:
            for broker, config in Admin(client).topic_config(topic).items():
                if not keeps_newest(config.attributes):
                    found[topic] = broker
    return found


def start_problems(
    plan: JobPlan, migrations: Migrations, seen: ClusterSnapshot
) -> list[HeadraceError]:
    """Return all that keeps a job from starting, as far as its cluster shows it.

    Parameters
    ----------
    plan
        The job.
    migrations
        What becomes of the state of operators that were renamed or changed.
    seen
        What was read from the cluster.
    """
    needed = needed_topics(plan.topology)
    return [
        *(_missing(plan, topic, seen) for topic in needed if topic.name in seen.missing),
        *(_plain(plan, topic, seen) for topic in needed if topic.name in seen.not_compacted),
        *unusable_state(seen.answer.record, plan, migrations),
        *misplaced_offsets(plan, seen.answer),
    ]


def _missing(plan: JobPlan, topic: NeededTopic, seen: ClusterSnapshot) -> TopicNotFoundError:
    hint = (
        f"make it: {_creation(plan, topic)}, or all that are missing: headrace run --create-topics"
    )
    if seen.was_started:
        hint += "; if it was there before, start its broker instead, which is away"
    return TopicNotFoundError(
        f"job '{plan.job}' {topic.use} topic '{topic.name}', which does not exist on"
        f" {plan.namesrv}: {named(topic.operator)}",
        hint=hint,
    )


def _plain(plan: JobPlan, topic: NeededTopic, seen: ClusterSnapshot) -> ConfigurationError:
    return ConfigurationError(
        f"job '{plan.job}' reads topic '{topic.name}' as a table, and it is no compaction topic on"
        f" broker '{seen.not_compacted[topic.name]}', where retention would delete rows:"
        f" {named(topic.operator)}",
        hint="brokers take the policy for new topics only: delete it (headrace topic delete"
        f" {topic.name} {_cluster(plan)}) and make it anew ({_creation(plan, topic)}), or read its"
        " messages with source(...).to_table()",
    )


def _creation(plan: JobPlan, topic: NeededTopic) -> str:
    compaction = " --compaction" if topic.compacted else ""
    queues = plan.settings.partitions
    return f"headrace topic create {topic.name} {_cluster(plan)} --queues {queues}{compaction}"


def _cluster(plan: JobPlan) -> str:
    """Return the option that names the cluster; an embedded broker's address ends with the job."""
    if plan.settings.namesrv is None:
        return f"--data-dir {plan.settings.data_dir}"
    return f"--namesrv {plan.namesrv}"


def create_missing(job: JobConnection, queues: int) -> list[str]:
    """Make the topics that a job names and that are not there; return their names.

    Parameters
    ----------
    job
        The job.
    queues
        Queues of each topic, on each broker.
    """
    seen, admin = read_cluster(job), Admin(job.client)
    made = [topic for topic in needed_topics(job.plan.topology) if topic.name in seen.missing]
    for topic in made:
        attributes = COMPACTED if topic.compacted else None
        admin.create_topic(topic.name, queues, attributes=attributes)
    return [topic.name for topic in made]
