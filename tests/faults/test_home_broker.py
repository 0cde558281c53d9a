"""A cluster of two brokers: where a job's own topics lie, and which messages are whose."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.client import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from headrace.errors import ConnectionFailedError
from headrace.topology.names import journal_topic
from tests.clusters import await_messages
from tests.faults.harness import await_true
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers
from tests.faults.proof_pipeline import Names, proof
from tests.faults.rocket_brokers import RocketBrokers, running_rocket_brokers
from tests.spark.pipelines import tumbling_counts

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(240), pytest.mark.slow]

#: Jobs whose names choose the first broker, and the second.
HERE, THERE = Names("apart"), Names("proof")
#: Messages for each of two queues.
PAIRS = 100


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
        away = "the broker that holds home-commitTopic is away"
        with pytest.raises(ConnectionFailedError, match=away):
            LocalDriver(brokers.address, tmp_path, 40, job=proof(names), retry_timeout="1 s")
        brokers.restart()
        with LocalDriver(brokers.address, tmp_path, 40, job=proof(names)) as driver:
            assert driver.epoch == 2
            driver.catch_up()
        assert checkers.finish(feeder.stop()) == []


def test_running_job_waits_while_the_name_server_has_forgotten_the_broker_of_its_commits(
    brokers: RocketBrokers, tmp_path: Path
) -> None:
    names = Names("forgotten")
    job = proof(names)
    with Client(brokers.address) as client:
        feeder = feed(client, brokers, names)
        checkers = Checkers.of(client, names)
        with LocalDriver(brokers.address, tmp_path, 40, job=job) as driver:
            driver.catch_up(2)
            brokers.kill()
            await_true("one broker", lambda: len(client.brokers()) == 1)
            for topic in driver._job._own_topics():
                driver._job.client.forget_route(topic)
            restart = threading.Timer(1, brokers.restart)
            restart.start()
            driver.catch_up()
            restart.join()
        assert checkers.finish(feeder.stop()) == []


def test_messages_at_one_position_of_two_brokers_count_in_the_windows_of_their_own_queue(
    brokers: RocketBrokers, tmp_path: Path
) -> None:
    """One queue is an hour ahead of the other: what is taken for one of its messages is late."""
    events, counts, filler = "two-logs", "two-logs-counts", "two-logs-filler"
    with Client(brokers.address) as client:
        for topic in (events, counts, filler):
            Admin(client).create_topic(topic, queues=1)
        align(client, client.queues(filler, for_="write"))
        queues = sorted(client.queues(events, for_="write"), key=lambda queue: queue.broker)
        for number in range(PAIRS):
            for hours, queue in enumerate(queues):
                born = 1_700_000_000_000 + 1000 * number + 3_600_000 * hours
                Producer(client).send(Message(topic=events, body=b"word", born=born), queue)
        for queue in queues:
            await_messages(client, queue, PAIRS)
        first, second = (set(positions(client, queue)) for queue in queues)
        assert len(first & second) > PAIRS // 2
        job = tumbling_counts("two-logs", events, counts, timestamp="message")
        with LocalDriver(brokers.address, tmp_path, 10_000, job=job, partitions=1) as driver:
            driver.catch_up()
            counters = Counter[str]()
            for summary in driver.summaries:
                counters.update(summary.counters)
        assert counters["records_in"] == len(first) + len(second)
        assert counters["late"] == 0


def align(client: Client, queues: Sequence[MessageQueue]) -> None:
    """Bring the logs of two brokers to the same length."""
    ends: dict[MessageQueue, int] = {}
    for extra in (0, 1):
        behind = max(ends.values(), default=0)
        for queue in queues:
            body = b"x" * (1 + extra * (behind - ends.get(queue, behind)))
            Producer(client).send(Message(topic=queue.topic, body=body, born=1), queue)
            await_messages(client, queue, 1 + extra)
            ends[queue] = positions(client, queue)[-1]


def positions(client: Client, queue: MessageQueue) -> list[int]:
    """Read where the messages of a queue are in their broker's log."""
    consumer = PullConsumer(client)
    blocks = consumer.blocks(queue, 0, consumer.end_offset(queue))
    return [position for block in blocks for position in block.columns().position.tolist()]
