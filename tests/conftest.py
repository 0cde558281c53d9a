"""Fixtures that all tests share: clusters, clients, topics."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from headrace.client import Admin, Client
from tests.clusters import Cluster, require_rocketmq
from tests.java.clients import Java
from tests.java.process import running_java

pytest_plugins = [
    "tests.run.servers",
    "tests.run.schedule",
    "tests.run.session",
    "tests.run.tiers",
]

_numbers = itertools.count(1)
#: Folders of tests that start whole jobs: a busy machine needs seconds for every process of them, as
#: it does for what is slow.  Who takes longer than this ends the process that ran it.
_OF_JOBS = ("tests/spark/", "tests/faults/", "tests/transactions/", "tests/cli/")
_PATIENCE = 600

# A busy machine is no reason for a property test to fail.
hypothesis.settings.register_profile("headrace", deadline=None)
# What a change waits for has the same examples in each run, as a new one tells of no change; new ones
# come with `make properties`.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("steady" if config.option.hold_budgets else "headrace")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        long = item.nodeid.startswith(_OF_JOBS) or item.get_closest_marker("slow")
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_PATIENCE))


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The embedded broker in a process of its own, started once for all tests."""
    from headrace.broker import spawn_broker

    broker = spawn_broker(tmp_path_factory.mktemp("embedded"), port=0)
    try:
        yield Cluster("embedded", broker.address)
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """RocketMQ's Java clients and tools, in one process for all tests."""
    require_rocketmq()
    home = tmp_path_factory.mktemp("java")
    with running_java(home) as process:
        yield Java(process, home)


@pytest.fixture(
    scope="session",
    params=["embedded", pytest.param("rocketmq", marks=pytest.mark.rocketmq)],
)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each kind of cluster in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    with Client(cluster.namesrv) as connected:
        yield connected


@pytest.fixture
def make_topic(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Make a topic that no other test uses."""
    with Client(cluster.namesrv) as client:

        def make(queues: int = 4, attributes: dict[str, str] | None = None) -> str:
            name = f"test-{os.getpid()}-{next(_numbers)}"
            Admin(client).create_topic(name, queues=queues, attributes=attributes)
            return name

        yield make
