from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.broker.wire import JobWire
from tests.clusters import Cluster, require_rocketmq


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[JobWire]:
    with JobWire(broker.address) as connected:
        yield connected


@pytest.fixture
def cluster_of(broker: EmbeddedBroker) -> Cluster:
    """The broker as RocketMQ's tools see it."""
    require_rocketmq()
    return Cluster("embedded", broker.address)
