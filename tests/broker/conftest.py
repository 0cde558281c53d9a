from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.broker.wire import JobWire


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[JobWire]:
    with JobWire(broker.address) as connected:
        yield connected
