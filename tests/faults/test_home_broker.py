"""Where a job's own topics lie on a cluster of two brokers, and a start while that one is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.errors import JobFailedError
from headrace.topology.names import journal_topic
from tests.faults.harness import await_true
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers
from tests.faults.proof_pipeline import Names, proof
from tests.faults.rocket_brokers import RocketBrokers, running_rocket_brokers

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(240), pytest.mark.slow]

#: Jobs whose names choose the first broker, and the second.
HERE, THERE = Names("apart"), Names("proof")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketBrokers]:
    with running_rocket_brokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def feed(client: Client, brokers: RocketBrokers, names: Names) -> ProofFeeder:
    make_topics(client, names)
    feeder = ProofFeeder(brokers.address, names)
    feeder.feed(3)
    return feeder


@pytest.mark.parametrize(("names", "home"), [(HERE, "broker-a"), (THERE, "broker-b")])
def test_own_topics_of_a_job_lie_on_one_broker_and_its_results_are_there_once(
    brokers: RocketBrokers, tmp_path: Path, names: Names, home: str
) -> None:
    job = proof(names)
    with Client(brokers.address) as client:
        feeder = feed(client, brokers, names)
        checkers = Checkers.of(client, names)
        with LocalDriver(brokers.address, tmp_path, 40, job=job) as driver:
            assert driver.catch_up() > 2
        assert checkers.finish(feeder.stop()) == []
        own = [*job.state_topics.values(), job.commit_topic, journal_topic(job.name)]
        assert {queue.broker for topic in own for queue in client.queues(topic)} == {home}
        assert {queue.broker for queue in client.queues(names.ids)} == {"broker-a", "broker-b"}


def test_job_does_not_begin_anew_while_the_broker_of_its_commits_is_away(
    brokers: RocketBrokers, tmp_path: Path
) -> None:
    names = Names("home")
    with Client(brokers.address) as client:
        feeder = feed(client, brokers, names)
        checkers = Checkers.of(client, names)
        with LocalDriver(brokers.address, tmp_path, 40, job=proof(names)) as driver:
            driver.catch_up(2)
        brokers.kill()
        await_true("one broker", lambda: list(client.brokers()) == ["broker-b"])
        with pytest.raises(JobFailedError, match="the broker that holds home-commitTopic is away"):
            LocalDriver(brokers.address, tmp_path, 40, job=proof(names))
        brokers.restart()
        with LocalDriver(brokers.address, tmp_path, 40, job=proof(names)) as driver:
            assert driver.epoch == 2
            driver.catch_up()
        assert checkers.finish(feeder.stop()) == []
