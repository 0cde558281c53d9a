"""What every process that works for a job must know of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client import Admin, Client, ClientSettings, Jobs, MessageQueue, PullConsumer
from headrace.errors import NoPermissionError, RequestNotSupportedError
from headrace.private import owners_secret
from headrace.protocol.routes import LOGICAL_BROKER, is_of_brokers, keeps_newest
from headrace.protocol.transactions import WHOLE, CommitRecord, QueueName, Share
from headrace.runtime.bolts.instances import Instances
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.transactions import JournalTransactions
from headrace.runtime.commit.transactions import BatchTransactions, BrokerTransactions, sender
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.interface import StateStore, StoreFactory, StorePlace
from headrace.serdes.base import SECRET_BYTES
from headrace.topology.names import journal_topic, state_topic
from headrace.topology.operators.core import MessageSource, Sink, Source

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.runtime.state.local import StateTopic
    from headrace.settings import JobSettings
    from headrace.topology import StagePlan, Topology


#: A machine of workers with this variable has a folder of its own for local copies.
_STATE_HERE = "HEADRACE_WORKER_STATE_DIR"


def pickle_secret(settings: JobSettings, job: str) -> bytes:
    """Return the secret that a job's pickles are signed with; it is made at the first use.

    Raises
    ------
    UnsafeFileError
        Somebody else could have made its file, or can read it.
    """
    if given := settings.pickle_secret:
        return given.encode()
    return owners_secret(settings.data_dir / "secrets" / job, SECRET_BYTES)


@dataclass(frozen=True)
class JobPlan:
    """A topology with the settings that its tasks need.

    Sent to the workers by value, with the user's functions in it.
    """

    topology: Topology
    settings: JobSettings
    namesrv: str
    #: Whether the cluster is Headrace's own broker, with transactions over many messages.
    embedded: bool
    #: Makes the state stores, where they are of a user's own kind.
    stores: StoreFactory | None = field(default=None, kw_only=True)
    #: The certificates that are trusted, as the driver has read them; None: those of the system.
    tls_ca_data: str | None = field(default=None, kw_only=True, repr=False)

    def own_store(
        self, topic: StateTopic, batch: int | None = None
    ) -> Callable[[str, int], StateStore] | None:
        """Return what makes a store of a user's own kind, by operator and partition.

        Parameters
        ----------
        topic
            Where stores are read from.
        batch
            The last committed batch; nothing of a later one is read.
        """
        factory = self.stores
        if factory is None:
            return None

        def made(operator: str, partition: int) -> StateStore:
            def entries(start: int, end: int) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
                for block in topic.read(operator, partition, start, end, batch):
                    yield block.keys, block.values

            folder = self.state_root / operator / str(partition) / "own"
            return factory(StorePlace(self.job, operator, partition, folder, entries))

        return made

    def make_transactions(self, job: JobConnection) -> BatchTransactions:
        """Make what opens, stages, commits and publishes, for the kind of cluster that it is."""
        direct = sender(job.client) if self.settings.guarantee == "at_least_once" else None
        if not self.embedded:
            times = LeaseTimes(self.settings.lease_expiry.total_seconds())
            again = self.settings.on_expired_offset == "earliest"
            return JournalTransactions(
                job.client,
                job.consumer,
                self.job,
                direct,
                times,
                max_bytes=self.settings.max_bytes_per_batch,
                share=self.share,
                sends_again=again,
            )
        commit_topic = self.topology.commit_topic
        is_resident = self.settings.executor == "resident"
        return BrokerTransactions(
            Jobs(job.client, commit_topic),
            self.job,
            commit_topic,
            direct,
            max_bytes=self.settings.max_bytes_per_batch,
            share=self.share,
            parts=len(self.stages.stages) * self.settings.partitions if is_resident else 0,
        )

    def connect(self, client: Client | None = None) -> JobConnection:
        """Connect a process that works for a job which runs, by its own client or one of others.

        The job's topics were there when it began.
        """
        connection = JobConnection(self, client)
        connection.expect_topics()
        return connection

    @property
    def job(self) -> str:
        """Name of the job, its consumer group and its transactions."""
        return self.topology.name

    @property
    def share(self) -> Share:
        """Which queues of its topics the job reads."""
        shares = [s for s in self.topology.sources if isinstance(s, MessageSource)]
        return Share(number=shares[0].number, of=shares[0].of) if shares else WHOLE

    @property
    def shows_commits_only(self) -> bool:
        """Whether topics that the job writes never show what was not committed."""
        return self.embedded and self.settings.guarantee == "exactly_once"

    def reads_committed(self, topic: str) -> bool:
        """Return whether messages of a topic must be told from uncommitted or repeated ones.

        What the job writes for itself it reads as exactly as it writes it.
        """
        if self.embedded:
            return False
        exact = self.settings.guarantee == "exactly_once"
        if any(
            sink.topic == topic for sink in (*self.topology.throughs, *self.topology.batch_sinks)
        ):
            return exact
        if self.settings.isolation is None:
            return exact
        return self.settings.isolation == "read_committed"

    @property
    def stages(self) -> StagePlan:
        """The topology, cut at every shuffle."""
        return self.topology.plan

    def pickle_secret(self) -> bytes:
        """Return the secret of the job's pickles, as :func:`pickle_secret` does."""
        return pickle_secret(self.settings, self.job)

    @property
    def state_root(self) -> Path:
        """Folder of the job's local state on this machine."""
        return Path(os.environ.get(_STATE_HERE) or self.settings.local_state) / self.job

    @property
    def source_topics(self) -> list[str]:
        """Topics that the job's sources name; those that patterns match come on top."""
        named = [topic for source in self.topology.sources for topic in source.topics]
        return list(dict.fromkeys(named))

    @property
    def sink_topics(self) -> list[str]:
        """Topics that the job writes, dead-letter topics included."""
        written = [topic for sink in self.topology.sinks for topic in sink.topics]
        return list(dict.fromkeys(written + self.topology.dead_letter_topics))

    @property
    def state_topics(self) -> dict[str, str]:
        """Topic of each state store, by the operator's name."""
        return self.topology.state_topics

    def forwards_headers(self, source: Source) -> bool:
        """Return whether records of a source reach what asks for their headers, such as a sink."""
        pending = [source.name]
        while pending:
            for child in self.stages.children(pending.pop()):
                if isinstance(child, Sink) or child.reads_headers:
                    return True
                if not child.stateful:
                    pending.append(child.name)
        return False

    @property
    def client_settings(self) -> ClientSettings:
        """How this job's clients connect and try again.

        The address was tried before the job began, so a worker that cannot connect has met a
        broker that is being restarted, not a wrong address.
        """
        settings = self.settings
        patience = max(settings.connect_timeout, settings.retry_timeout)
        own = {"connect_timeout": patience, "tls_ca": None, "tls_ca_data": self.tls_ca_data}
        return ClientSettings(**settings.connection | own)


