"""The commit: how a batch becomes visible, as the engine sees it.

One small interface, :class:`BatchTransactions`, stands in front of every kind of cluster: *open* an
epoch, *stage* what tasks produce, *commit* a batch, *publish* it.  What is behind it, a request
to the embedded broker or messages on a stock RocketMQ, the engine does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.client import Client, Jobs, MessageQueue, Producer, StageTarget
from headrace.errors import JobFailedError
from headrace.failpoints import failpoint
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import (
    WHOLE,
    CommitAnswer,
    CommitRecord,
    CommitRequest,
    OpenAnswer,
    OpenRequest,
    PlanAnswer,
    PlanRequest,
    QueueName,
    Share,
    StagedPart,
    StagedSection,
    encode_sections,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.protocol.frames import Buffer
    from headrace.runtime.chunk import Int64s
    from headrace.runtime.commit.drivers import LeaseWait


# Sending at once what need not wait for the commit.


def sender(client: Client) -> Callable[[QueueMessages], int]:
    """Make a function that sends messages at once and returns their queue's next offset."""
    producer = Producer(client)

    def send(messages: QueueMessages) -> int:
        queue = MessageQueue.parse(messages.queue)
        *_, last = producer.send_columns(
            queue, messages.bodies, properties=messages.properties, born=int(messages.times[-1])
        )
        return last.offset + last.count

    return send


