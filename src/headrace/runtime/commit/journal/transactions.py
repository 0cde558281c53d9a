"""Transactions on a stock RocketMQ, which has none over several messages.

What a batch makes waits in the journal topic; one commit record names it; then one publisher, the
driver, copies it to its topics.  The order of the commit topic decides what is committed, tags
tell what is published, and a lease keeps two publishers apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.client import Client, MessageQueue, Producer, PullConsumer, PullStatus
from headrace.errors import FencedError, HeadraceError, InputMissingError, PredecessorMismatchError
from headrace.failpoints import failpoint
from headrace.protocol.layout import Int64s, record_starts
from headrace.protocol.messages import Message
from headrace.protocol.transactions import (
    WHOLE,
    CommitAnswer,
    CommitReader,
    CommitRecord,
    OpenAnswer,
    PlanAnswer,
    QueueName,
    Share,
    StagedPart,
)
from headrace.runtime.commit.drivers import DriverName, LeaseWait
from headrace.runtime.commit.journal.lease import DriverLease, LeaseTimes
from headrace.runtime.commit.journal.publishing import Publisher, counted_once
from headrace.runtime.commit.journal.topic import (
    CommitTopic,
    clock_ms,
    encode_chunk,
    pieces,
    size_of,
)
from headrace.runtime.commit.transactions import (
    Attempt,
    BatchEnd,
    Ownership,
    QueueMessages,
    StageWriter,
)
from headrace.topology.names import commit_topic, journal_topic, state_topic

# Planning on RocketMQ: how far each queue has come, and how much of it a batch takes.

logger = logging.getLogger(__name__)

_POLL = 0.02
#: A stock broker returns so many messages at once, and so many bytes of them.
_SAMPLE, _SAMPLE_BYTES = 32, 256 << 10
#: What a driver looks up for each record that it commits.
_LOOKED_UP = ("driver", "lock_keeper", "published", "stands_on", "swept")
#: Places that are looked at, of a range that is longer.
_PLACES = 4


@dataclass(frozen=True, slots=True)
class Ranges:
    """What queues hold, and where the next batch ends, by queue."""

    begins: dict[QueueName, int]
    ends: dict[QueueName, int]
    latest: dict[QueueName, int]


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """How large the messages of a range are, about: brokers of RocketMQ do not tell.

    Examples
    --------
    >>> sizes = SizeEstimate(10, np.array([100, 300]), 50.0)
    >>> sizes.total
    800.0
    >>> sizes.within(90), sizes.within(400), sizes.within(500), sizes.within(10_000)
    (1, 2, 4, 10)
    """

    #: Messages of the range.
    count: int
    #: Sizes of the first ones, as they are.
    head: Int64s
    #: Mean size of those behind, by samples.
    mean: float

    @property
    def total(self) -> float:
        """Bytes of the whole range."""
        return float(self.head.sum()) + (self.count - len(self.head)) * self.mean

    def within(self, limit: float) -> int:
        """Count the messages that have so many bytes together; one is always taken."""
        known = int(np.searchsorted(np.cumsum(self.head), limit, side="right"))
        if known < len(self.head):
            return max(1, known)
        rest = (limit - float(self.head.sum())) / self.mean if self.mean else self.count
        return max(1, min(self.count, known + int(rest)))


def read_ranges(
    client: Client,
    consumer: PullConsumer,
    topics: list[str],
    offsets: Mapping[QueueName, int],
    limit: int,
    wait: int,
    max_bytes: int = 0,
    share: Share = WHOLE,
) -> Ranges:
    """Read how far every queue has come, each for itself; wait for news at most ``wait`` ms.

    Parameters
    ----------
    limit, max_bytes
        Most messages of the batch, and about the most bytes of them; 0 is no limit.
    share
        Which queues to look at.
    """
    deadline = time.monotonic() + wait / 1000
    of_topics = [queue for topic in topics for queue in client.queues(topic)]
    queues = [queue for queue in of_topics if share.owns(queue.name)]
    while True:
        latest = {q.name: end for q, end in consumer.end_offsets(queues).items()}
        unread = any(end > offsets.get(name, 0) for name, end in latest.items())
        if unread or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    latest = _of_masters(client, latest, offsets)
    asked = [queue for queue in queues if queue.name in latest]
    begins = {q.name: begin for q, begin in consumer.begin_offsets(asked).items()}
    starts = {**begins, **offsets}
    ends = _limited(starts, latest, limit)
    if max_bytes:
        sizes = {
            name: _estimate(consumer, name, starts[name], end)
            for name, end in ends.items()
            if end > starts[name]
        }
        ends |= {
            name: starts[name] + count for name, count in cut_to_bytes(sizes, max_bytes).items()
        }
    return Ranges(begins, ends, latest)


def _of_masters(
    client: Client, latest: dict[QueueName, int], offsets: Mapping[QueueName, int]
) -> dict[QueueName, int]:
    """Leave out queues that seem to end before what was read of them, but cannot be written to.

    A follower that stands in for its master answers for them, and may lag behind it.  A master
    that answers has recovered: what it does not show it has lost.
    """
    short = {name for name, end in latest.items() if end < offsets.get(name, 0)}
    topics = {MessageQueue.parse(name).topic for name in short}
    writable = {
        queue.name
        for topic in topics
        for queue in client.route(topic, refresh=True).writable_queues(topic)
    }
    waits = short - writable
    if waits:
        logger.info("nothing is read of %s until it can be written to", ", ".join(sorted(waits)))
    return {name: end for name, end in latest.items() if name not in waits}


def cut_to_bytes(sizes: Mapping[QueueName, SizeEstimate], max_bytes: int) -> dict[QueueName, int]:
    """Return the messages to take of each queue, in proportion to what it holds.

    >>> few, many = SizeEstimate(2, np.array([10, 10]), 0.0), SizeEstimate(98, np.array([]), 10.0)
    >>> cut_to_bytes({"a@b@0": few, "a@b@1": many}, 500)
    {'a@b@0': 1, 'a@b@1': 49}
    >>> cut_to_bytes({"a@b@0": few, "a@b@1": many}, 1000)
    {'a@b@0': 2, 'a@b@1': 98}
    """
    total = sum(each.total for each in sizes.values())
    if total <= max_bytes:
        return {name: each.count for name, each in sizes.items()}
    return {name: each.within(max_bytes * each.total / total) for name, each in sizes.items()}


def _estimate(consumer: PullConsumer, name: QueueName, begin: int, end: int) -> SizeEstimate:
    count = end - begin
    head = _sizes(consumer, name, begin)
    if len(head) < min(_SAMPLE, count) and _is_cut_off(head):
        # The next one did not fit, so it is far larger than these.
        head = np.concatenate([head, _sizes(consumer, name, begin + len(head))])
    head = head[:count]
    places = range(1, _PLACES) if count > len(head) else ()
    others = [_sizes(consumer, name, begin + count * place // _PLACES) for place in places]
    means = [sizes.mean() for sizes in (head, *others) if len(sizes)]
    return SizeEstimate(count, head, float(np.mean(means)) if means else 0.0)


def _is_cut_off(head: Int64s) -> bool:
    """Return whether a sample ended although another message like these would have fitted."""
    return len(head) > 0 and head.sum() + 2 * head.mean() < _SAMPLE_BYTES


def _sizes(consumer: PullConsumer, name: QueueName, offset: int) -> Int64s:
    """Return the sizes of some messages from an offset on."""
    queue = MessageQueue.parse(name)
    result = consumer.pull(queue, offset, max_messages=_SAMPLE, max_bytes=_SAMPLE_BYTES)
    if result.status is not PullStatus.FOUND:
        return np.zeros(0, np.int64)
    return np.diff(np.append(record_starts(result.block), len(result.block))).astype(np.int64)


def _limited(
    begins: Mapping[QueueName, int], latest: dict[QueueName, int], limit: int
) -> dict[QueueName, int]:
    """Cut a batch to a number of messages, in proportion to what each queue holds.

    >>> _limited({"a@b@0": 0, "a@b@1": 10}, {"a@b@0": 30, "a@b@1": 20}, 20)
    {'a@b@0': 15, 'a@b@1': 15}
    """
    waiting = {name: end - begins.get(name, 0) for name, end in latest.items()}
    total = sum(waiting.values())
    if not limit or total <= limit:
        return dict(latest)
    return {
        name: begins.get(name, 0) + max(min(1, count), count * limit // total)
        for name, count in waiting.items()
    }


# Staging on RocketMQ: what an attempt makes waits in the journal topic for its commit.

#: A stock broker takes messages of 4 MiB; small ones keep the publisher's memory small.
_CHUNK_BYTES = 1 << 20

Send = Callable[["QueueMessages"], int]
"""Function that sends messages at once and returns the next offset of their queue."""


class JournalWriter:
    """Takes what one attempt makes, and appends it to the journal, chunk by chunk.

    A chunk that arrives twice does no harm: the commit names the places of those that count.

    Parameters
    ----------
    attempt
        Names the attempt.
    queue
        The queue of the journal that its partition writes.
    producer
        Sends to the journal.
    send
        Sends output at once instead of staging it (at least once); state is staged all the same.
    """

    def __init__(
        self, attempt: Attempt, queue: MessageQueue, producer: Producer, send: Send | None
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._producer = producer
        self._send = send
        self._waiting: list[QueueMessages] = []
        self._bytes = 0
        self._places: list[int] = []
        self._counts: Counter[str] = Counter()

    def stage(self, messages: QueueMessages) -> int | None:
        """Stage messages of one queue."""
        if self._send is not None and not messages.is_state:
            return self._send(messages)
        self._counts[messages.queue] += len(messages)
        for piece in pieces(messages, _CHUNK_BYTES):
            size = size_of(piece)
            if self._bytes + size > _CHUNK_BYTES:
                self._flush()
            self._waiting.append(piece)
            self._bytes += size
        return None

    def finish(self) -> StagedPart:
        """Stage the rest, and return what was staged, and where."""
        self._flush()
        failpoint("journal.staged")
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=len(self._places),
            records=self._counts.total(),
            journal=self._queue.name,
            places=self._places,
            counts=dict(self._counts),
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        body = encode_chunk(self._waiting)
        self._waiting, self._bytes = [], 0
        message = Message(topic=self._queue.topic, body=body, properties=self._properties())
        self._places.append(self._producer.send(message, self._queue).offset)

    def _properties(self) -> dict[str, str]:
        attempt = self._attempt
        return {
            "job": attempt.job,
            "epoch": str(attempt.epoch),
            "batch": str(attempt.batch),
            "stage": str(attempt.stage),
            "partition": str(attempt.partition),
            "attempt": str(attempt.number),
            "chunk": str(len(self._places)),
        }


class JournalTransactions:
    """Open, stage, commit, publish with ordinary messages.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads topics, and writes the group's offsets.
    job
        Name of the job.
    send
        Sends output at once instead of staging it (at least once); state is staged all the same.
    times
        How long the driver's lease lasts.
    max_bytes
        About the most bytes of messages that a batch with a limit reads; 0 is no limit.
    share
        Which queues of its topics the job reads.
    sends_again
        Publish a batch where a target queue no longer tells whether it was there.
    """

    def __init__(
        self,
        client: Client,
        consumer: PullConsumer,
        job: str,
        send: Send | None = None,
        times: LeaseTimes | None = None,
        *,
        max_bytes: int = 0,
        share: Share = WHOLE,
        sends_again: bool = False,
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._job = job
        self._send = send
        self._times = times or LeaseTimes()
        self._max_bytes = max_bytes
        self._share = share
        self._topic = CommitTopic(client, consumer, commit_topic(job))
        self._publisher = Publisher(
            client,
            consumer,
            job,
            journal_topic(job),
            self._check_lease,
            sends_again=sends_again,
        )
        self._lease: DriverLease | None = None
        self._driver = ""
        #: A batch, and the queues of the journal that it is staged in.
        self._journal: tuple[tuple[int, int], list[MessageQueue]] = ((0, 0), [])
        #: Our newest record; and whether something of its batch may be published, or all of it.
        self._last: CommitRecord | None = None
        self._doubtful = True
        self._published = -1
        #: The newest batch whose state was seen in its topics, whoever has published it.
        self._shown = -1
        self._given_up = threading.Event()
        self._owner = Ownership(job)

    def open(self, driver: str) -> OpenAnswer:
        """Begin a new epoch, once the driver before this one has surely stopped."""
        with self._owner.taken_over():
            record = self._open(driver)
            self._owner.epoch = record.epoch
        return OpenAnswer(epoch=record.epoch, record=record)

    def _open(self, driver: str) -> CommitRecord:
        if self._lease is None:
            self._driver = driver
            self._lease = DriverLease(self._client, self._job, driver, self._times)
        log = self._topic.refresh()
        self._check_not_replaced(log)
        self._lease.take(self._topic, self._check_not_replaced, self._given_up)
        self._lease.keep()
        if log.closed or log.record is None:
            # A driver that ends in order has published everything.
            self._published = log.batch
        self._last = self._append_open(log)
        self._publisher.begin(self._last)
        if self._published != self._last.batch:
            self._doubtful = True
            self._publish(self._last)
        self._publisher.mend(self._last)
        return self._last

    def plan(
        self, topics: list[str], offsets: Mapping[str, int], limit: int, wait: int
    ) -> PlanAnswer:
        """Read how far every queue has come."""
        # Whoever asks without a limit asks how much there is.
        most = self._max_bytes if limit else 0
        ranges = read_ranges(
            self._client, self._consumer, topics, offsets, limit, wait, most, self._share
        )
        return PlanAnswer(
            record=self._topic.refresh().record,
            begins=ranges.begins,
            ends=ranges.ends,
            latest=ranges.latest,
            position=0,
            clock=clock_ms(),
        )

    def writer(self, attempt: Attempt) -> StageWriter:
        """Stage in the journal, in the queue of the attempt's partition.

        Where the commit topic is: on other brokers the journal has a queue for marks only.
        """
        queues = self._journal_of(attempt)
        queue = queues[attempt.partition % len(queues)]
        return JournalWriter(attempt, queue, self._producer, self._send)

    def _journal_of(self, attempt: Attempt) -> list[MessageQueue]:
        """Return the queues of the journal that a batch is staged in, looked up once for each."""
        batch, queues = self._journal
        if batch != (attempt.epoch, attempt.batch):
            every = sorted(self._client.queues(journal_topic(self._job), for_="write"))
            home = self._topic.queue.broker
            queues = [queue for queue in every if queue.broker == home] or every
            self._journal = (attempt.epoch, attempt.batch), queues
        return queues

    def commit(self, end: BatchEnd) -> CommitAnswer:
        """Append the commit record, and read back whether it counts."""
        with self._owner.used_by(end.record.epoch):
            record = replace(end.record, parts=counted_once(end.parts))
            return self._commit(record, end.previous)

    def _commit(self, record: CommitRecord, previous: int) -> CommitAnswer:
        log = self._topic.refresh()
        self._check_epoch(log, record.epoch)
        if log.record is not None and record.repeats(log.record, _LOOKED_UP):
            return CommitAnswer(batch=log.batch, already=True, position=0)
        if log.batch != previous:
            raise PredecessorMismatchError(
                f"batch {record.batch} of job '{self._job}' builds on batch {previous}, but"
                f" batch {log.batch} is the last one"
            )
        self._check_input(record, log)
        self._check_lease()
        published = self._publisher.published(record)
        record = replace(record, published=published, **self._sender)
        failpoint("journal.commit.before")
        self._topic.append(record)
        failpoint("journal.commit.appended")
        self._check_epoch(log, record.epoch)
        self._last, self._doubtful = record, False
        return CommitAnswer(batch=record.batch, already=False, position=0)

    def publish(self, record: CommitRecord) -> None:
        """Bring a committed batch to its topics, then write the group's offsets."""
        with self._owner.used_by(record.epoch):
            self._publish_last(record)

    def _publish_last(self, record: CommitRecord) -> None:
        if self._last is not None and self._published < self._last.batch:
            self._publish(self._last)
            self._publisher.mend(self._last)
        self._check_lease()
        self._consumer.commit(
            {MessageQueue.parse(name): offset for name, offset in record.offsets.items()}
        )

    def is_published(self, record: CommitRecord) -> bool:
        """Return whether all topics show all of a committed batch."""
        return self._topic.log.closed or self._publisher.is_published(record)

    def shows_state(self, record: CommitRecord) -> bool:
        """Return whether the state topics show all of a committed batch."""
        if record.batch > self._shown:
            topics = {state_topic(self._job, state.store) for state in record.states}
            if not (self._topic.log.closed or self._publisher.is_published(record, topics)):
                return False
            self._shown = record.batch
        return True

    @property
    def waiting(self) -> LeaseWait | None:
        """What :meth:`open` waits for on another thread."""
        return None if self._lease is None else self._lease.waiting

    def give_up(self) -> None:
        """End a wait of :meth:`open` on another thread, which raises then; nothing opens after."""
        self._given_up.set()

    def close(self) -> None:
        """End the epoch in order, so that the next driver need not wait."""
        with self._owner.taken_over(closes=True):
            self._close()

    def _close(self) -> None:
        self._publisher.close()
        try:
            if self._last is not None:
                self._end_epoch(self._last)
            if self._lease is not None:
                self._lease.release()
        finally:
            # Also where the brokers are away: a successor on this machine need not wait either.
            if (name := DriverName.parse(self._driver)) is not None:
                name.end()
        self._lease = self._last = None

    def _end_epoch(self, last: CommitRecord) -> None:
        try:
            log = self._topic.refresh()
            if log.epoch == last.epoch and log.driver == self._driver:
                assert log.record is not None
                if self._published == log.batch and not log.closed:
                    self._topic.append(self._closing(log.record))
        except HeadraceError as error:
            logger.warning("the next driver of job %s has to wait: %s", self._job, error)

    def _append_open(self, log: CommitReader) -> CommitRecord:
        """Append an open record on top of the last commit that was read."""
        while True:
            last = log.record or CommitRecord(job=self._job, kind="commit", epoch=0, batch=0)
            epoch = last.epoch + 1
            logger.info("driver %s opens epoch %d of job %s", self._driver, epoch, self._job)
            self._topic.append(last.opened(epoch, clock_ms(), **self._sender))
            if log.epoch != last.epoch:
                break
            # A commit of the driver before this one came in between: this one builds on it.
            self._topic.again()
        if log.driver != self._driver or log.record is None:
            raise self._fenced(log, epoch)
        return log.record

    def _closing(self, record: CommitRecord) -> CommitRecord:
        """Make the record that ends the epoch; the next driver need not look at what this one has.

        Nothing is left to publish: whoever builds on it must not look for it behind these ends.
        """
        ends = record.published | self._publisher.published(record)
        return record.closed(clock_ms(), parts=[], published=ends)

    def _publish(self, record: CommitRecord) -> None:
        doubtful, self._doubtful = self._doubtful, True
        self._publisher.publish(record, doubtful=doubtful)
        self._published = record.batch

    def _check_not_replaced(self, log: CommitReader) -> None:
        """Make sure that nobody has opened an epoch after ours."""
        if self._last is not None and log.epoch > self._last.epoch:
            raise self._fenced(log, self._last.epoch)

    def _check_epoch(self, log: CommitReader, epoch: int) -> None:
        if (log.epoch, log.driver) != (epoch, self._driver):
            raise self._fenced(log, epoch)

    def _check_input(self, record: CommitRecord, log: CommitReader) -> None:
        """Refuse a batch whose messages a broker has lost since they were read."""
        before = {} if log.record is None else log.record.offsets
        moved = [queue for queue, at in record.offsets.items() if at != before.get(queue)]
        ends = self._consumer.end_offsets(map(MessageQueue.parse, moved))
        for queue, end in ends.items():
            offset = record.offsets[queue.name]
            if offset > end:
                batch = f"batch {record.batch} of job '{self._job}'"
                raise InputMissingError.beyond(batch, queue.name, offset, end)

    @property
    def _sender(self) -> dict[str, str]:
        keeper = "" if self._lease is None else self._lease.keeper
        return {"driver": self._driver, "lock_keeper": keeper}

    def _check_lease(self) -> None:
        self._owner.check()
        if self._lease is not None:
            self._lease.check()

    def _fenced(self, log: CommitReader, epoch: int) -> FencedError:
        return FencedError(
            f"job '{self._job}' was taken over: this driver has epoch {epoch}, epoch {log.epoch} is"
            f" open by {log.driver or 'another one'}",
            hint="only one driver of a job runs at a time; stop the other one if it should not run",
        )