class JobConnection:
    """A job's connection to its cluster, one per process.

    Parameters
    ----------
    plan
        The job.
    client
        Connection that others use too; without, the job has its own.
    """

    def __init__(self, plan: JobPlan, client: Client | None = None) -> None:
        self.plan = plan
        self._shares_client = client is not None
        self.client = client or Client(plan.namesrv, plan.client_settings)
        self.consumer = PullConsumer(self.client, plan.job)
        self._gapless: dict[MessageQueue, bool] = {}
        #: Users' components that this process keeps from batch to batch.
        self.instances = Instances()
        if self._shares_client:
            # What others have looked up before may not know of queues that were added since.
            for topic in self._own_topics():
                self.client.forget_route(topic)

    def source_topics(self) -> list[str]:
        """Topics that the job reads now, those included that its patterns match."""
        return [*self.plan.source_topics, *self._patterns.topics()]

    def offsets_at(self, queues: Collection[QueueName], moment: datetime) -> dict[QueueName, int]:
        """Return the first offset of each queue that was stored at a moment or later."""
        parsed = [MessageQueue.parse(queue) for queue in queues]
        found = self.consumer.offsets_for_time(parsed, moment)
        return {queue.name: offset for queue, offset in found.items()}

    def reader(self, topic: str) -> PullConsumer:
        """Return what reads the messages of a topic that the job's records are made of."""
        return self._committed if self.plan.reads_committed(topic) else self.consumer

    def is_gapless(self, queue: MessageQueue) -> bool:
        """Return whether each offset of a queue has a message, unless its broker deleted it.

        Compaction leaves gaps, static topics have some where a queue has moved, and a repaired store
        of the embedded broker where something was lost.
        """
        if self.plan.embedded or queue.broker == LOGICAL_BROKER:
            return False
        if queue not in self._gapless:
            self._gapless[queue] = _is_gapless(self.client, queue)
        return self._gapless[queue]

    @cached_property
    def _committed(self) -> PullConsumer:
        return PullConsumer(self.client, self.plan.job, committed=True)

    @cached_property
    def _patterns(self) -> PatternTopics:
        return PatternTopics(self.plan.topology, Admin(self.client).topics)

    @cached_property
    def transactions(self) -> BatchTransactions:
        """Open, stage, commit, publish on this cluster."""
        return self.plan.make_transactions(self)

    @cached_property
    def state_home(self) -> StateHome:
        """The job's committed state."""
        plan = self.plan
        return StateHome(plan.job, self.client, self.transactions, tagged=not plan.embedded)

    def get_ready(self) -> None:
        """Do what the first batch would wait for: connect, and look up where the topics are."""
        for topic in {*self._patterns.topics(), *self._own_topics()}:
            self.client.queues(topic)
        self.transactions.plan([], {}, 0, 0)

    def expect_topics(self, record: CommitRecord | None = None) -> None:
        """Wait for brokers from now on that do not show the job's topics.

        Parameters
        ----------
        record
            Only topics that were there when it was written, before the job has looked for all.
        """
        topics = self._own_topics()
        self.client.expect(topics if record is None else topics & _topics_of(record))

    def _own_topics(self) -> set[str]:
        """Topics that the job names: all but those that its patterns match."""
        plan, topology = self.plan, self.plan.topology
        topics = {*plan.source_topics, *plan.sink_topics, *plan.state_topics.values()}
        topics |= {
            topic for sink in topology.batch_sinks for topic in (sink.topic, sink.done_topic)
        }
        topics.add(topology.commit_topic)
        if not plan.embedded:
            topics.add(journal_topic(plan.job))
        return topics

    def close(self) -> None:
        """Close the connection, unless others use it too."""
        if not self._shares_client:
            self.client.close()