@dataclass(frozen=True, slots=True)
class QueueMessages:
    """Messages for one queue, in columns."""

    queue: QueueName
    bodies: pa.BinaryArray
    #: As the wire has them, ``name \\x01 value \\x02`` repeated.
    properties: pa.BinaryArray
    #: Born times, ms since 1970.
    times: Int64s
    #: State changes: they follow the commit, whatever the guarantee for output is.
    is_state: bool = False

    def __len__(self) -> int:
        return len(self.bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Names one attempt of one task of one batch; nothing else ever has the same name."""

    job: str
    epoch: int
    batch: int
    stage: int
    partition: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """What the driver commits: the record, what it builds on, and the attempts that count."""

    previous: int
    parts: list[StagedPart]
    record: CommitRecord


class Ownership:
    """Lets one call at a time change where a job stands, and each new owner break off the last one.

    Spark may call a batch's function on after its query has ended.  So a call that opens an epoch,
    or closes the last one, first has whatever still commits or publishes end at its next step, and
    waits for that end: two calls never publish beside each other.

    Parameters
    ----------
    job
        Name of the job, for errors.

    Examples
    --------
    >>> owner = Ownership("words")
    >>> with owner.taken_over():
    ...     epoch = owner.epoch = 1
    >>> with owner.used_by(1):
    ...     owner.check()
    >>> with owner.used_by(0):
    ...     pass
    Traceback (most recent call last):
    headrace.errors.JobFailedError: job 'words' has begun anew: what epoch 0 still does is void
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._turn = threading.Lock()
        self._waiting = 0
        #: The epoch whose calls may change something; 0: none may.
        self.epoch = 0
        self._closed = False

    @contextmanager
    def used_by(self, epoch: int) -> Iterator[None]:
        """Commit or publish for an epoch.

        Raises
        ------
        JobFailedError
            Another epoch was opened since, or the object was closed.
        """
        with self._turn:
            if epoch != self.epoch or self._closed:
                raise self._void(epoch)
            yield

    @contextmanager
    def taken_over(self, *, closes: bool = False) -> Iterator[None]:
        """Open an epoch, or end the last one; the next call that changes anything must open."""
        self._waiting += 1
        try:
            self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            self._closed = closes
            yield
        finally:
            self._turn.release()

    def check(self) -> None:
        """Make sure that nobody waits to take over; asked before each step that others see.

        Raises
        ------
        JobFailedError
            Somebody does.
        """
        if self._waiting:
            raise self._void(self.epoch)

    def _void(self, epoch: int) -> JobFailedError:
        what = "was closed" if self._closed else "has begun anew"
        return JobFailedError(f"job '{self._job}' {what}: what epoch {epoch} still does is void")


class StageWriter(Protocol):
    """Takes what one attempt produces; nothing of it is visible before the commit."""

    def stage(self, messages: QueueMessages) -> int | None:
        """Stage messages of one queue, and return its next offset where that is known already.

        Raises
        ------
        FencedError
            A newer driver has taken over.
        """

    def finish(self) -> StagedPart:
        """Stage the rest, and return what was staged."""


class BatchTransactions(Protocol):
    """Open, stage, commit, publish: one batch of a job is one transaction."""

    def open(self, driver: str) -> OpenAnswer:
        """Begin a new epoch on top of the last commit; every older epoch is void from here on.

        A call of this object that still runs for an older one is broken off and waited for.
        """

    def plan(
        self, topics: list[str], offsets: Mapping[str, int], limit: int, wait: int
    ) -> PlanAnswer:
        """Return where the job stands and how far the next batch may read.

        ``limit`` is in messages, ``wait`` in ms.
        """

    def writer(self, attempt: Attempt) -> StageWriter:
        """Begin to stage what an attempt produces."""

    def commit(self, end: BatchEnd) -> CommitAnswer:
        """Make a batch valid; asked again for a committed batch, the answer says so.

        Raises
        ------
        FencedError
            A newer driver has taken over.
        PredecessorMismatchError
            The batch does not build on the last committed one.
        InputMissingError
            A queue does not reach to where the batch has read it.
        """

    def publish(self, record: CommitRecord) -> None:
        """Bring a committed batch to its topics; repeating it is harmless.

        Raises
        ------
        JobFailedError
            The record's epoch is not the one that this object has opened last.
        """

    def is_published(self, record: CommitRecord) -> bool:
        """Return whether all topics show all of a committed batch."""

    def shows_state(self, record: CommitRecord) -> bool:
        """Return whether the state topics show all of a committed batch."""

    @property
    def waiting(self) -> LeaseWait | None:
        """What :meth:`open` waits for on another thread; None: it does not wait."""

    def give_up(self) -> None:
        """End a wait of :meth:`open` on another thread, which raises then; nothing opens after."""

    def close(self) -> None:
        """End the epoch in order: until another one is opened, nothing commits or publishes."""


# Transactions on an embedded broker: each step is one request.

_CHUNK_BYTES = 4 << 20
#: Most bytes of messages that a plan brings along, and of parts that a commit carries; and of one.
_CARRIED, _CARRIED_OF_A_PART = 256 << 10, 64 << 10

Send = Callable[[QueueMessages], int]


class BrokerTransactions:
    """Open, stage, commit, publish by the embedded broker's own requests.

    Parameters
    ----------
    jobs
        Connection to the broker that owns the commit topic.
    job
        Name of the job; also its consumer group.
    commit_topic
        Topic of its commit records.
    max_bytes
        Most bytes of messages that a batch with a limit reads; 0 is no limit.
    share
        Which queues of its topics the job reads.
    send
        Sends output at once instead of staging it (at least once); state is staged all the same.
    parts
        How many parts a batch has, if plans and commits are to carry what is little, so that a
        small batch has two requests; 0: they carry nothing.
    """

    def __init__(
        self,
        jobs: Jobs,
        job: str,
        commit_topic: str,
        send: Send | None = None,
        *,
        max_bytes: int = 0,
        share: Share = WHOLE,
        parts: int = 0,
    ) -> None:
        self._jobs = jobs
        self._job = job
        self._commit_topic = commit_topic
        self._send = send
        self._max_bytes = max_bytes
        self._share = share
        self._carried = _CARRIED if parts else 0
        self._carried_of_a_part = min(_CARRIED_OF_A_PART, self._carried // max(1, parts))
        self._owner = Ownership(job)

    def open(self, driver: str) -> OpenAnswer:
        """Begin a new epoch; not the first one only if nobody else has opened one since."""
        with self._owner.taken_over():
            answer = self._jobs.open(
                OpenRequest(
                    job=self._job,
                    commit_topic=self._commit_topic,
                    driver=driver,
                    after=self._owner.epoch,
                )
            )
            self._owner.epoch = answer.epoch
        return answer

    def plan(
        self, topics: list[str], offsets: Mapping[str, int], limit: int, wait: int
    ) -> PlanAnswer:
        """Ask the broker for one cut through all queues."""
        return self._jobs.plan(
            PlanRequest(
                job=self._job,
                commit_topic=self._commit_topic,
                topics=topics,
                offsets=dict(offsets),
                limit=limit,
                # Whoever asks without a limit asks how much there is.
                max_bytes=self._max_bytes if limit else 0,
                messages=self._carried if limit else 0,
                wait=wait,
                share=self._share,
            )
        )

    def writer(self, attempt: Attempt) -> StageWriter:
        """Stage by requests of some megabytes, or by the commit."""
        return _BrokerStageWriter(self._jobs, attempt, self._send, self._carried_of_a_part)

    def commit(self, end: BatchEnd) -> CommitAnswer:
        """Commit by one request; the client repeats it until it is answered."""
        with self._owner.used_by(end.record.epoch):
            return self._jobs.commit(
                CommitRequest(
                    commit_topic=self._commit_topic,
                    group=self._job,
                    previous=end.previous,
                    parts=end.parts,
                    record=end.record,
                )
            )

    def publish(self, record: CommitRecord) -> None:
        """Do nothing: the broker published the batch when it committed it."""

    def is_published(self, record: CommitRecord) -> bool:
        """Return True: a commit publishes."""
        del record
        return True

    shows_state = is_published

    @property
    def waiting(self) -> None:
        """None: the broker lets the newest driver in at once."""

    def give_up(self) -> None:
        """Do nothing: nobody waits here."""

    def close(self) -> None:
        """Refuse what comes before the next open; the broker tells drivers apart by epochs."""
        with self._owner.taken_over(closes=True):
            pass


class _BrokerStageWriter:
    def __init__(self, jobs: Jobs, attempt: Attempt, send: Send | None, most_carried: int) -> None:
        self._jobs = jobs
        self._attempt = attempt
        self._target = StageTarget(
            attempt.job,
            attempt.epoch,
            attempt.batch,
            attempt.stage,
            attempt.partition,
            attempt.number,
        )
        self._send = send
        self._most_carried = most_carried
        self._sections: list[StagedSection] = []
        self._bytes = 0
        self._chunks = 0
        self._records = 0

    def stage(self, messages: QueueMessages) -> int | None:
        if self._send is not None and not messages.is_state:
            return self._send(messages)
        queue = MessageQueue.parse(messages.queue)
        records = encode_records(
            queue.topic, queue.queue_id, messages.bodies, messages.properties, messages.times
        )
        for section in _pieces(queue, records.data, records.starts, len(messages)):
            self._sections.append(section)
            self._bytes += len(section.records)
            self._records += section.count
            if self._bytes >= _CHUNK_BYTES:
                self._flush()
        return None

    def finish(self) -> StagedPart:
        carried = b""
        if self._sections and not self._chunks and self._bytes <= self._most_carried:
            carried = encode_sections(self._sections)
        else:
            self._flush()
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=self._chunks,
            records=self._records,
            sections=carried,
        )

    def _flush(self) -> None:
        if not self._sections:
            return
        failpoint("stage.before_chunk")
        self._jobs.stage(self._target, self._chunks, encode_sections(self._sections))
        failpoint("stage.chunk")
        self._chunks += 1
        self._sections, self._bytes = [], 0


def _pieces(
    queue: MessageQueue, data: Buffer, starts: Int64s, count: int
) -> Iterator[StagedSection]:
    """Cut a run of records so that every piece fits a request."""
    view = memoryview(data)
    begin = 0
    while begin < count:
        limit = int(starts[begin]) + _CHUNK_BYTES
        end = max(begin + 1, int(np.searchsorted(starts, limit)))
        stop = int(starts[end]) if end < count else len(view)
        piece = view[int(starts[begin]) : stop]
        yield StagedSection(queue.topic, queue.queue_id, end - begin, piece)
        begin = end
