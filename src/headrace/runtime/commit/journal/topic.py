"""The commit topic on RocketMQ: records appended, and read back by the rule of the log."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.errors import (
    HeadraceError,
    OffsetExpiredError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from headrace.protocol.commit_log import CommitLog, Verdict, record_key
from headrace.protocol.messages import Message
from headrace.protocol.transactions import CommitRecord, check_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CommitTopic", "await_shown"]

logger = logging.getLogger(__name__)

#: How long a stored record may take until readers see it: brokers index what they have stored.
_SHOWN, _SHOWN_POLL = timedelta(seconds=30), 0.002
#: So many records are looked at for one that is known to count.
_NEWEST = 4
#: How long an append whose answer was lost may still be on its way, in seconds.
_UNDER_WAY = 1.0


class CommitTopic:
    """The commit topic of one job.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads the topic.
    topic
        Its name.
    """

    def __init__(self, client: Client, consumer: PullConsumer, topic: str) -> None:
        self.log = CommitLog()
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._topic = topic
        self._reading = threading.Lock()
        #: Appends of this driver that were not answered.
        self._doubts = 0

    @cached_property
    def queue(self) -> MessageQueue:
        """Its one queue; where each of several brokers has one, the one that holds records."""
        queues = sorted(self._client.queues(self._topic))
        if not queues:
            raise TopicNotFoundError(f"the broker that holds {self._topic} is away")
        ends = self._consumer.end_offsets(queues)
        return next((queue for queue in queues if ends[queue]), queues[0])

    def refresh(self) -> CommitLog:
        """Read what was appended since the last look."""
        with self._reading:
            queue = self.queue
            end = self._consumer.end_offset(queue)
            start = self.log.next_offset or self._consumer.begin_offset(queue)
            if end > start:
                if not self.log.next_offset:
                    start = self._newest_known(queue, start, end)
                self._feed(queue, start, end)
            elif start and not self.log.next_offset:
                raise _forgotten(self._topic, start)
        return self.log

    def _newest_known(self, queue: MessageQueue, first: int, end: int) -> int:
        """Find a record that counts, near the end; the first one where compaction took it out.

        Each record names one; those of a driver that is late name older ones.
        """
        newest = self._records(queue, max(first, end - _NEWEST), end)
        start = max((record.stands_on for _, record in newest), default=0) - 1
        if start <= first:
            return first
        with suppress(OffsetExpiredError):
            if any(offset == start for offset, _ in self._records(queue, start, start + 1)):
                return start
        return first

    def _records(
        self, queue: MessageQueue, start: int, end: int
    ) -> Iterator[tuple[int, CommitRecord]]:
        for result in self._consumer.blocks(queue, start, end):
            for message in result.messages():
                if message.queue_offset < end:
                    record = msgspec.json.decode(message.body, type=CommitRecord)
                    yield message.queue_offset, record

    def _feed(self, queue: MessageQueue, start: int, end: int) -> None:
        for offset, record in self._records(queue, start, end):
            if self.log.feed(offset, record) is Verdict.VOID:
                logger.info("void record of %s: %s", self._topic, _named(record))

    def append(self, record: CommitRecord) -> None:
        """Append a record, wait until readers see it, and read up to it.

        After a lost answer the topic is read, and the record appended again, under another key,
        unless it is there or can no longer count.
        """
        patience = self._client.settings.retry_timeout.total_seconds()
        deadline = time.monotonic() + patience
        while True:
            try:
                self._append_once(record)
            except HeadraceError as error:
                self._doubts += 1
                if not error.retriable or time.monotonic() > deadline:
                    raise
                logger.warning("appending to %s goes on after: %s", self._topic, error)
                time.sleep(_UNDER_WAY)
            else:
                return
            if self._is_settled(record):
                return

    def again(self) -> None:
        """Count an append that came too late: the next one needs a key of its own."""
        self._doubts += 1

    def _append_once(self, record: CommitRecord) -> None:
        key = record_key(record, self._doubts)
        record = msgspec.structs.replace(record, stands_on=self.log.stands_on)
        body = msgspec.json.encode(record)
        if record.kind == "commit":
            check_commit(record, len(body), self._client.settings.max_message_size)
        message = Message(topic=self._topic, body=body, keys=key)
        sent = self._producer.send(message, self.queue, once=True)
        await_shown(self._consumer, {sent.queue: sent.offset + 1})
        self.refresh()

    def _is_settled(self, record: CommitRecord) -> bool:
        """Tell whether a record counts, or never will."""
        log = self.refresh()
        if log.epoch != record.epoch:
            return log.epoch > record.epoch
        if log.driver != record.driver or record.kind == "open":
            return True
        return log.closed if record.kind == "close" else log.batch >= record.batch


def await_shown(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> None:
    """Wait until queues show what is stored in them.

    Raises
    ------
    RequestTimeoutError
        They did not, for half a minute.
    """
    deadline = time.monotonic() + _SHOWN.total_seconds()
    while hidden := [q for q, end in consumer.end_offsets(list(ends)).items() if end < ends[q]]:
        if time.monotonic() > deadline:
            raise RequestTimeoutError(
                f"message {ends[hidden[0]] - 1} of {hidden[0]} is stored, but not shown after"
                f" {_SHOWN.total_seconds():g} s",
                hint="look at the broker's log: its consume queues are far behind",
            )
        time.sleep(_SHOWN_POLL)


def _forgotten(topic: str, end: int) -> OffsetExpiredError:
    return OffsetExpiredError(
        f"the {end} records of commit topic '{topic}' are gone: its broker has deleted them, and"
        " nothing says any more what the job has done",
        hint="restore the topic from a replica, or start the job under a new name; commit topics"
        " must be compaction topics (headrace topic create NAME --compaction), from which"
        " retention takes nothing",
    )


def _named(record: CommitRecord) -> str:
    return f"{record.kind} of epoch {record.epoch}, batch {record.batch}, by {record.driver}"
