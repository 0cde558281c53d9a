"""A broker whose topics the name server has forgotten: a job that has run waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.errors import ConfigurationError, ConnectionFailedError, TopicNotFoundError
from headrace.protocol.routes import TopicRoute
from headrace.runtime.checks import read_cluster
from headrace.runtime.jobs.journal import abort, standings
from headrace.spark import worker
from headrace.streams import StreamBuilder
from tests.faults.harness import await_true
from tests.faults.local_driver import LocalDriver

#: Names of jobs whose own topics lie on the broker that stays, and on the one that goes.
HERE, THERE = "here", "forgotten"


class Pair:
    """A broker that is the name server, and another one that comes and goes, with the data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = ExitStack()
        self._port = 0
        self._away: EmbeddedBroker
        self._waiting: list[threading.Timer] = []
        stays = self._opened.enter_context(EmbeddedBroker(folder / "a"))
        self.address = stays.address
        self.client = self._opened.enter_context(Client(stays.address))
        self.start()
        await_true("both brokers", lambda: len(self.client.brokers()) == 2)
        for topic in ("lines", "copies"):
            Admin(self.client).create_topic(topic, queues=1, brokers=["broker-b"])

    def start(self) -> None:
        settings = BrokerSettings(broker_name="broker-b", name_servers=(self.address,))
        self._away = EmbeddedBroker(self._folder / "b", self._port, settings)
        self._away.start()
        self._port = int(self._away.address.rpartition(":")[2])

    def stop(self) -> None:
        """Stop the second broker; workers are new from here on, and know nothing."""
        self._away.stop()
        worker._connections.clear()
        for client in worker._clients.values():
            client.close()
        worker._clients.clear()

    def start_soon(self) -> None:
        self._waiting.append(threading.Timer(0.5, self.start))
        self._waiting[-1].start()

    def drive(self, job: str, **more: Any) -> LocalDriver:
        builder = StreamBuilder(job)
        builder.source("lines", serdes.string).sink("copies", serdes.string)
        return LocalDriver(self.address, self._folder, 5, job=builder.build(), partitions=1, **more)

    def send(self, count: int) -> None:
        (queue,) = self.client.queues("lines", for_="write", refresh=True)
        Producer(self.client).send_columns(queue, pa.array([b"line"] * count, pa.binary()))

    def copied(self) -> int:
        (queue,) = self.client.queues("copies", refresh=True)
        return PullConsumer(self.client).end_offset(queue)

    def close(self) -> None:
        for timer in self._waiting:
            timer.join()
        self._away.stop()
        self._opened.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


@pytest.mark.parametrize("job", [HERE, THERE])
def test_running_job_waits_for_a_broker_that_the_name_server_has_forgotten(
    pair: Pair, job: str
) -> None:
    pair.send(10)
    with pair.drive(job) as driver:
        driver.catch_up(1)
        pair.stop()
        for topic in driver._job._own_topics():
            driver._job.client.forget_route(topic)
        pair.start_soon()
        assert driver.catch_up() == 1
        assert pair.copied() == 10


@pytest.mark.parametrize(("job", "topic"), [(HERE, "lines"), (THERE, "forgotten-commitTopic")])
def test_start_of_a_job_that_has_run_waits_for_such_a_broker(
    pair: Pair, job: str, topic: str
) -> None:
    pair.send(5)
    with pair.drive(job) as driver:
        driver.catch_up()
    pair.stop()
    with pytest.raises(ConnectionFailedError, match=f"the broker that holds {topic} is away"):
        pair.drive(job, retry_timeout="0.2 s")
    pair.start_soon()
    with pair.drive(job) as driver:
        assert driver.epoch == 2


def test_a_job_that_has_run_on_one_broker_does_not_begin_on_several(pair: Pair) -> None:
    pair.stop()
    for topic in ("lines", "copies"):
        Admin(pair.client).create_topic(topic, queues=1)
    pair.drive(HERE).close()
    pair.start()
    await_true("both brokers", lambda: len(pair.client.brokers()) == 2)
    with pytest.raises(ConfigurationError, match="shows several, on which none is"):
        pair.drive(HERE)


def test_a_job_of_several_brokers_is_taken_over_by_their_protocol_while_one_is_seen(
    pair: Pair,
) -> None:
    """Otherwise it would be one of a single broker from then on."""
    pair.send(10)
    with pair.drive(HERE) as driver:
        driver.catch_up(1)
    pair.stop()
    await_true("one broker", lambda: len(pair.client.brokers()) == 1)
    assert [job.record.job for job in standings(pair.client)] == [HERE]
    assert abort(pair.client, HERE).epoch == 1
    pair.start()
    await_true("both brokers", lambda: len(pair.client.brokers()) == 2)
    pair.send(10)
    with pair.drive(HERE) as driver:
        assert driver.epoch == 3
        driver.catch_up()
    assert pair.copied() == 20


def test_first_start_of_a_job_says_which_topic_to_make(pair: Pair) -> None:
    pair.stop()
    with pytest.raises(TopicNotFoundError, match="make it: headrace topic create lines --namesrv"):
        pair.drive(HERE)


def test_start_at_a_name_server_without_brokers_does_not_ask_for_topics_to_be_made() -> None:
    class Empty:
        asynchronous = None

        def route(self, topic: str, **_: object) -> TopicRoute:
            raise TopicNotFoundError(f"no route of {topic}")

        def brokers(self) -> dict[str, str]:
            return {}

    plan = SimpleNamespace(
        job="j", namesrv="ns:1", topology=SimpleNamespace(commit_topic="j-commitTopic")
    )
    job: Any = SimpleNamespace(client=Empty(), plan=plan)
    with pytest.raises(ConnectionFailedError, match="finds no broker at the name server ns:1"):
        read_cluster(job)
