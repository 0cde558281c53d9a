"""What happens to clients when their broker dies and comes back, and when their process forks."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from headrace.broker import spawn_broker
from headrace.client import (
    Admin,
    Client,
    ClientSettings,
    GroupConsumer,
    GroupOptions,
    Message,
    Producer,
    PullConsumer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.broker import BrokerProcess
    from tests.clusters import Cluster


class Restartable:
    """An embedded broker that a test may kill and start again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: BrokerProcess = spawn_broker(folder)
        self.address = self._process.address

    def kill(self) -> None:
        self._process.kill()

    def start(self) -> None:
        self._process = spawn_broker(self._folder, int(self.address.rpartition(":")[2]))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restartable]:
    running = Restartable(tmp_path / "data")
    try:
        yield running
    finally:
        running.kill()


def test_sends_and_pulls_ride_out_a_killed_broker(broker: Restartable) -> None:
    stop = threading.Event()
    confirmed: list[bytes] = []
    with Client(broker.address) as client:
        Admin(client).create_topic("lines", queues=1)
        producer = Producer(client)

        def send() -> None:
            while not stop.is_set():
                body = b"%d" % len(confirmed)
                producer.send(Message(topic="lines", body=body))
                confirmed.append(body)

        sender = threading.Thread(target=send)
        sender.start()
        (queue,) = client.queues("lines")
        reader = PullConsumer(client)
        found: list[bytes] = []
        position = 0
        for restart in range(2):
            enough = len(confirmed) + 50
            while len(confirmed) < enough:
                time.sleep(0.005)
            broker.kill()
            broker.start()
            result = reader.pull(queue, position, wait=timedelta(seconds=5))
            assert result.messages(), f"nothing to read after restart {restart}"
            found += [message.body for message in result.messages()]
            position = result.next_offset
        stop.set()
        sender.join()
        for block in reader.blocks(queue, position, reader.end_offset(queue)):
            found += [message.body for message in block.messages()]
        assert client.statistics().retries > 0
    # Sends are tried again until they are confirmed: nothing is lost, little comes twice.
    assert list(dict.fromkeys(found)) == confirmed
    assert len(found) <= len(confirmed) + 2


def test_a_group_goes_on_after_a_killed_broker(broker: Restartable) -> None:
    settings = ClientSettings(
        rebalance_interval=timedelta(seconds=1), commit_interval=timedelta(seconds=0.2)
    )
    options = GroupOptions(start="first", wait=timedelta(seconds=1))
    with Client(broker.address, settings) as client:
        Admin(client).create_topic("lines", queues=2)
        producer = Producer(client)
        with GroupConsumer(client, "readers", ["lines"], options) as consumer:
            found: set[bytes] = set()
            for number in range(20):
                if number == 10:
                    broker.kill()
                    broker.start()
                producer.send(Message(topic="lines", body=b"%d" % number))
            deadline = time.monotonic() + 30
            while len(found) < 20:
                assert time.monotonic() < deadline, sorted(found)
                blocks = consumer.poll(timedelta(milliseconds=100))
                found |= {message.body for block in blocks for message in block.messages()}
            while Admin(client).group_members("readers") == []:
                assert time.monotonic() < deadline, "the group did not register again"
                time.sleep(0.05)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_client_works_on_both_sides_of_a_fork(embedded: Cluster) -> None:
    topic = f"fork-{os.getpid()}"
    with Client(embedded.namesrv) as client:
        Admin(client).create_topic(topic, queues=1)
        producer = Producer(client)
        producer.send(Message(topic=topic, body=b"before"))
        child = os.fork()
        if child == 0:
            try:
                producer.send(Message(topic=topic, body=b"child"))
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        producer.send(Message(topic=topic, body=b"after"))
        (queue,) = client.queues(topic)
        bodies = PullConsumer(client).pull(queue, 0).columns().body.to_pylist()
        assert client.statistics().retries == 0
    assert bodies == [b"before", b"child", b"after"]
