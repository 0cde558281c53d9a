"""Kafka Connect's own connectors of files, on a real Kafka: what ours stand beside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
from confluent_kafka import Consumer, TopicPartition

from benchmarks.connect_files import assert_all_once, write_lines, written
from benchmarks.connect_worker import ConnectRest, rate_of
from benchmarks.measures import Plan, UnavailableError, benchmark
from benchmarks.sizes import QUEUES, Sizes
from tests.connect.servers.kafka import KafkaServer, running_kafka
from tests.connect.servers.kafka_connect import running_kafka_connect

__all__ = ["kafka_connect_files"]

#: What Kafka's own scripts give to its broker and to Connect.
_COLLECTOR = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
_BROKER_JAVA = f"-Xmx1G -Xms1G {_COLLECTOR}"
_CONNECT_JAVA = f"-Xmx2G -Xms256M {_COLLECTOR}"
_FILE = "org.apache.kafka.connect.file.FileStream"
#: Nobody waits longer for any step of a peer.
_LIMIT = timedelta(minutes=5)
_READ_AT_ONCE = 10_000


@benchmark({"kafka_connect_file_source": "rows/s", "kafka_connect_file_sink": "rows/s"})
def kafka_connect_files(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Move the lines of ``connect_file_source``, exactly once into the topic; one task each."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is not installed, which Kafka Connect needs")
    sizes = plan.sizes
    patience = min(sizes.patience, _LIMIT)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        running_kafka(_BROKER_JAVA) as kafka,
        running_kafka_connect(kafka, _CONNECT_JAVA) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        lines = Path(folder) / "lines.txt"
        write_lines(lines, sizes)
        worker = ConnectRest(http, patience)
        for _ in range(plan.runs):
            topic = kafka.create_topic(QUEUES)
            yield {
                "kafka_connect_file_source": _source_rate(worker, kafka, lines, topic, sizes),
                "kafka_connect_file_sink": _sink_rate(worker, topic, lines, sizes),
            }


def _source_rate(
    worker: ConnectRest, kafka: KafkaServer, lines: Path, topic: str, sizes: Sizes
) -> float:
    config = {
        "connector.class": f"{_FILE}SourceConnector",
        "file": str(lines),
        "topic": topic,
        # By default each poll of 2,000 lines is a transaction; ours takes what a second gives.
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "1000",
    }
    places = [TopicPartition(topic, number) for number in range(QUEUES)]
    with _reading(kafka) as consumer:

        def visible() -> int:
            """Offsets of what is committed; the marks of a few transactions count with it."""
            return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)

        with worker.connector(f"from-file-{topic}", config):
            rate = rate_of(visible, sizes.connect_lines, worker)
        consumer.assign(places)
        assert_all_once(_values(consumer), sizes.connect_lines)
    return rate


def _sink_rate(worker: ConnectRest, topic: str, lines: Path, sizes: Sizes) -> float:
    copy = lines.with_name(topic)
    config = {"connector.class": f"{_FILE}SinkConnector", "file": str(copy), "topics": topic}
    with worker.connector(f"to-file-{topic}", config):
        return written(copy, lines, worker, sizes)


@contextmanager
def _reading(kafka: KafkaServer) -> Iterator[Consumer]:
    """Give a consumer that sees what is committed, and nothing else."""
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


def _values(consumer: Consumer) -> Iterator[bytes]:
    while messages := consumer.consume(_READ_AT_ONCE, timeout=5):
        for message in messages:
            value = message.value()
            assert value is not None, message.error()
            yield value
