"""Topics of another cluster become records, over anything that its brokers do."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import spawn_broker
from headrace.client import (
    Admin,
    Client,
    LocalTransactionState as State,
    Message,
    Producer,
    TransactionProducer,
)
from headrace.connect.connectors.rocketmq import RocketMQSourceConnector
from headrace.connect.connectors.rocketmq.sink import ORIGIN
from headrace.connect.records import SourceRecord
from headrace.connect.testing.sinks import SourceTaskKit
from headrace.errors import ConnectorConfigError, StateError
from headrace.keys import properties_of_key
from tests.clusters import await_messages
from tests.connect.connectors.rocketmq.conftest import NewSource, queue

NewTopic = Callable[..., str]


def send(client: Client, topic: str, *bodies: str, number: int = 0, **more: Any) -> None:
    producer = Producer(client)
    place = queue(topic, number)
    sent = [producer.send(Message(topic=topic, body=one.encode(), **more), place) for one in bodies]
    await_messages(client, place, sent[-1].offset + 1)


def bodies(records: list[SourceRecord]) -> list[str]:
    return [record.value.decode() for record in records]


def headers(record: SourceRecord) -> dict[str, Any]:
    return {one.key: one.value for one in record.headers}


def test_messages_come_with_all_that_they_have(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(4)
    told = {"tags": "red", "keys": "k 1", "properties": {"colour": "dark"}, "born": 1234}
    send(client, topic, "one", number=3, sharding_key="s", **told)
    with source(topic, {"topic.format": "far-${topic}"}) as kit:
        (record,) = kit.read(1)
        assert kit.task.queues_of(f"far-{topic}") == 4
    assert (record.topic, record.queue, record.timestamp_ms) == (f"far-{topic}", 3, 1234)
    assert (record.key, record.value) == (b"k 1", b"one")
    found = headers(record)
    assert found.pop("UNIQ_KEY")
    wanted = {"TAGS": "red", "colour": "dark", "__SHARDINGKEY": "s", ORIGIN: "there"}
    assert found == wanted
    assert record.partition == {
        "origin_topic": topic,
        "origin_broker": "broker-a",
        "origin_queue": 3,
    }
    assert record.offset == {"origin_offset": 1}


def test_they_become_messages_with_the_same_properties(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(1)
    typed = properties_of_key(7)
    send(client, topic, "text", keys="k", tags="red")
    send(client, topic, "typed", properties=typed)
    with source(topic, {"queue.by": "key"}) as kit:
        rows: list[dict[str, Any]] = []
        while len(rows) < 2:
            rows += kit.messages()
    assert (rows[0]["key"], rows[0]["value"], rows[0]["queue"]) == (b"k", b"text", None)
    assert rows[0]["properties"]["TAGS"] == "red"
    assert rows[1]["key"] is None
    assert typed.items() <= rows[1]["properties"].items()
    assert rows[1]["queue"] == 0


def test_a_new_life_goes_on_behind_what_was_committed(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(2)
    send(client, topic, "a", "b")
    with source(topic) as kit:
        assert bodies(kit.read(2)) == ["a", "b"]
        kit.commit()
        send(client, topic, "c")
        assert bodies(kit.read(1)) == ["c"]
        kit.restart()
        assert bodies(kit.read(1)) == ["c"]


def test_many_messages_come_in_order(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(2)
    producer = Producer(client)
    for number in range(2):
        batch = [Message(topic=topic, body=b"%d" % one) for one in range(3000)]
        producer.send_batch(batch, queue(topic, number))
        await_messages(client, queue(topic, number), 3000)
    with source(topic) as kit:
        records = kit.read(6000)
    for number in range(2):
        mine = [int(one.value) for one in records if one.queue == number]
        assert mine == list(range(3000))


def test_queues_are_shared_out_and_renamed(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    one, two = make_topic(3), make_topic(2)
    for topic, count in ((one, 3), (two, 2)):
        for number in range(count):
            send(client, topic, f"{topic} {number}", number=number)
    keys = {
        "topic.rename.regex": rf"(.*)-{two.rpartition('-')[2]}",
        "topic.rename.replacement": r"\1-new",
        "tasks.max": 2,
    }
    found: list[str] = []
    for number in range(2):
        with source(f"{one},^{two}", keys, number=number) as kit:
            assert len(kit.task_configs) == 2
            records = kit.read(3 - number)
            found += bodies(records)
            names = {record.topic for record in records}
            assert names == {one, two.rpartition("-")[0] + "-new"}
    assert sorted(found) == sorted(
        [f"{one} {number}" for number in range(3)] + [f"{two} {number}" for number in range(2)]
    )


def test_a_topic_that_is_missing_is_named(source: NewSource) -> None:
    with pytest.raises(ConnectorConfigError, match="has no topic 'nowhere'"), source("nowhere"):
        pass


def test_two_clusters_of_one_name_are_refused(make_topic: NewTopic, source: NewSource) -> None:
    with (
        pytest.raises(ConnectorConfigError, match=r"Both clusters are called 'there'"),
        source(make_topic(), {"local.cluster": "there"}),
    ):
        pass


class TestCircles:
    """Records that were replicated before."""

    def test_do_not_come_back(
        self, client: Client, make_topic: NewTopic, source: NewSource
    ) -> None:
        topic = make_topic(1)
        for origin in ("here", "elsewhere"):
            send(client, topic, origin, properties={ORIGIN: origin})
        with source(topic, {"local.cluster": "here"}) as kit:
            (record,) = kit.read(1)
        assert record.value == b"elsewhere"
        assert headers(record)[ORIGIN] == "elsewhere"

    def test_do_not_come_at_all_where_nobody_says_what_here_is(
        self, client: Client, make_topic: NewTopic, source: NewSource
    ) -> None:
        topic = make_topic(1)
        send(client, topic, "elsewhere", properties={ORIGIN: "elsewhere"})
        send(client, topic, "there")
        with source(topic) as kit:
            assert bodies(kit.read(1)) == ["there"]

    def test_are_passed_over_for_good(
        self, client: Client, make_topic: NewTopic, source: NewSource
    ) -> None:
        topic = make_topic(1)
        send(client, topic, "here", properties={ORIGIN: "here"})
        with source(topic, {"local.cluster": "here"}) as kit:
            _poll_until(kit, lambda: kit.positions != [])
            (position,) = kit.positions
        assert position[1] == {"origin_offset": 1}


def _poll_until(kit: SourceTaskKit, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert kit.poll() == []
        kit.commit()


class TestStart:
    """Queues that were never read."""

    def test_begin_at_their_first_message(
        self, client: Client, make_topic: NewTopic, source: NewSource
    ) -> None:
        topic = make_topic(1)
        send(client, topic, "old")
        with source(topic) as kit:
            assert bodies(kit.read(1)) == ["old"]

    def test_begin_at_their_end_and_miss_nothing_that_comes_while_nobody_reads(
        self, client: Client, make_topic: NewTopic, source: NewSource
    ) -> None:
        topic = make_topic(2)
        send(client, topic, "old")
        # Brokers know when a message came to the millisecond.
        time.sleep(0.005)
        with source(topic, {"start.from": "last"}) as kit:
            _poll_until(kit, lambda: kit.positions != [])
            kit.restart()
            send(client, topic, "new", number=1)
            kit.crash()
            assert bodies(kit.read(1)) == ["new"]

    def test_begin_at_a_time(self, client: Client, make_topic: NewTopic, source: NewSource) -> None:
        topic = make_topic(1)
        send(client, topic, "old")
        time.sleep(0.005)
        since = datetime.now(UTC)
        send(client, topic, "new")
        with source(topic, {"start.from": since.isoformat()}) as kit:
            assert bodies(kit.read(1)) == ["new"]


def test_open_transactions_and_delays_stay_out_of_sight(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(1)
    with TransactionProducer(client, "pg-replica", lambda _: State.UNKNOWN) as producer:
        half = producer.begin(Message(topic=topic, body=b"half"), queue(topic))
        late = Message(topic=topic, body=b"late", delay_level=1, tags="red")
        Producer(client).send(late, queue(topic))
        send(client, topic, "plain")
        with source(topic) as kit:
            assert bodies(kit.read(1)) == ["plain"]
            half.commit()
            producer.end(half)
            found = kit.read(2)
    assert sorted(bodies(found)) == ["half", "late"]
    for record in found:
        assert {"DELAY", "TRAN_MSG", "PGROUP"}.isdisjoint(headers(record))


def test_positions_show_in_the_other_cluster_as_a_group(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(1)
    send(client, topic, "a", "b")
    with source(topic, {"name": f"from-{topic}"}) as kit:
        kit.read(2)
        kit.commit()
    assert f"headrace-connect-from-{topic}" in Admin(client).topic_groups(topic)


def test_new_queues_and_topics_have_the_work_shared_out_anew(
    client: Client, make_topic: NewTopic, source: NewSource
) -> None:
    topic = make_topic(1)
    more = {"topics.poll.interval.ms": "1 s"}
    with source(f"^{topic}.*", more) as kit:
        kit.read_all(quiet=1)
        Admin(client).create_topic(f"{topic}-more", queues=1)
        deadline = time.monotonic() + 120
        while not kit.requests.reconfigurations:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def lost(tmp_path: Path, **more: str) -> tuple[SourceTaskKit, Any]:
    broker = spawn_broker(tmp_path / "broker", port=0)
    texts = {"rocketmq.namesrv": broker.address, "rocketmq.topics": "orders"}
    with Client(broker.address) as client:
        Admin(client).create_topic("orders", queues=1)
        send(client, "orders", "a")
    where = {"origin_topic": "orders", "origin_broker": "broker-a", "origin_queue": 0}
    return (
        SourceTaskKit(
            RocketMQSourceConnector, texts | more, offsets=[(where, {"origin_offset": 9})]
        ),
        broker,
    )


def test_messages_that_are_gone_are_never_passed_over(tmp_path: Path) -> None:
    kit, broker = lost(tmp_path)
    with broker, kit, pytest.raises(StateError, match=r"up to 1, and the next one to read is 9"):
        kit.read(1)


def test_reading_goes_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    broker = spawn_broker(tmp_path / "broker", port=0)
    port = int(broker.address.rpartition(":")[2])
    with Client(broker.address) as client:
        Admin(client).create_topic("orders", queues=1)
        send(client, "orders", "a", "b")
    texts = {"rocketmq.namesrv": broker.address, "rocketmq.topics": "orders"}
    with SourceTaskKit(RocketMQSourceConnector, texts) as kit:
        assert bodies(kit.read(2)) == ["a", "b"]
        broker.kill()
        assert kit.poll() == []
        with spawn_broker(tmp_path / "broker", port=port), Client(texts["rocketmq.namesrv"]) as two:
            send(two, "orders", "c")
            assert bodies(kit.read(1, timeout=timedelta(seconds=60))) == ["c"]
