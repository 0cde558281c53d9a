"""Lines of Kafka to a topic here and back to Kafka, exactly once, by a worker of Connect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.clusters import embedded
from benchmarks.connect_files import assert_all_once, bodies, numbered_lines
from benchmarks.connect_worker import ConnectWorker, rate_of, running_connect, stored
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client
from tests.connect.servers.kafka import KafkaServer, running_kafka

__all__ = ["BROKER_JAVA", "COLLECTOR", "committed", "connect_kafka", "fill", "visible"]

#: What Kafka's own scripts give to its broker.
COLLECTOR = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
BROKER_JAVA = f"-Xmx1G -Xms1G {COLLECTOR}"
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
_AT_ONCE = 10_000


@benchmark({"connect_kafka_source": "rows/s", "connect_kafka_sink": "rows/s"}, turns="kafka")
def connect_kafka(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Move lines by ``kafka-source``, then by ``kafka-sink``; one task each."""
    sizes = plan.sizes
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_kafka(BROKER_JAVA) as kafka,
        running_connect(address, folder / "worker", sizes.patience) as worker,
    ):
        for _ in range(plan.runs):
            topic = kafka.create_topic(QUEUES)
            fill(kafka, topic, numbered_lines(sizes))
            Admin(client).create_topic(topic, queues=QUEUES)
            yield {
                "connect_kafka_source": _source_rate(worker, kafka, client, topic, sizes),
                "connect_kafka_sink": _sink_rate(worker, kafka, topic, sizes),
            }


def _source_rate(
    worker: ConnectWorker, kafka: KafkaServer, client: Client, topic: str, sizes: Sizes
) -> float:
    config = {
        "connector.class": "kafka-source",
        "kafka.bootstrap.servers": kafka.address,
        "kafka.topics": topic,
        "key.converter": _BYTES,
        "value.converter": _BYTES,
    }
    with worker.connector(f"from-{topic}", config):
        rate = rate_of(lambda: stored(client, topic), sizes.connect_lines, worker)
    assert_all_once(bodies(client, topic), sizes.connect_lines)
    return rate


def _sink_rate(worker: ConnectWorker, kafka: KafkaServer, topic: str, sizes: Sizes) -> float:
    copy = kafka.create_topic(QUEUES)
    config = {
        "connector.class": "kafka-sink",
        "kafka.bootstrap.servers": kafka.address,
        "topics": topic,
        "kafka.topic.format": copy,
        "key.converter": _BYTES,
        "value.converter": _BYTES,
    }
    with visible(kafka, copy) as shown, worker.connector(f"to-{topic}", config):
        rate = rate_of(shown, sizes.connect_lines, worker)
        assert_all_once(committed(kafka, copy), sizes.connect_lines)
    return rate


def fill(kafka: KafkaServer, topic: str, columns: Iterable[pa.BinaryArray]) -> None:
    """Send columns of values, each in equal shares to all partitions of a topic."""
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 50})
    for column in columns:
        share = -(-len(column) // QUEUES)
        for number in range(QUEUES):
            values = column.slice(number * share, share).to_pylist()
            producer.produce_batch(topic, [{"value": value} for value in values], number)
        assert not producer.flush(60), "Kafka has not taken all"


@contextmanager
def visible(kafka: KafkaServer, topic: str) -> Iterator[Callable[[], int]]:
    """Count what is committed in a topic; the marks of a few transactions count with it."""
    places = [TopicPartition(topic, number) for number in range(QUEUES)]
    with _reading(kafka) as consumer:
        yield lambda: sum(_end(consumer, place) for place in places)


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Return where a partition ends; that of a new topic may have no leader yet."""
    until = time.monotonic() + 30
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, timeout=30)[1]
        except KafkaException as error:
            leaderless = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not leaderless or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return end


def committed(kafka: KafkaServer, topic: str) -> Iterator[bytes]:
    """Read what is committed in a topic, until nothing more comes for some seconds."""
    with _reading(kafka) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(QUEUES)])
        while messages := consumer.consume(_AT_ONCE, timeout=5):
            for message in messages:
                value = message.value()
                assert value is not None, message.error()
                yield value


@contextmanager
def _reading(kafka: KafkaServer) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": kafka.address,
        "group.id": "benchmark",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()
