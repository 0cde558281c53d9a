"""What tests of the replicator share: tasks on a cluster of either kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace.client import Client, MessageQueue, PullConsumer, StoredMessage
from headrace.connect.connectors.rocketmq import RocketMQSinkConnector, RocketMQSourceConnector
from headrace.connect.testing.sinks import SinkTaskKit, SourceTaskKit
from tests.clusters import Cluster

NewSource = Callable[..., SourceTaskKit]
NewSink = Callable[..., SinkTaskKit]


@pytest.fixture
def source(cluster: Cluster) -> NewSource:
    """Make a source that reads the cluster."""

    def make(topics: str, more: Mapping[str, Any] | None = None, **kit: Any) -> SourceTaskKit:
        texts = {"rocketmq.namesrv": cluster.namesrv, "rocketmq.topics": topics}
        return SourceTaskKit(
            RocketMQSourceConnector, texts | {"remote.cluster": "there"} | dict(more or {}), **kit
        )

    return make


@pytest.fixture
def sink(cluster: Cluster) -> NewSink:
    """Make a sink that writes to the cluster."""

    def make(topic: str, more: Mapping[str, Any] | None = None, **kit: Any) -> SinkTaskKit:
        texts = {
            "topics": topic,
            "name": f"to-{topic}",
            "rocketmq.namesrv": cluster.namesrv,
            "local.cluster": "here",
            "remote.cluster": "there",
        }
        return SinkTaskKit(RocketMQSinkConnector, texts | dict(more or {}), **kit)

    return make


def stored(client: Client, topic: str, count: int) -> list[StoredMessage]:
    """Wait for so many messages of a topic; give all that there are."""
    consumer = PullConsumer(client)
    deadline = time.monotonic() + 120
    while True:
        ends = consumer.end_offsets(client.queues(topic))
        found = [
            message
            for queue, end in ends.items()
            if end
            for result in consumer.blocks(queue, 0, end)
            for message in result.messages()
        ]
        if len(found) >= count:
            return sorted(found, key=lambda one: (one.queue_id, one.queue_offset))
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        time.sleep(0.02)


def queue(topic: str, number: int = 0) -> MessageQueue:
    """Name a queue of the clusters of the tests."""
    return MessageQueue(topic, "broker-a", number)
