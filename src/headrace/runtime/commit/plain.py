"""Transactions on a stock RocketMQ: results are exact while nothing fails.

RocketMQ has no transaction over several messages.  Output and state go to their topics while a
batch runs, the commit record follows them: after a failure in between, a batch may be published
twice.  The protocol that closes this gap, by a journal topic, is not built yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.errors import FencedError, RequestTimeoutError
from headrace.protocol.messages import Message
from headrace.protocol.transactions import (
    CommitAnswer,
    CommitRecord,
    OpenAnswer,
    PlanAnswer,
    StagedPart,
)
from headrace.runtime.commit.transactions import Attempt, BatchEnd, QueueMessages, StageWriter
from headrace.topology.names import commit_topic

__all__ = ["PlainTransactions", "sender"]

logger = logging.getLogger(__name__)

Send = Callable[[QueueMessages], int]

_POLL = 0.02
#: How long a stored record may take until readers see it: brokers index what they have stored.
_SHOWN, _SHOWN_POLL = timedelta(seconds=30), 0.002
_TAIL = 64


def sender(client: Client) -> Send:
    """Make a function that sends messages at once and gives their queue's next offset."""
    producer = Producer(client)

    def send(messages: QueueMessages) -> int:
        queue = MessageQueue.parse(messages.queue)
        *_, last = producer.send_columns(
            queue, messages.bodies, properties=messages.properties, born=int(messages.times[-1])
        )
        return last.offset + last.count

    return send


class PlainTransactions:
    """Open, stage, commit, publish with ordinary messages.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads the commit topic, and writes the group's offsets.
    job
        Name of the job.
    send
        Sends messages at once.
    """

    def __init__(self, client: Client, consumer: PullConsumer, job: str, send: Send) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._admin = Admin(client)
        self._job = job
        self._commit_topic = commit_topic(job)
        self._send = send
        self._next = 0
        self._record: CommitRecord | None = None

    def open(self, driver: str) -> OpenAnswer:
        """Append an open record with the next epoch."""
        last = self._read_record()
        if last is None:
            last = CommitRecord(job=self._job, kind="commit", epoch=0, batch=0)
        record = msgspec.structs.replace(last, kind="open", epoch=last.epoch + 1, timestamp=_now())
        logger.info("driver %s opens epoch %d of job %s", driver, record.epoch, self._job)
        self._append(record)
        return OpenAnswer(epoch=record.epoch, record=record)

    def plan(
        self, topics: list[str], offsets: Mapping[str, int], limit: int, wait: int
    ) -> PlanAnswer:
        """Read how far every queue has come."""
        deadline = time.monotonic() + wait / 1000
        queues = [queue for topic in topics for queue in self._client.queues(topic)]
        while True:
            latest = {q.name: end for q, end in self._consumer.end_offsets(queues).items()}
            unread = any(end > offsets.get(name, 0) for name, end in latest.items())
            if unread or time.monotonic() >= deadline:
                break
            time.sleep(_POLL)
        begins = {q.name: begin for q, begin in self._consumer.begin_offsets(queues).items()}
        return PlanAnswer(
            record=self._read_record(),
            begins=begins,
            ends=_limited({**begins, **offsets}, latest, limit),
            latest=latest,
            position=0,
            clock=_now(),
        )

    def writer(self, attempt: Attempt) -> StageWriter:
        """Send at once."""
        return _DirectWriter(attempt, self._send)

    def commit(self, end: BatchEnd) -> CommitAnswer:
        """Append the commit record, unless a newer epoch has opened."""
        last = self._read_record()
        if last is not None and last.epoch > end.record.epoch:
            raise FencedError(
                f"job '{self._job}' was taken over by the driver with epoch {last.epoch}; this"
                f" one has epoch {end.record.epoch}",
                hint="only one driver of a job runs at a time",
            )
        if last is not None and last.kind == "commit" and last.batch >= end.record.batch:
            return CommitAnswer(batch=last.batch, already=True, position=0)
        self._append(end.record)
        return CommitAnswer(batch=end.record.batch, already=False, position=0)

    def publish(self, record: CommitRecord) -> None:
        """Write the group's offsets; the messages are in their topics already."""
        self._consumer.commit(
            {MessageQueue.parse(name): offset for name, offset in record.offsets.items()}
        )

    def _append(self, record: CommitRecord) -> None:
        """Append a record, and wait until whoever reads the commit topic sees it."""
        sent = self._producer.send(
            Message(
                topic=self._commit_topic,
                body=msgspec.json.encode(record),
                keys=f"{record.epoch}-{record.kind}",
            )
        )
        deadline = time.monotonic() + _SHOWN.total_seconds()
        while (end := self._consumer.end_offset(sent.queue)) <= sent.offset:
            if time.monotonic() > deadline:
                raise RequestTimeoutError(
                    f"record {sent.offset} of {sent.queue} is stored, but after"
                    f" {_SHOWN.total_seconds():g} s the queue still ends at {end}",
                    hint="look at the broker's log: its consume queues are far behind",
                )
            time.sleep(_SHOWN_POLL)
        self._record = record

    def _read_record(self) -> CommitRecord | None:
        """Read what was appended to the commit topic since the last look."""
        (queue,) = self._client.queues(self._commit_topic)
        end = self._consumer.end_offset(queue)
        start = max(self._next, end - _TAIL)
        if end > start:
            for result in self._consumer.blocks(queue, start, end):
                for message in result.messages():
                    record = msgspec.json.decode(message.body, type=CommitRecord)
                    if self._record is None or record.epoch >= self._record.epoch:
                        self._record = record
            self._next = end
        return self._record


class _DirectWriter:
    def __init__(self, attempt: Attempt, send: Send) -> None:
        self._attempt = attempt
        self._send = send
        self._records = 0

    def stage(self, messages: QueueMessages) -> int | None:
        self._records += len(messages)
        return self._send(messages)

    def finish(self) -> StagedPart:
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=0,
            records=self._records,
        )


def _limited(begins: Mapping[str, int], latest: dict[str, int], limit: int) -> dict[str, int]:
    """Cut a batch to a number of messages, in proportion to what each queue holds.

    >>> _limited({"a@b@0": 0, "a@b@1": 10}, {"a@b@0": 30, "a@b@1": 20}, 20)
    {'a@b@0': 15, 'a@b@1': 15}
    """
    waiting = {name: end - begins.get(name, 0) for name, end in latest.items()}
    total = sum(waiting.values())
    if not limit or total <= limit:
        return latest
    return {
        name: begins.get(name, 0) + max(min(1, count), count * limit // total)
        for name, count in waiting.items()
    }


def _now() -> int:
    return int(time.time() * 1000)
