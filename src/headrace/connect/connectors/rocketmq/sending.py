"""Sends messages to another cluster, and finds what has arrived where that is in doubt."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import TypeVar

import pyarrow as pa

from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.connect import Queue, SinkRecord
from headrace.connect.connectors.rocketmq.messages import REPLICA
from headrace.errors import HeadraceError, MessageRejectedError, MessageTooLargeError

__all__ = ["Outgoing", "Sender", "mark_of"]

_THREADS = 8
#: How long a request whose answer was lost may still be on its way, in seconds.
_UNDER_WAY = 1.0
#: Pauses between two tries, in seconds: the first, the longest.
_PAUSE_FIRST, _PAUSE_MOST = 0.1, 5.0
#: A broker that refuses a batch does so again: one of its messages is bad.
_REFUSALS = (MessageRejectedError, MessageTooLargeError)

T = TypeVar("T")
Place = tuple[Queue, int]
"""A record of ours: its queue and offset here."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message on its way, and the record that it was made of."""

    record: SinkRecord
    body: bytes
    #: As the wire has them, with the mark.
    properties: bytes
    #: When it was made, in ms since 1970; ``None``: when it is sent.
    born: int | None

    @property
    def place(self) -> Place:
        """Where the record stands here."""
        return self.record.queue, self.record.offset


def mark_of(connector: str, record: SinkRecord) -> str:
    """Write the mark of a record.

    >>> record = SinkRecord(topic="t", queue=Queue("t", "b", 0), offset=7)
    >>> mark_of("to-berlin", record)
    'to-berlin:t@b@0:7'
    """
    topic, broker, number = record.queue
    return f"{connector}:{topic}@{broker}@{number}:{record.offset}"


def _place_of(connector: str, mark: str) -> Place | None:
    name, _, offset = mark.rpartition(":")
    if not name.startswith(f"{connector}:") or not offset.isdecimal():
        return None
    topic, _, rest = name.removeprefix(f"{connector}:").partition("@")
    broker, _, number = rest.rpartition("@")
    return Queue(topic, broker, int(number)), int(offset)


