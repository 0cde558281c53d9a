"""What RocketMQ's Java producers expect: each way to send, and messages that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.protocol.messages import StoredMessage, decode_messages
from tests.broker.test_delays import wait_for
from tests.broker.wire import Wire
from tests.java.clients import Java, JavaMessage, JavaProducer
from tests.java.process import JavaError

pytestmark = pytest.mark.rocketmq

SETTINGS = BrokerSettings(delay_levels="100ms 200ms")


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker, Wire(broker.address) as connected:
        connected.create("t", queues=4)
        yield connected


@pytest.fixture
def producer(java: Java, wire: Wire) -> Iterator[JavaProducer]:
    with java.producer(wire.address) as started:
        yield started


def stored(wire: Wire, count: int) -> list[StoredMessage]:
    """Wait for so many messages in all queues."""
    deadline = time.monotonic() + 10
    while True:
        answers = [wire.pull("t", queue, 0, maxMsgNums=1000) for queue in range(4)]
        found = [
            m for answer in answers if answer.code == 0 for m in decode_messages(answer.payload)
        ]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["sync", "async", "oneway"])
def test_messages_arrive_however_they_are_sent(
    wire: Wire, producer: JavaProducer, how: str
) -> None:
    bodies = [b"%d" % number for number in range(20)]
    sent = producer.start_send("t", *bodies, how=how)()
    found = stored(wire, 20)
    assert sorted(message.body for message in found) == sorted(bodies)
    if how != "oneway":
        assert {each.status for each in sent} == {"SEND_OK"}
        by_id = {message.offset_id: message for message in found}
        for each, body in zip(sent, bodies, strict=True):
            message = by_id[each.offset_id]
            assert (message.body, message.unique_key) == (body, each.msg_id)
            assert (message.queue_id, message.queue_offset) == (each.queue, each.offset)


def test_batch_arrives_with_an_id_for_each_message(wire: Wire, producer: JavaProducer) -> None:
    messages = [JavaMessage(b"%d" % number, tags="red") for number in range(20)]
    [sent] = producer.send("t", *messages, how="batch")
    found = stored(wire, 20)
    assert [message.body for message in found] == [message.body for message in messages]
    assert {message.tags for message in found} == {"red"}
    assert sent.offset_id.split(",") == [message.offset_id for message in found]
    assert sent.msg_id.split(",") == [message.unique_key for message in found]


def test_messages_of_one_sharding_key_keep_their_order(wire: Wire, producer: JavaProducer) -> None:
    messages = [JavaMessage(b"%d" % n, keys=f"order-{n % 5}") for n in range(50)]
    producer.send("t", *messages, how="hash")
    found = stored(wire, 50)
    for key in {message.keys for message in messages}:
        mine = [message for message in found if message.keys == key]
        assert len({message.queue_id for message in mine}) == 1
        assert [m.body for m in mine] == [m.body for m in messages if m.keys == key]


def test_large_body_comes_compressed_and_is_kept_so(
    wire: Wire, java: Java, producer: JavaProducer
) -> None:
    body = b"to be or not to be " * 1000
    producer.send("t", body, queue=("t", "broker-a", 0))
    [message] = stored(wire, 1)
    # Zlib, without the bit that says that the body is still compressed.
    assert (message.body, message.sys_flag) == (body, 768)
    assert message.size < 1000
    with java.pull_consumer(wire.address, "g") as consumer:
        assert consumer.pull(("t", "broker-a", 0), 0)[2][0].body == body


def test_first_message_creates_the_topic(wire: Wire, producer: JavaProducer) -> None:
    producer.send("new", b"x")
    assert len(producer.queues("new")) == 4
    producer.create_topic("DefaultCluster", "made", 3)
    assert len(producer.queues("made")) == 3


def test_delays_by_level_and_by_time(wire: Wire, producer: JavaProducer) -> None:
    now = time.time_ns() // 1_000_000
    waits = {
        b"level": (JavaMessage(b"level", delay_level=1), 100),
        b"ms": (JavaMessage(b"ms", delay_ms=300), 300),
        b"at": (JavaMessage(b"at", deliver_ms=now + 500), 500),
        b"seconds": (JavaMessage(b"seconds", delay_seconds=1), 1000),
    }
    producer.send("t", *(message for message, _ in waits.values()))
    found = stored(wire, 4)
    for message in found:
        assert 0 <= message.stored - now - waits[message.body][1] < 1000, message.body
    assert {message.body for message in found} == waits.keys()


def test_too_long_a_delay_is_refused_as_rocketmq_does(producer: JavaProducer) -> None:
    with pytest.raises(JavaError, match="timer message illegal") as caught:
        producer.send("t", JavaMessage(b"x", delay_seconds=3 * 86_400 + 1))
    assert caught.value.code == 13


def test_message_is_viewed_by_either_of_its_ids(wire: Wire, producer: JavaProducer) -> None:
    [sent] = producer.send("t", b"x")
    assert producer.view("t", sent.offset_id).body == b"x"
    assert producer.view("t", sent.msg_id).body == b"x"


def test_message_for_a_queue_waits_and_comes_back_to_it(wire: Wire, producer: JavaProducer) -> None:
    message = JavaMessage(b"x", delay_level=1)
    [sent] = producer.send("t", message, queue=("t", "broker-a", 3))
    assert sent.queue == 3
    assert wait_for(wire, 1, "t", 3)[0].body == b"x"