def _topics_of(record: CommitRecord) -> set[str]:
    """Return the topics that a commit tells of."""
    queues = {*record.offsets, *record.published}
    own = {state_topic(record.job, state.store) for state in record.states}
    return own.union(MessageQueue.parse(queue).topic for queue in queues)


def _is_gapless(client: Client, queue: MessageQueue) -> bool:
    """Return whether a topic's settings rule out gaps; False if they cannot be read."""
    with suppress(NoPermissionError, RequestNotSupportedError):
        (config,) = Admin(client).topic_config(queue.topic, queue.broker).values()
        batches = config.attributes.get("queue.type") == "BatchCQ"
        return not (batches or keeps_newest(config.attributes))
    return False


# Topics that the patterns of a job's sources match, looked for again while the job runs.

#: So often the name server is asked for new topics, seconds.
_LOOK_SECONDS = 1.0

#: Topics that jobs make for themselves.
_OF_JOBS = re.compile(r".*-(stateTopic|commitTopic|shuffleTopic|journalTopic)")


def is_internal(topic: str) -> bool:
    """Return whether jobs or brokers made a topic for themselves, so that no pattern means it.

    >>> is_internal("orders"), is_internal("job-commitTopic")
    (False, True)
    """
    return is_of_brokers(topic) or _OF_JOBS.fullmatch(topic) is not None


def matching_topics(topology: Topology, known: Iterable[str]) -> list[str]:
    """Choose the topics that a pattern of some source matches and no source names.

    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> builder.source(re.compile("orders-.*"), serdes.string).sink("out", serdes.string)
    <end of 'sink-out'>
    >>> matching_topics(builder.build(), ["out", "orders-eu", "orders-us", "orders-x-stateTopic"])
    ['orders-eu', 'orders-us']
    """
    patterns = [source for source in topology.sources if not source.topics]
    named = {topic for source in topology.sources for topic in source.topics}
    return sorted(
        topic
        for topic in known
        if topic not in named
        and not is_internal(topic)
        and any(source.reads(topic) for source in patterns)
    )


class PatternTopics:
    """Finds the topics that match, and asks again from time to time.

    Parameters
    ----------
    topology
        Whose sources have patterns, or not.
    ask
        Lists all topics of the cluster.
    """

    def __init__(self, topology: Topology, ask: Callable[[], list[str]]) -> None:
        self._topology = topology
        self._ask = ask
        self._has_patterns = any(not source.topics for source in topology.sources)
        self._asked = float("-inf")
        self._found: list[str] = []

    def topics(self) -> list[str]:
        """Return the topics that match; a topic that is new may be missing for a second."""
        if self._has_patterns and time.monotonic() - self._asked >= _LOOK_SECONDS:
            self._found = matching_topics(self._topology, self._ask())
            self._asked = time.monotonic()
        return self._found
