"""What RocketMQ's Java consumers expect: sharing, order, retries, positions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from tests.broker.wire import Wire
from tests.java.clients import Java, JavaConsumer, JavaQueue
from tests.java.process import JavaError

pytestmark = pytest.mark.rocketmq

#: Java fails for the first time with level 3.
SETTINGS = BrokerSettings(delay_levels="50ms " * 18)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker, Wire(broker.address) as connected:
        connected.create("t", queues=4)
        yield connected


def put(wire: Wire, count: int, *, first: int = 0, tag: str = "") -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    for number, body in enumerate(bodies):
        wire.put("t", body, number % 4, i=f"TAGS\1{tag}\2" if tag else "")
    return bodies


def eventually(holds: Callable[[], bool], timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def shared(members: Sequence[JavaConsumer]) -> list[list[JavaQueue]]:
    return [member.assignment("t") for member in members]


def test_members_share_the_queues_and_take_over_from_who_leaves(java: Java, wire: Wire) -> None:
    with (
        java.push_consumer(wire.address, "g", "t") as left,
        java.push_consumer(wire.address, "g", "t") as right,
    ):
        eventually(lambda: sorted(map(len, shared([left, right]))) == [2, 2])
        bodies = put(wire, 40)
        eventually(lambda: len(left.taken()) + len(right.taken()) >= 40)
        got = [message.body for member in (left, right) for message in member.taken()]
        assert Counter(got) == Counter(bodies)
        assert left.taken()
        assert right.taken()
        # One dies without a word: its connection tells.
        right.kill()
        eventually(lambda: len(left.assignment("t")) == 4)
        put(wire, 20, first=100)
        eventually(lambda: {b"%d" % n for n in range(100, 120)} <= {m.body for m in left.taken()})


def test_every_member_of_a_broadcasting_group_gets_everything(java: Java, wire: Wire) -> None:
    with (
        java.push_consumer(wire.address, "b", "t", broadcast=True, instance="one") as one,
        java.push_consumer(wire.address, "b", "t", broadcast=True, instance="two") as two,
    ):
        bodies = put(wire, 20)
        for member in (one, two):
            assert sorted(member.bodies(20)) == sorted(bodies)


def test_tags_are_filtered_by_the_broker(java: Java, wire: Wire) -> None:
    put(wire, 8, tag="blue")
    red = put(wire, 8, first=100, tag="red")
    green = put(wire, 8, first=200, tag="green")
    with java.push_consumer(wire.address, "g", {"t": "red || green"}) as consumer:
        assert sorted(consumer.bodies(16)) == sorted(red + green)


def test_failed_message_comes_again_until_it_succeeds(java: Java, wire: Wire) -> None:
    put(wire, 4)
    with java.push_consumer(wire.address, "g", "t", fail={"2": 2}) as consumer:
        got = consumer.take(6)
    times = [message.reconsume_times for message in got if message.body == b"2"]
    assert times == [0, 1, 2]
    assert Counter(message.body for message in got) == {b"0": 1, b"1": 1, b"2": 3, b"3": 1}
    again = next(message for message in got if message.reconsume_times)
    assert again.topic == "t"
    assert again.properties["ORIGIN_MESSAGE_ID"]


def test_message_that_always_fails_becomes_a_dead_letter(java: Java, wire: Wire) -> None:
    put(wire, 1)
    with java.push_consumer(wire.address, "g", "t", fail={"0": -1}, max_reconsume_times=2) as one:
        assert [message.reconsume_times for message in one.take(3)] == [0, 1, 2]
        queue = ("%DLQ%g", "broker-a", 0)
        with java.pull_consumer(wire.address, "reader") as reader:
            eventually(lambda: bool(wire.pull("%DLQ%g").code == 0))
            [letter] = reader.pull(queue, 0)[2]
        assert len(one.taken()) == 3
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"0", "t")


def test_orderly_consumer_holds_the_queue_until_a_message_succeeds(java: Java, wire: Wire) -> None:
    for number in range(8):
        wire.put("t", b"%d" % number, number % 2)
    with java.push_consumer(
        wire.address, "g", "t", orderly=True, fail={"2": 2}, suspend_ms=20
    ) as consumer:
        got = consumer.take(10)
    even = [message.body for message in got if message.queue == 0]
    odd = [message.body for message in got if message.queue == 1]
    assert even == [b"0", b"2", b"2", b"2", b"4", b"6"]
    assert odd == [b"1", b"3", b"5", b"7"]


def test_orderly_consumer_gives_up_to_a_dead_letter(java: Java, wire: Wire) -> None:
    wire.put("t", b"bad")
    wire.put("t", b"good")
    always = {"bad": -1}
    with java.push_consumer(
        wire.address, "g", "t", orderly=True, fail=always, max_reconsume_times=1, suspend_ms=20
    ) as consumer:
        assert consumer.bodies(3) == [b"bad", b"bad", b"good"]
        eventually(lambda: wire.pull("%DLQ%g").code == 0)


def test_lite_consumer_assigns_seeks_and_commits(java: Java, wire: Wire) -> None:
    for number in range(10):
        wire.put("t", b"%d" % number, 1)
    queue = ("t", "broker-a", 1)
    with java.lite_consumer(wire.address, "g") as consumer:
        assert len(consumer.queues("t")) == 4
        consumer.assign([queue])
        # Java's seek() forgets a pull that is under way, whose messages then come first.
        # So each seek here waits for the end of the queue, where nothing is under way.
        assert len(consumer.bodies(10)) == 10
        consumer.seek(queue, 7)
        assert consumer.bodies(3) == [b"7", b"8", b"9"]
        consumer.seek(queue, 2)
        assert consumer.bodies(1)[:1] == [b"2"]
        eventually(lambda: len(consumer.bodies(1, 0.05)) == 0)
        consumer.commit()
        eventually(lambda: consumer.committed(queue) == 10)
    with java.lite_consumer(wire.address, "g") as consumer:
        consumer.assign([queue])
        wire.put("t", b"next", 1)
        assert consumer.bodies(1) == [b"next"]


def test_lite_consumer_seeks_by_time(java: Java, wire: Wire) -> None:
    queue = ("t", "broker-a", 0)
    wire.put("t", b"before")
    time.sleep(0.02)
    begin = time.time_ns() // 1_000_000
    wire.put("t", b"after")
    with java.lite_consumer(wire.address, "g") as consumer:
        consumer.assign([queue])
        assert consumer.bodies(2) == [b"before", b"after"]
        offset = consumer.offset_for(queue, begin)
        consumer.seek(queue, offset)
        assert (offset, consumer.bodies(1)) == (1, [b"after"])


def test_lite_members_share_what_they_subscribe_to(java: Java, wire: Wire) -> None:
    with (
        java.lite_consumer(wire.address, "g", "t", auto_commit=True) as left,
        java.lite_consumer(wire.address, "g", "t", auto_commit=True) as right,
    ):
        eventually(lambda: [len(m.assignment()) for m in (left, right)] == [2, 2])
        bodies = put(wire, 20)
        ends = [member.start_take(10) for member in (left, right)]
        got = [message.body for end in ends for message in end()]
        assert sorted(got) == sorted(bodies)


def test_new_group_begins_a_young_queue_at_its_start_whatever_it_says(
    java: Java, wire: Wire
) -> None:
    wire.put("t", b"0")
    with java.push_consumer(wire.address, "g", "t", start="LAST_OFFSET") as consumer:
        assert consumer.bodies(1) == [b"0"]


def test_pull_consumer_keeps_its_own_offsets(java: Java, wire: Wire) -> None:
    queue = ("t", "broker-a", 0)
    for number in range(3):
        wire.put("t", b"%d" % number)
    with java.pull_consumer(wire.address, "g") as consumer:
        assert consumer.ask("bounds", queue=queue) == [0, 3]
        assert consumer.pull(queue, 3)[0] == "NO_NEW_MSG"
        assert consumer.pull(queue, 9)[:2] == ("OFFSET_ILLEGAL", 3)
        assert consumer.pull(queue, 0, tags="none")[:2] == ("NO_MATCHED_MSG", 3)
        consumer.ask("commit", queue=queue, offset=2)
        eventually(lambda: consumer.ask("committed", queue=queue) == 2)
        assert consumer.ask("earliest", queue=queue) > 0


def test_java_is_told_that_sql_is_not_offered(java: Java, wire: Wire) -> None:
    with pytest.raises(JavaError, match="SQL92"):
        java.push_consumer(wire.address, "g", {}, sql={"t": "a > 1"})


def test_heartbeats_of_the_second_version_keep_the_group(java: Java, wire: Wire) -> None:
    def member() -> JavaConsumer:
        return java.push_consumer(wire.address, "g", "t", heartbeat_v2=True, heartbeat_ms=100)

    with member() as left, member() as right:
        eventually(lambda: sorted(map(len, shared([left, right]))) == [2, 2])
        time.sleep(0.4)
        bodies = put(wire, 8)
        eventually(lambda: len(left.taken()) + len(right.taken()) >= 8)
        got = [message.body for member in (left, right) for message in member.taken()]
        assert Counter(got) == Counter(bodies)
