"""A node for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.servers.opensearch import SearchServer, running_opensearch


@pytest.fixture(scope="session")
def opensearch() -> Iterator[SearchServer]:
    """The node of this test run."""
    with running_opensearch() as server:
        yield server
