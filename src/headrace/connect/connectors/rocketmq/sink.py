"""``rocketmq-sink``: topics here go to topics of another RocketMQ cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from headrace.backoff import Backoff
from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SinkConnector,
    SinkRecord,
    SinkTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.offsets import GatheringSinkTask
from headrace.connect.connectors.rocketmq.settings import (
    CLUSTER_KEYS,
    TOPIC_KEYS,
    Renaming,
    check_answers,
    connected,
    remote_name,
)
from headrace.connect.connectors.texts import as_text, raw_bytes
from headrace.errors import (
    HeadraceError,
    MessageRejectedError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from headrace.keys import EXACT_KEY, encode_key, partition_of, properties_of_key
from headrace.protocol import properties as names
from headrace.protocol.journal_tags import TAG
from headrace.protocol.properties import decode_properties, encode_properties

# What of a message's properties goes along to another cluster, and the marks that are added.

ORIGIN = "HEADRACE_ORIGIN"
"""Property with the name of the cluster that a replicated message was born in."""

REPLICA = "HEADRACE_REPLICA"
"""Property by which a sink finds what it has sent: connector, queue and offset."""

_OF_THE_USER = frozenset(
    {names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.CORRELATION_ID}
)
#: A delay has passed, a transaction has ended, a batch was committed: over there, not here.
_LEFT_BEHIND = (names.NAMES - _OF_THE_USER) | {TAG, REPLICA}


def carried(properties: Mapping[str, str]) -> dict[str, str]:
    """Leave out the properties that hold only for the cluster where they stand.

    >>> carried({"TAGS": "red", "DELAY": "3", "colour": "red"})
    {'TAGS': 'red', 'colour': 'red'}
    """
    return {name: value for name, value in properties.items() if name not in _LEFT_BEHIND}


def carried_raw(raw: bytes) -> tuple[str | None, dict[str, str]]:
    r"""Return the key of a message where it is text, and the other properties that go along.

    A key that is no text stays among the properties, as it stands there.

    >>> carried_raw(b"KEYS\x01k1\x02TAGS\x01red\x02")
    ('k1', {'TAGS': 'red'})
    """
    properties = carried(decode_properties(raw))
    if EXACT_KEY in properties:
        return None, properties
    return properties.pop(names.KEYS, None), properties


class Circles:
    """Keeps records from going in circles: each carries the name of the cluster it was born in.

    Parameters
    ----------
    here, there
        The clusters that records come from and go to; ``None``: what was replicated at all is
        left out.

    Examples
    --------
    >>> circles = Circles("paris", "berlin")
    >>> circles.marked({"colour": "red"})
    {'colour': 'red', 'HEADRACE_ORIGIN': 'paris'}
    >>> circles.marked({"HEADRACE_ORIGIN": "rome"})
    {'HEADRACE_ORIGIN': 'rome'}
    >>> circles.marked({"HEADRACE_ORIGIN": "berlin"}) is None
    True
    """

    def __init__(self, here: str, there: str | None) -> None:
        self._here = here
        self._there = there

    def marked(self, properties: dict[str, str]) -> dict[str, str] | None:
        """Return the properties with the mark; ``None`` where the record must not go on."""
        origin = properties.get(ORIGIN)
        if origin is None:
            return {**properties, ORIGIN: self._here}
        return None if self._there in {None, origin} else properties


# Sends messages to another cluster, and finds what has arrived where that is in doubt.

_THREADS = 8
#: How long a request whose answer was lost may still be on its way, in seconds.
_UNDER_WAY = 1.0
#: A broker that refuses a batch does so again: one of its messages is bad.
_REFUSALS = (MessageRejectedError, MessageTooLargeError)

T = TypeVar("T")
Place = tuple[Queue, int]
"""A record of ours: its queue and offset here."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
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
class MessageSender:
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
        """Return the records that stand in these queues, as far as they may be in doubt."""
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
        """Return the groups of all tasks that there ever were.

        One of them may have had our queues.
        """
        admin = Admin(self.client)
        return {
            group
            for topic in topics
            for group in admin.topic_groups(topic)
            if group.startswith(self._prefix) and group.removeprefix(self._prefix).isdecimal()
        }

    def _tail(self, one: MessageQueue, bound: int) -> set[Place]:
        """Return the records behind a bound; it becomes the end that is known."""
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

    def send(self, messages: dict[MessageQueue, list[OutgoingRecord]]) -> None:
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
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return attempt()
            except HeadraceError as error:
                passes = error.retriable and not isinstance(error, _REFUSALS)
                if not passes or time.monotonic() > deadline or self.stopping.is_set():
                    raise
                self.warn(str(error))
            self.stopping.wait(backoff.next())

    def _send_all(self, one: MessageQueue, messages: list[OutgoingRecord]) -> None:
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
        self, one: MessageQueue, messages: Sequence[OutgoingRecord], bound: int
    ) -> list[OutgoingRecord]:
        # A RocketMQ shows what it has confirmed a moment later.
        time.sleep(_UNDER_WAY)
        arrived = self._tail(one, bound)
        return [message for message in messages if message.place not in arrived]

    def _send_runs(self, one: MessageQueue, messages: Sequence[OutgoingRecord]) -> None:
        """Send messages in order; a request has one time, so each run of equal times is one."""
        first = 0
        for at in range(1, len(messages) + 1):
            if at == len(messages) or messages[at].born != messages[first].born:
                self._send_run(one, messages[first:at])
                first = at

    def _send_run(self, one: MessageQueue, run: Sequence[OutgoingRecord]) -> None:
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


