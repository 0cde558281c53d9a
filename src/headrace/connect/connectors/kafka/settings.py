"""How connectors reach Kafka: config keys, and librdkafka's settings made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connect import Config, Queue, Secret, declare, key
from headrace.errors import ConnectionFailedError, RequestTimeoutError

_PREFIX = "kafka."
#: How long a probe waits for an answer, s.
_ANSWER = 3.0

KAFKA_KEYS = declare(
    key(
        "kafka.bootstrap.servers",
        str,
        "Brokers to begin with, as host:port, by commas. Every other key that begins with kafka. is"
        " handed to librdkafka without that prefix, such as kafka.security.protocol.",
        required=True,
        group="Kafka",
    ),
    key("kafka.sasl.password", Secret, "The password of SASL.", group="Kafka"),
    key("kafka.ssl.key.password", Secret, "The password of the client's key.", group="Kafka"),
)
#: Keys with that prefix that are ours.
_OURS = frozenset({"kafka.topics", "kafka.topics.regex", "kafka.topic.format"})


def client_settings(config: Config, name: str, **more: Any) -> dict[str, Any]:
    """Make librdkafka's settings; what the connector itself needs comes last and wins."""
    given: Mapping[str, str] = {
        text.removeprefix(_PREFIX): value
        for text, value in config.texts.items()
        if text.startswith(_PREFIX) and text not in _OURS
    }
    settings = {"client.id": f"headrace-{name}", "socket.keepalive.enable": True, **given}
    for secret in ("kafka.sasl.password", "kafka.ssl.key.password"):
        if value := config[secret]:
            settings[secret.removeprefix(_PREFIX)] = value.reveal()
    logger = logging.getLogger(f"headrace.kafka.{name}")
    logger.setLevel(logging.ERROR)

    def complain(error: KafkaError) -> None:
        logger.warning("%s", error)

    return {**settings, "error_cb": complain, "logger": logger, **more}


_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}  # noqa: SLF001
)


def is_outage(error: KafkaError) -> bool:
    """Return whether an error passes by itself: brokers are away, start, stop or change places."""
    return not error.fatal() and (
        error.retriable() or error.txn_requires_abort() or error.code() in _PASSING
    )


def unreachable(config: Config, error: KafkaException) -> ConnectionFailedError:
    """Make an error that says which brokers did not answer."""
    servers = config["kafka.bootstrap.servers"]
    return ConnectionFailedError(
        f"Kafka at {servers} does not answer: {error}",
        hint="Check kafka.bootstrap.servers, the network, and the security settings.",
    )


def check_answers(config: Config) -> None:
    """Return when a broker answers to a client of its own: one that polls has no ear for others.

    Raises
    ------
    ConnectionFailedError
        None does.
    """
    try:
        AdminClient(client_settings(config, "probe")).list_topics(timeout=_ANSWER)
    except KafkaException as error:
        raise unreachable(config, error) from error


# Where a sink's offsets are kept: a compacted topic of Kafka, written in its transactions.

_OFFSETS_ANSWER = 30.0
_NEW = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # the client's own codes are named so
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


class KeptOffset(msgspec.Struct, frozen=True):
    """Where one queue stands, and who said so."""

    #: ``None`` while nothing of the queue was written.
    next_offset: int | None
    #: The transactional id of the task that has the queue.
    owner: str
    generation: int


def key_of(queue: Queue) -> bytes:
    """Write a queue as the key of its standing."""
    return msgspec.json.encode(list(queue))


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """A topic of one partition with the standing of each queue of one sink."""

    config: Config
    topic: str

    def create(self) -> None:
        """Create the topic where it is missing."""
        admin = AdminClient(client_settings(self.config, "offsets"))
        replicas = self.config["offsets.replication.factor"]
        wanted = NewTopic(
            self.topic,
            num_partitions=1,
            replication_factor=replicas,
            config={"cleanup.policy": "compact"},
        )
        made = admin.create_topics([wanted], request_timeout=_OFFSETS_ANSWER)
        try:
            made[self.topic].result(timeout=_OFFSETS_ANSWER)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def read(self) -> dict[Queue, KeptOffset]:
        """Read the last standing of every queue, up to the topic's end at this moment.

        A transaction of another task may be open before that end: it is waited for.

        Raises
        ------
        RequestTimeoutError
            It did not end, nor did Kafka end it.
        """
        # Its end for those who read everything: behind open transactions, too.
        probe = self._consumer("read_uncommitted")
        try:
            end = self._end(probe)
        finally:
            probe.close()
        consumer = self._consumer("read_committed")
        try:
            consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            return self._read_to(consumer, end)
        finally:
            consumer.close()

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            client_settings(
                self.config,
                "offsets",
                **{
                    "group.id": "headrace-offsets",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": isolation,
                },
            )
        )

    def _end(self, consumer: Consumer) -> int:
        place = TopicPartition(self.topic, 0)
        deadline = time.monotonic() + _OFFSETS_ANSWER
        while True:
            try:
                _, end = consumer.get_watermark_offsets(place, timeout=_OFFSETS_ANSWER)
                return int(end)
            except KafkaException as error:
                # A topic that was made right now is not known to every broker yet.
                if error.args[0].code() not in _NEW or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _read_to(self, consumer: Consumer, end: int) -> dict[Queue, KeptOffset]:
        found: dict[Queue, KeptOffset] = {}
        patience = self.config["transaction.timeout.ms"].total_seconds() + _OFFSETS_ANSWER
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    queue = Queue(*msgspec.json.decode(message.key() or b"[]"))
                    found[queue] = msgspec.json.decode(message.value() or b"", type=KeptOffset)
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # named so
                    if not error.retriable():
                        raise KafkaException(error)
                elif (message.offset() or 0) >= end:
                    return found
        raise RequestTimeoutError(
            f"The topic {self.topic} could not be read to its end within {patience:g} s: a"
            " transaction on it does not end.",
            hint="Look for a producer that hangs, by kafka-transactions.sh find-hanging.",
        )

    def message(self, queue: Queue, standing: KeptOffset) -> Mapping[str, Any]:
        """Make what a producer is to send for a standing."""
        return {
            "topic": self.topic,
            "partition": 0,
            "key": key_of(queue),
            "value": msgspec.json.encode(standing),
        }


def owners(
    standings: Mapping[Queue, KeptOffset], queues: Collection[Queue], mine: str
) -> frozenset[str]:
    """Name the other tasks that had these queues."""
    found = {one.owner for queue, one in standings.items() if queue in queues}
    return frozenset(found - {mine, ""})
