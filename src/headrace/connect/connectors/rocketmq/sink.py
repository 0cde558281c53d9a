"""``rocketmq-sink``: topics here go to topics of another RocketMQ cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from headrace.client import Admin, Client, MessageQueue
from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.rocketmq.messages import REPLICA, Circles, carried
from headrace.connect.connectors.rocketmq.sending import Outgoing, Place, Sender, mark_of
from headrace.connect.connectors.rocketmq.settings import (
    CLUSTER_KEYS,
    TOPIC_KEYS,
    check_answers,
    connected,
    remote_name,
)
from headrace.connect.connectors.rocketmq.topics import Renaming
from headrace.connect.connectors.texts import as_text, raw_bytes
from headrace.errors import MessageRejectedError, TopicNotFoundError
from headrace.keys import encode_key, partition_of, properties_of_key
from headrace.protocol.properties import encode_properties

__all__ = ["RocketMQSinkConnector", "RocketMQSinkTask"]

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


class RocketMQSinkTask(SinkTask):
    """Gathers records in `put`, and sends them in `flush`."""

    _client: Client | None = None
    _sender: Sender | None = None

    def start(self, config: Config) -> None:
        """Reach the other cluster."""
        self._config = config
        self._client = connected(config)
        self._circles = Circles(config["local.cluster"], remote_name(config, self._client))
        self._renaming = Renaming.of(config)
        self._by_key = config["queue.by"] == "key"
        self._records: list[SinkRecord] = []
        #: Queues of the topics there, and records that stand in them already.
        self._queues: dict[str, list[MessageQueue]] = {}
        self._there: set[Place] = set()
        self._sender = Sender(
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
        del queues
        self._records.clear()
        self._queues.clear()
        self._there.clear()

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records."""
        self._records += records

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Send what was gathered; it is there when this returns.

        After an outage the same call comes again: what has arrived is looked up then.
        """
        del offsets
        try:
            self._send()
        except BaseException:
            self._queues.clear()
            self._there.clear()
            raise
        self._records = []

    def _send(self) -> None:
        batch: dict[MessageQueue, list[Outgoing]] = {}
        for record in self._records:
            queues = self._queues_of(self._renaming(record.topic))
            if (record.queue, record.offset) in self._there:
                continue
            try:
                outgoing = self._outgoing(record)
            except (SchemaError, MessageRejectedError) as error:
                self.context.report(record, error)
                continue
            if outgoing is not None:
                batch.setdefault(queues[self._number(record, len(queues))], []).append(outgoing)
        if batch:
            assert self._sender is not None
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

    def _outgoing(self, record: SinkRecord) -> Outgoing | None:
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
        return Outgoing(
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
        """Give the queues of a topic there, once what stands in them is known."""
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
        """Give the number of queues here, as far as this task sees them."""
        numbers = {
            one.queue_id for one in self.context.queues if self._renaming(one.topic) == topic
        }
        # A transform may have named the topic.
        numbers = numbers or {one.queue_id for one in self.context.queues}
        return max(numbers, default=0) + 1


class RocketMQSinkConnector(SinkConnector):
    """Takes topics to another RocketMQ cluster; see docs/connect-rocketmq.md."""

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