_TAKER = "a message"

_KEYS = (
    CLUSTER_KEYS
    | declare(
        key(
            "local.cluster",
            str,
            "What this cluster is called: records carry it, and do not come back to it.",
            required=True,
            group="Loops",
        ),
        key(
            "queue.by",
            str,
            "Which queue a record goes to: number (the one that has its queue's number here), or"
            " key (by the key's hash; by number without a key).",
            default="number",
            valid=one_of("number", "key"),
            group="Topics",
        ),
        key(
            "create.topics",
            bool,
            "Whether topics that are missing there are made with as many queues as here, and"
            " topics with fewer queues get more.",
            default=True,
            group="Topics",
        ),
        key(
            "keep.timestamps",
            bool,
            "Whether messages keep the time of their birth. A request has one, so that messages"
            " of one millisecond go together, and others need a request each.",
            default=True,
            group="Topics",
        ),
        key(
            "find.repeated",
            bool,
            "Whether messages carry a mark by which the task finds after a failure what has"
            " arrived, and does not send it again.",
            default=True,
            importance="high",
            group="Guarantee",
        ),
        key(
            "delivery.timeout.ms",
            timedelta,
            "How long the task tries to send when the other cluster does not answer; what comes"
            " after that says errors.retry.timeout.",
            default=timedelta(seconds=30),
            group="Guarantee",
        ),
    )
    | TOPIC_KEYS
)


