"""The Java process does what it is told, and says what went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.broker.wire import Wire
from tests.java.clients import Java, JavaMessage
from tests.java.process import JavaError

pytestmark = pytest.mark.rocketmq


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t", queues=2)
        yield broker.address


def test_what_is_sent_in_any_way_is_pulled(java: Java, address: str) -> None:
    with java.producer(address) as producer, java.pull_consumer(address, "g") as consumer:
        queue = producer.queues("t")[1]
        for how in ("sync", "async", "oneway", "batch"):
            producer.send("t", JavaMessage(how.encode(), keys="k", tags="x"), how=how, queue=queue)
        deadline = time.monotonic() + 10
        while consumer.ask("bounds", queue=queue) != [0, 4]:
            assert time.monotonic() < deadline
        status, following, got = consumer.pull(queue, 0)
    assert (status, following) == ("FOUND", 4)
    assert {message.body for message in got} == {b"sync", b"async", b"oneway", b"batch"}
    assert {message.properties["KEYS"] for message in got} == {"k"}


def test_what_java_throws_is_an_error_with_its_code(java: Java, address: str) -> None:
    with java.producer(address) as producer, pytest.raises(JavaError) as caught:
        producer.send("t", b"x", queue=("t", "broker-a", 9))
    assert (caught.value.kind, caught.value.code) == ("MQBrokerException", 29)


def test_mqadmin_that_fails_leaves_the_process_alive(java: Java, address: str) -> None:
    with pytest.raises(JavaError, match="UnrecognizedOption"):
        java.mqadmin(address, "topicList", "-?")
    with pytest.raises(JavaError):
        java.mqadmin("127.0.0.1:1", "topicRoute", "-t", "t")
    assert "TBW102" in java.mqadmin(address, "topicList")


def test_killed_consumer_says_no_farewell(java: Java, address: str) -> None:
    consumer = java.push_consumer(address, "g", "t")
    with Wire(address) as wire:
        consumer.kill()
        assert wire.ask(38, consumerGroup="g").code == 1
