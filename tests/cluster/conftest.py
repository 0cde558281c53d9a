"""Machines for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.machines import why_not
from tests.cluster.spark_cluster import SparkCluster, spark_cluster


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A broker, a master and two drivers' machines, and names for workers."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("machines")
    with spark_cluster(folder, ["worker-1", "worker-2", "worker-3"]) as cluster:
        yield cluster
