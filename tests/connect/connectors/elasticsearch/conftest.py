"""Nodes for all tests, of both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.servers.search import SearchServer, running_search


@pytest.fixture(scope="session", params=["opensearch", "elasticsearch"])
def node(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    """A node of this test run."""
    with running_search(request.param) as server:
        yield server
