"""What a job has staged in its journal, on a stock RocketMQ."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.client import Admin, Client, JobStanding, MessageQueue, PullConsumer
from headrace.errors import (
    ConnectionFailedError,
    FencedError,
    ProtocolError,
    StateError,
    TopicNotFoundError,
)
from headrace.protocol.transactions import (
    CommitReader,
    CommitRecord,
    StagedBatch,
    StateSummary,
    Verdict,
    commit_in,
)
from headrace.runtime.commit.drivers import DriverName, Lease
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.topic import CommitTopic, clock_ms, decode_chunk
from headrace.runtime.standing import OperatorStatistics, lag_of, longest, operator_statistics
from headrace.runtime.state.home import StateHome, commits_units
from headrace.spelling import did_you_mean
from headrace.topology.names import commit_topic, journal_topic

if TYPE_CHECKING:
    from headrace.protocol.messages import StoredMessage


#: Messages of a queue of the journal that are looked at, where the last batch does not say where
#: its own end.
_LOOK = 64

_Chunk = tuple[str, str, str, str]


def staged_in_journal(client: Client, record: CommitRecord) -> list[StagedBatch]:
    """Sum up what waits behind the last commit; what older epochs staged is void, and left out."""
    try:
        queues = client.queues(journal_topic(record.job))
    except TopicNotFoundError:
        return []
    consumer = PullConsumer(client)
    behind = {part.journal: part.places[-1] + 1 for part in record.parts if part.places}
    found: dict[int, dict[_Chunk, tuple[int, int]]] = {}
    for queue in queues:
        end = consumer.end_offset(queue)
        begin = max(consumer.begin_offset(queue), behind.get(queue.name, end - _LOOK))
        for result in consumer.blocks(queue, begin, end):
            for message in result.messages():
                batch = int(message.properties.get("batch", 0))
                if batch > record.batch and message.properties.get("epoch") == str(record.epoch):
                    chunks = found.setdefault(batch, {})
                    # A chunk that arrived twice counts once.
                    chunks[_chunk_of(message)] = (_records(message), len(message.body))
    return [
        StagedBatch(
            epoch=record.epoch,
            batch=batch,
            parts=len({chunk[:3] for chunk in chunks}),
            records=sum(records for records, _ in chunks.values()),
            size=sum(size for _, size in chunks.values()),
        )
        for batch, chunks in sorted(found.items())
    ]


def _chunk_of(message: StoredMessage) -> _Chunk:
    given = message.properties
    names = ("stage", "partition", "attempt", "chunk")
    stage, partition, attempt, chunk = (given.get(name, "") for name in names)
    return stage, partition, attempt, chunk


def _records(message: StoredMessage) -> int:
    try:
        return sum(map(len, decode_chunk(message.body)))
    except ProtocolError:
        return 0


# Which jobs a cluster knows, and where each stands, whether its driver runs or not.

_SUFFIX = commit_topic("")
#: What the holder of a lease is called where the cluster does not name it.
_SOMEBODY = "a driver"


def standings(client: Client) -> list[JobStanding]:
    """Return all jobs of a cluster of either kind, by name."""
    admin = Admin(client)
    booked = {job.record.job: job for job in admin.jobs()} if client.is_headrace() else {}
    # Those that have run on several brokers are in the book of none.
    names = {t.removesuffix(_SUFFIX) for t in admin.topics() if t.endswith(_SUFFIX)} | set(booked)
    if not names:
        check_brokers(client)
    found = (booked.get(name) or _read(client, name) for name in sorted(names))
    return [standing for standing in found if standing is not None]


def standing_of_job(client: Client, job: str) -> JobStanding:
    """Return where one job stands.

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
    """Make the error about a name that no job has; it names one that is similar.

    Raises
    ------
    ConnectionFailedError
        The cluster has no broker now, and so no jobs.
    """
    check_brokers(client)
    topics = Admin(client).topics()
    known = [topic.removesuffix(_SUFFIX) for topic in topics if topic.endswith(_SUFFIX)]
    look = "look at its name and at the address: headrace job list shows all jobs"
    return StateError(
        f"job '{job}' was never started on this cluster",
        hint=f"{did_you_mean(job, known)} {look}".lstrip(),
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
    """Return who holds the lease, by trying to take it, as RocketMQ shows no locks."""
    lease = Lease(client, record.job, str(DriverName.here()))
    if lease.acquire():
        lease.release()
        return ""
    if record.kind == "close":
        return _SOMEBODY
    driver = DriverName.parse(record.driver)
    # The lock of a driver that was killed lasts a minute longer than itself.
    return "" if driver is not None and driver.is_dead() else record.driver or _SOMEBODY


# Ending a job from outside: its driver is fenced off, and what it left in between is settled.

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
        lease = Lease(self.client, self.job, self.owner)
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
        topic.append(record.closed(clock_ms()))
        return record, False
    taking.take()
    return home.transactions.open(taking.owner).record, True


def _fence(topic: CommitTopic, owner: str) -> CommitRecord:
    for _ in range(_TRIES):
        log = topic.refresh()
        last = log.record
        assert last is not None, "a job that has a standing has a record"
        # It opens without the lease: the driver before it may still hold that.
        topic.append(last.opened(last.epoch + 1, clock_ms(), driver=owner))
        if log.record is not None and log.driver == owner:
            return log.record
        # A commit came in between, or another driver opened: this one builds on that.
        topic.again()
    raise FencedError(
        f"job '{topic.queue.topic}' is opened again and again by other drivers",
        hint="look who starts it: headrace job history shows the drivers",
    )


# A look at a job: its snapshot, its lag, what it has staged.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """A state store as a commit has it."""

    partitions: int
    #: Live entries, and bytes of their state messages' bodies.
    entries: int
    size: int
    #: Entries of the partition that has most.
    largest: int
    #: The batch that changed it last.
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLook:
    """A job at one moment, seen from outside."""

    record: CommitRecord
    #: Who opened the epoch; empty where that was not kept.
    driver: str
    #: Who holds the driver's lease; empty where nobody does, so no driver runs.
    holder: str
    #: What waits for a commit.
    staged: list[StagedBatch]
    #: Whether all of the last batch is in its topics; None where nobody has looked.
    published: bool | None
    #: Messages that are not committed, and the age of the oldest; None: its topics are gone.
    lag: int | None
    behind: timedelta | None
    operators: dict[str, OperatorStatistics]
    stores: dict[str, StoreSnapshot]

    @property
    def running(self) -> bool:
        """Whether a driver of the job runs."""
        return bool(self.holder)


def look_at(client: Client, standing: JobStanding, *, closely: bool = False) -> JobLook:
    """Return how a job is doing, by the ends of the queues that it reads.

    Parameters
    ----------
    client
        Connection to the cluster.
    standing
        Where it stands.
    closely
        Look into the topics that it writes, too, for the last batch.
    """
    record = standing.record
    home = StateHome.of(record.job, client)
    try:
        lag = lag_of(home, record)
        published = home.transactions.is_published(record) if closely else None
    finally:
        home.transactions.close()
    return JobLook(
        record=record,
        driver=standing.driver,
        holder=standing.holder,
        staged=standing.staged,
        published=published,
        lag=None if lag is None else sum(queue.messages for queue in lag.values()),
        behind=None if lag is None else longest(lag.values()),
        operators=operator_statistics(record, lag),
        stores=snapshot(record.states),
    )


def snapshot(states: list[StateSummary]) -> dict[str, StoreSnapshot]:
    """Sum up the partitions of each store.

    Examples
    --------
    >>> from headrace.protocol.transactions import StateSummary
    >>> parts = [
    ...     StateSummary(store="words", partition=i, count=10 + i, checksum=0, epoch=1, batch=7,
    ...                  attempt=0, end_offset=20, size=300)
    ...     for i in range(2)
    ... ]
    >>> snapshot(parts)
    {'words': StoreSnapshot(partitions=2, entries=21, size=600, largest=11, batch=7)}
    """
    parts: dict[str, list[StateSummary]] = defaultdict(list)
    for state in states:
        parts[state.store].append(state)
    return {
        store: StoreSnapshot(
            partitions=len(own),
            entries=sum(state.count for state in own),
            size=sum(state.size for state in own),
            largest=max(state.count for state in own),
            batch=max(state.batch for state in own),
        )
        for store, own in sorted(parts.items())
    }


#: The embedded broker keeps the driver's name beside the record.
_DRIVER = "HEADRACE_DRIVER"
#: Offsets in front of those that are asked for, whose records are read to judge others by.
_BEFORE = 200
#: How much further back to look, where too little was found.
_FURTHER = 4


# What a job did: the records of its commit topic, as far as the topic still has them.


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One record of a commit topic."""

    offset: int
    #: ``open``, ``commit`` or ``close``.
    kind: str
    epoch: int
    #: The batch that it commits, or the last one before it.
    batch: int
    #: Who opened the epoch; empty where that was not kept.
    driver: str
    #: When it was stored.
    at: datetime
    #: Whether it counts, was sent a second time, or came too late.
    verdict: Verdict
    #: Batches that it stands for: those that compaction has taken out are among them.
    batches: int = 0
    #: Records read and written in these batches; None where what was before is not known.
    records_in: int | None = None
    records_out: int | None = None


def history(
    client: Client, job: str, *, last: int | None = None, since: datetime | None = None
) -> Iterator[HistoryEntry]:
    """Return what a job did, oldest first.

    What it costs depends on what it gives: older records are not read, but for some that tell
    whether the first ones count, and none are kept in memory but the newest ``last``.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Its name.
    last
        So many records at most, the newest; None: all.
    since
        Only what was stored at this time or later.

    Raises
    ------
    StateError
        The cluster has no such job.
    """
    consumer = PullConsumer(client)
    try:
        queue = min(client.queues(commit_topic(job)))
    except TopicNotFoundError:
        raise unknown_job(client, job) from None
    log = _Log(consumer, queue, judged=commits_units(client, job))
    begin = log.begin if since is None else max(log.begin, consumer.offset_for_time(queue, since))
    if last is None:
        return log.read(begin, since)
    asked = last
    while True:
        first = max(begin, log.end - asked)
        newest = deque(log.read(first, since), maxlen=last)
        if len(newest) == last or first == begin:
            return iter(newest)
        # Compaction has taken records out.
        asked *= _FURTHER


class _Log:
    """The commit topic of a job, as far as it went when it was asked."""

    def __init__(self, consumer: PullConsumer, queue: MessageQueue, *, judged: bool) -> None:
        self._consumer = consumer
        self._queue = queue
        self._judged = judged
        self.begin, self.end = consumer.begin_offset(queue), consumer.end_offset(queue)

    def read(self, first: int, since: datetime | None) -> Iterator[HistoryEntry]:
        for entry in told(self._messages(max(self.begin, first - _BEFORE)), judged=self._judged):
            # Brokers find a time to the second, or only where they keep the original log.
            if entry.offset >= first and (since is None or entry.at >= since):
                yield entry

    def _messages(self, begin: int) -> Iterator[StoredMessage]:
        for result in self._consumer.blocks(self._queue, begin, self.end):
            yield from result.messages()


def told(messages: Iterable[StoredMessage], *, judged: bool) -> Iterator[HistoryEntry]:
    """Yield what the messages of a commit topic say.

    Parameters
    ----------
    messages
        In the order of the topic.
    judged
        The broker has let in only what counts.
    """
    log = CommitReader()
    before: CommitRecord | None = None
    for message in messages:
        record = commit_in(message)
        if record is None:
            log.skip(message.queue_offset)
            continue
        verdict = log.feed(message.queue_offset, record)
        if judged:
            verdict = Verdict.VALID
        counts = verdict is Verdict.VALID
        commits = counts and record.kind == "commit" and before is not None
        entry = HistoryEntry(
            offset=message.queue_offset,
            kind=record.kind,
            epoch=record.epoch,
            batch=record.batch,
            driver=record.driver or message.properties.get(_DRIVER, ""),
            at=datetime.fromtimestamp(message.stored / 1000, UTC),
            verdict=verdict,
        )
        if commits and before is not None:
            entry = _since(entry, record, before)
        yield entry
        if counts:
            before = record


def _since(entry: HistoryEntry, record: CommitRecord, before: CommitRecord) -> HistoryEntry:
    def more(name: str) -> int | None:
        change = record.counters.get(name, 0) - before.counters.get(name, 0)
        # A reset begins to count anew.
        return None if change < 0 else change

    return replace(
        entry,
        batches=record.batch - before.batch,
        records_in=more("records_in"),
        records_out=more("records_out"),
    )
