"""A broker for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.servers.kafka import KafkaServer, running_kafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka of this test run."""
    with running_kafka() as server:
        yield server


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    """A topic of three partitions that no other test has."""
    return kafka.create_topic(3)
