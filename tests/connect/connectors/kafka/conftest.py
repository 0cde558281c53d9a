"""A topic for each test."""

from __future__ import annotations

import pytest

from tests.connect.servers.kafka import KafkaServer


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    """A topic of three partitions that no other test has."""
    return kafka.create_topic(3)
