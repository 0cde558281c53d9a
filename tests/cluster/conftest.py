"""Machines for all tests of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines import why_not
from tests.cluster.spark_cluster import SparkCluster, spark_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the long form of each scenario, which MINUTES asks for, for a soak."""
    if os.environ.get("MINUTES"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A broker, a master and two drivers' machines, and names for workers."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("machines")
    with spark_cluster(folder, ["worker-1", "worker-2", "worker-3"]) as cluster:
        yield cluster
