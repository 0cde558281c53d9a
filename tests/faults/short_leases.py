"""Clusters on which a lease ends within seconds, not within a minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from tests.clusters import running_rocketmq

#: How long a lock holds, in seconds.
LEASE = 4


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("rocketmq", marks=pytest.mark.rocketmq)],
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
    java = f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LEASE * 1000}"
    with running_rocketmq(tmp_path_factory.mktemp("rocketmq"), java=java) as cluster:
        yield cluster.namesrv