class RocketMQSinkTask(GatheringSinkTask[OutgoingRecord]):
    """Sends records, and looks for what has arrived where that is in doubt."""

    _client: Client | None = None
    _sender: MessageSender | None = None

    def start(self, config: Config) -> None:
        """Reach the other cluster."""
        super().start(config)
        self._client = connected(config)
        self._circles = Circles(config["local.cluster"], remote_name(config, self._client))
        self._renaming = Renaming.of(config)
        self._by_key = config["queue.by"] == "key"
        #: Queues of the topics there, and records that stand in them already.
        self._queues: dict[str, list[MessageQueue]] = {}
        self._there: set[Place] = set()
        self._sender = MessageSender(
            self._client,
            self.context.connector,
            self.context.task,
            marks=config["find.repeated"],
            stopping=self.context.stopping,
            patience=config["delivery.timeout.ms"].total_seconds(),
            refused=self.context.report,
            warn=lambda text: self.context.logger.warning("sending is tried again: %s", text),
        )

    def open(self, queues: Collection[Queue]) -> None:
        """Begin anew: what of these queues stands there is not known."""
        super().open(queues)
        self._forget()

    def _forget(self) -> None:
        self._queues.clear()
        self._there.clear()

    def write(self, gathered: list[OutgoingRecord], offsets: Mapping[Queue, int]) -> None:
        """Send messages; after an outage, what has arrived is looked up when they come again."""
        del offsets
        try:
            self._send(gathered)
        except BaseException:
            self._forget()
            raise

    def _send(self, gathered: Sequence[OutgoingRecord]) -> None:
        assert self._sender is not None
        batch: dict[MessageQueue, list[OutgoingRecord]] = {}
        for one in gathered:
            queues = self._queues_of(self._renaming(one.record.topic))
            if one.place not in self._there:
                queue = queues[self._number(one.record, len(queues))]
                batch.setdefault(queue, []).append(one)
        if batch:
            self._sender.send(batch)

    def stop(self) -> None:
        """Leave the other cluster; what was not flushed is not sent."""
        if self._sender is not None:
            self._sender.close()
        if self._client is not None:
            self._client.close()

    def healthy(self) -> bool:
        """Whether a name server answers."""
        check_answers(self._config)
        return True

    def gathered(self, record: SinkRecord) -> OutgoingRecord | None:
        """Return the message of a record; ``None`` for one that was born in the other cluster."""
        headers = {
            one.key: text
            for one in record.headers
            if one.value is not None and (text := as_text(one.value).decode())
        }
        properties = self._circles.marked(carried(headers))
        if properties is None:
            return None
        if (key := _key_of(record)) is not None:
            properties = {**properties, **properties_of_key(key)}
        if self._config["find.repeated"]:
            properties[REPLICA] = mark_of(self.context.connector, record)
        return OutgoingRecord(
            record,
            raw_bytes(record, record.value, "value", _TAKER) or b"",
            encode_properties(properties),
            record.timestamp_ms if self._config["keep.timestamps"] else None,
        )

    def _number(self, record: SinkRecord, count: int) -> int:
        key = _key_of(record) if self._by_key else None
        return (
            record.queue.queue_id % count if key is None else partition_of(encode_key(key), count)
        )

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic there, once what stands in them is known."""
        if topic not in self._queues:
            assert self._sender is not None
            queues, there = self._sender.trying(lambda: self._known(topic))
            mine = self.context.queues
            self._there |= {place for place in there if place[0] in mine}
            self._queues[topic] = queues
        return self._queues[topic]

    def _known(self, topic: str) -> tuple[list[MessageQueue], set[Place]]:
        assert self._sender is not None
        queues = self._provided(topic)
        return queues, self._sender.sent_before(queues)

    def _provided(self, topic: str) -> list[MessageQueue]:
        assert self._client is not None
        try:
            queues = sorted(self._client.queues(topic, for_="write", refresh=True))
        except TopicNotFoundError:
            if not self._config["create.topics"]:
                raise
            queues = []
        wanted = self._wanted(topic)
        if len(queues) < wanted and self._config["create.topics"]:
            brokers = max(1, len(self._client.brokers()))
            Admin(self._client).create_topic(topic, -(-wanted // brokers))
            queues = sorted(self._client.queues(topic, for_="write", refresh=True))
        return queues

    def _wanted(self, topic: str) -> int:
        """Return the number of queues here, as far as this task sees them."""
        numbers = {
            one.queue_id for one in self.context.queues if self._renaming(one.topic) == topic
        }
        # A transform may have named the topic.
        numbers = numbers or {one.queue_id for one in self.context.queues}
        return max(numbers, default=0) + 1


class RocketMQSinkConnector(SinkConnector):
    """Takes topics to another RocketMQ cluster."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
    task: ClassVar[type[SinkTask]] = RocketMQSinkTask

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from Renaming.problems(config, [])


def _key_of(record: SinkRecord) -> str | bytes | None:
    key: Any = raw_bytes(record, record.key, "key", _TAKER)
    if key is None:
        return None
    try:
        text: str = key.decode()
    except UnicodeDecodeError:
        return bytes(key)
    return text
