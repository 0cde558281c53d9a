"""Transactions on an embedded broker: each step is one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import Jobs, MessageQueue, StageTarget
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
    Share,
    StagedPart,
    StagedSection,
    encode_sections,
)
from headrace.runtime.commit.transactions import (
    Attempt,
    BatchEnd,
    Ownership,
    QueueMessages,
    StageWriter,
)

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer
    from headrace.runtime.chunk import Int64s


_CHUNK_BYTES = 4 << 20

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
    ) -> None:
        self._jobs = jobs
        self._job = job
        self._commit_topic = commit_topic
        self._send = send
        self._max_bytes = max_bytes
        self._share = share
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
        """Ask for one cut through all queues."""
        return self._jobs.plan(
            PlanRequest(
                job=self._job,
                commit_topic=self._commit_topic,
                topics=topics,
                offsets=dict(offsets),
                limit=limit,
                # Whoever asks without a limit asks how much there is.
                max_bytes=self._max_bytes if limit else 0,
                wait=wait,
                share=self._share,
            )
        )

    def writer(self, attempt: Attempt) -> StageWriter:
        """Stage by requests of some megabytes."""
        return _BrokerStageWriter(self._jobs, attempt, self._send)

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
        """Say yes: a commit publishes."""
        del record
        return True

    shows_state = is_published

    @property
    def waiting(self) -> None:
        """Nothing: the broker lets the newest driver in at once."""

    def give_up(self) -> None:
        """Do nothing: nobody waits here."""

    def close(self) -> None:
        """Refuse what comes before the next open; the broker tells drivers apart by epochs."""
        with self._owner.taken_over(closes=True):
            pass


class _BrokerStageWriter:
    def __init__(self, jobs: Jobs, attempt: Attempt, send: Send | None) -> None:
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
        self._flush()
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=self._chunks,
            records=self._records,
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
