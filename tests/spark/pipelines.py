"""What the tests of jobs share: topologies, input, and reading results back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.keys import key_from_properties
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from headrace.streams import StreamBuilder
from headrace.topology import KeyBy, Topology
from headrace.topology.operators.core import Sink, Source
from tests.clusters import Cluster
from tests.runtime.tumbling import TumblingCount

LIMIT = timedelta(seconds=60)

Change = Callable[[JobSettings], JobSettings]


def word_count(name: str, lines: str, counts: str) -> Topology:
    builder = StreamBuilder(name)
    (
        builder.source(lines, serdes.string)
        .flat_map_values(lambda line: line.lower().split())
        .key_by(lambda word: word)
        .count()
        .to_stream()
        .sink(counts, serdes.json)
    )
    return builder.build()


def tumbling_counts(name: str, events: str, counts: str, **source: object) -> Topology:
    return Topology(
        name,
        (
            Source(
                name="in",
                parents=(),
                topic=events,
                deserializer=serdes.as_deserializer(serdes.string),
                allowed_lateness=timedelta(0),
                **source,  # type: ignore[arg-type]
            ),
            KeyBy(name="key", parents=("in",), selector=str.lower, key_serde=serdes.key),
            TumblingCount(name="window", parents=("key",), size=10_000),
            Sink(
                name="out",
                parents=("window",),
                topic=counts,
                serializer=serdes.as_serializer(serdes.json),
            ),
        ),
    )


def _await_end(consumer: PullConsumer, queue: MessageQueue, end: int) -> None:
    limit = time.monotonic() + LIMIT.total_seconds()
    while (found := consumer.end_offset(queue)) < end:
        assert time.monotonic() < limit, f"{queue} ends at {found}, {end} were sent"
        time.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Rig:
    """One test's cluster, with a folder of its own."""

    namesrv: str
    client: Client
    folder: Path
    topic: Callable[..., str]

    def settings(self, **given: Any) -> JobSettings:
        fixed: dict[str, Any] = {
            "namesrv": self.namesrv,
            "data_dir": self.folder,
            "partitions": 2,
            "master": "local[2,4]",
        }
        return JobSettings(**(fixed | given))

    def send(self, topic: str, lines: Iterable[str | bytes]) -> None:
        """Send lines, spread over the queues, and wait until readers see them.

        A RocketMQ broker makes what it has acknowledged visible a moment later.
        """
        bodies = [line.encode() if isinstance(line, str) else line for line in lines]
        queues = self.client.queues(topic, for_="write")
        producer, consumer = Producer(self.client), PullConsumer(self.client)
        for number, queue in enumerate(queues):
            part = bodies[number :: len(queues)]
            if part:
                end = consumer.end_offset(queue) + len(part)
                producer.send_columns(queue, pa.array(part, pa.binary()))
                _await_end(consumer, queue, end)

    def read(self, topic: str) -> list[tuple[Any, bytes]]:
        """Everything in a topic, queue by queue: key and body."""
        consumer = PullConsumer(self.client)
        found = []
        for queue in self.client.queues(topic):
            end = consumer.end_offset(queue)
            for result in consumer.blocks(queue, 0, end):
                found += [(key_from_properties(m.properties), m.body) for m in result.messages()]
        return found

    def latest(self, topic: str) -> dict[Any, int]:
        """The last value of every key of a topic of numbers."""
        return {key: int(body) for key, body in self.read(topic)}

    def run(self, topology: Topology, **given: Any) -> None:
        """Run a job until it has caught up."""
        job = StreamJob(topology, self.settings(**given)).start()
        try:
            job.await_caught_up(LIMIT)
        finally:
            job.stop()


@pytest.fixture
def rig(cluster: Cluster, client: Client, make_topic: Callable[..., str], tmp_path: Path) -> Rig:
    """A test's own, on the kind of cluster that it asks for; a folder's conftest imports it."""
    return Rig(cluster.namesrv, client, tmp_path, make_topic)