@dataclass(slots=True)
class Sender:
    """Sends the messages of one task.

    Before a batch is sent, where its queues end there is written as offsets of a group of the
    task's own.  Everything that a later life may meet of a batch that was not committed here
    stands behind that, and carries marks.

    Parameters
    ----------
    client
        Connection to the other cluster.
    connector, task
        Whose records they are.
    marks
        Whether messages carry marks; without, what is in doubt is sent again.
    stopping
        Set when nobody waits any more.
    patience
        How long a message is tried, in seconds.
    refused
        Takes what brokers never take, with the reason.
    warn
        Hears of failures that may pass.
    """

    client: Client
    connector: str
    task: int
    marks: bool
    stopping: Event
    patience: float
    refused: Callable[[SinkRecord, HeadraceError], None]
    warn: Callable[[str], None]
    _ends: dict[MessageQueue, int] = field(default_factory=dict)
    _prefix: str = field(init=False)
    _producer: Producer = field(init=False)
    _consumer: PullConsumer = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._producer = Producer(self.client)
        self._prefix = f"headrace-connect-{self.connector}-"
        self._consumer = PullConsumer(self.client, f"{self._prefix}{self.task}")
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sending")

    def close(self) -> None:
        """Send nothing more."""
        self._pool.shutdown(cancel_futures=True)

    # What an earlier life has sent

    def sent_before(self, queues: Collection[MessageQueue]) -> set[Place]:
        """Give the records that stand in these queues, as far as they may be in doubt."""
        if not self.marks or not queues:
            return set()
        bounds: dict[MessageQueue, int] = {}
        for group in self._groups({one.topic for one in queues}):
            consumer = PullConsumer(self.client, group)
            for one, at in zip(queues, self._pool.map(consumer.committed, queues), strict=True):
                if at is not None:
                    bounds[one] = min(at, bounds.get(one, at))
        found = self._pool.map(lambda one: self._tail(one, bounds[one]), bounds)
        return set().union(*found)

    def _groups(self, topics: Collection[str]) -> set[str]:
        """Give the groups of all tasks that there ever were: one of them may have had our queues."""
        admin = Admin(self.client)
        return {
            group
            for topic in topics
            for group in admin.topic_groups(topic)
            if group.startswith(self._prefix) and group.removeprefix(self._prefix).isdecimal()
        }

    def _tail(self, one: MessageQueue, bound: int) -> set[Place]:
        """Give the records behind a bound; it becomes the end that is known."""
        begin, end = self._consumer.begin_offset(one), self._consumer.end_offset(one)
        found: set[Place] = set()
        begin = max(begin, bound)
        if begin < end:
            for result in self._consumer.blocks(one, begin, end):
                for mark in result.columns().property(REPLICA).to_pylist():
                    place = _place_of(self.connector, mark.decode()) if mark else None
                    if place is not None:
                        found.add(place)
        self._ends[one] = end
        return found

    # A batch

    def send(self, messages: dict[MessageQueue, list[Outgoing]]) -> None:
        """Send messages, those of each queue in their order; return when all are there.

        Raises
        ------
        HeadraceError
            They could not be sent, and the patience is over or nobody waits any more.
        """
        self._begin(messages)
        sends = [self._pool.submit(self._send_all, one, some) for one, some in messages.items()]
        failures = [failure for one in sends if (failure := one.exception()) is not None]
        if failures:
            raise failures[0]

    def _begin(self, queues: Collection[MessageQueue]) -> None:
        if not self.marks:
            return
        self.trying(lambda: self._write_bounds(queues))

    def _write_bounds(self, queues: Collection[MessageQueue]) -> None:
        unknown = [one for one in queues if one not in self._ends]
        self._ends |= self._consumer.end_offsets(unknown)
        self._consumer.commit({one: self._ends[one] for one in queues})

    def trying(self, attempt: Callable[[], T]) -> T:
        """Try until it succeeds, fails for good, or nobody waits any more."""
        deadline = time.monotonic() + self.patience
        pause = _PAUSE_FIRST
        while True:
            try:
                return attempt()
            except HeadraceError as error:
                passes = error.retriable and not isinstance(error, _REFUSALS)
                if not passes or time.monotonic() > deadline or self.stopping.is_set():
                    raise
                self.warn(str(error))
            self.stopping.wait(pause)
            pause = min(2 * pause, _PAUSE_MOST)

    def _send_all(self, one: MessageQueue, messages: list[Outgoing]) -> None:
        bound = self._ends.get(one, 0)
        doubtful = False

        def attempt() -> None:
            nonlocal doubtful
            left = messages
            if doubtful and self.marks:
                left = self._not_arrived(one, left, bound)
            doubtful = True
            self._send_runs(one, left)

        self.trying(attempt)

    def _not_arrived(
        self, one: MessageQueue, messages: Sequence[Outgoing], bound: int
    ) -> list[Outgoing]:
        # A RocketMQ shows what it has confirmed a moment later.
        time.sleep(_UNDER_WAY)
        arrived = self._tail(one, bound)
        return [message for message in messages if message.place not in arrived]

    def _send_runs(self, one: MessageQueue, messages: Sequence[Outgoing]) -> None:
        """Send messages in order; a request has one time, so each run of equal times is one."""
        first = 0
        for at in range(1, len(messages) + 1):
            if at == len(messages) or messages[at].born != messages[first].born:
                self._send_run(one, messages[first:at])
                first = at

    def _send_run(self, one: MessageQueue, run: Sequence[Outgoing]) -> None:
        try:
            *_, last = self._producer.send_columns(
                one,
                pa.array([message.body for message in run], pa.binary()),
                properties=pa.array([message.properties for message in run], pa.binary()),
                born=run[0].born,
                once=True,
            )
        except _REFUSALS as error:
            if len(run) == 1:
                self.refused(run[0].record, error)
                return
            # It may have come in several requests: what they brought is there.
            if self.marks:
                run = self._not_arrived(one, run, self._ends[one])
            middle = len(run) // 2
            for half in (run[:middle], run[middle:]):
                if half:
                    self._send_run(one, half)
        else:
            self._ends[one] = last.offset + last.count
