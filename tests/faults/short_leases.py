"""Clusters on which a lease ends within seconds, not within a minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from tests.clusters import Cluster
from tests.run.servers import LEASE


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("rocketmq_of_short_leases", marks=pytest.mark.rocketmq)],
)
def namesrv(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A cluster whose locks expire soon."""
    if request.param == "embedded":
        settings = BrokerSettings(lock_expiry=timedelta(seconds=LEASE))
        with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings=settings) as broker:
            yield broker.address
        return
    cluster: Cluster = request.getfixturevalue("rocketmq_of_short_leases")
    yield cluster.namesrv
