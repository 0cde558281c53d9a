"""What a job did: the records of its commit topic, as far as the topic still has them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import TopicNotFoundError
from headrace.protocol.commit_log import CommitReader, Verdict
from headrace.protocol.transactions import commit_in
from headrace.runtime.jobs.journal import unknown_job
from headrace.runtime.standing import OperatorStatistics, lag_of, longest, operator_statistics
from headrace.runtime.state.home import StateHome, commits_units
from headrace.topology.names import commit_topic

if TYPE_CHECKING:
    from datetime import timedelta

    from headrace.client import Client, JobStanding
    from headrace.protocol.messages import StoredMessage
    from headrace.protocol.transactions import CommitRecord, StagedBatch, StateSummary


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
    """Look at a job: at the ends of the queues that it reads.

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
    """Give what a job did, oldest first.

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
    """Tell what the messages of a commit topic say.

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
