"""Topics of a real Kafka become records."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.connect import Header
from headrace.connect.connectors.kafka import KafkaSourceConnector
from headrace.connect.schema import BYTES
from headrace.connect.testing.contexts import KitOffsets
from headrace.errors import ConnectionFailedError, ConnectorConfigError, StateError
from tests.connect.connectors.sources import (
    NewSourceLife,
    SourceLife,
    await_that,
    task_configs,
    watching,
)
from tests.connect.servers.kafka import KafkaServer, running_kafka


@pytest.fixture
def life(kafka: KafkaServer, topic: str) -> NewSourceLife:
    committed = KitOffsets()

    def make(config: dict[str, str] | None = None) -> SourceLife:
        texts = {"kafka.bootstrap.servers": kafka.address, "kafka.topics": topic}
        return SourceLife(KafkaSourceConnector, texts | (config or {}), committed)

    return make


def send(kafka: KafkaServer, topic: str, count: int, start: int = 0, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(start, start + count):
        producer.produce(topic, key=b"k%d" % number, value=b"v%d" % number, **more)
    assert producer.flush(30) == 0


def numbers(records: list[Any]) -> list[int]:
    return sorted(int(record.value[1:]) for record in records)


def test_records_come_with_all_that_they_have(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(
        topic, key=None, value=b"", partition=2, timestamp=1234, headers=[("h", b"1"), ("h", None)]
    )
    producer.produce(topic, key=b"k", value=None, partition=2, timestamp=1235)
    producer.flush(30)
    with life({"topic.format": "from-${topic}"}) as one:
        first, second = one.until(2)
    assert (first.topic, first.queue, first.timestamp_ms) == (f"from-{topic}", None, 1234)
    assert (first.key, first.value) == (None, b"")
    optional = BYTES.as_optional()
    assert first.headers == (Header("h", b"1", optional), Header("h", None, optional))
    assert (second.key, second.value) == (b"k", None)
    assert (second.partition, second.offset) == (
        {"kafka_topic": topic, "kafka_partition": 2},
        {"kafka_offset": 2, "kafka_leader_epoch": 0},
    )


def test_a_new_life_goes_on_behind_what_was_committed(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    send(kafka, topic, 100)
    with life({"batch.max.rows": "10"}) as one:
        found = one.until(30)
        one.commit()
        one.until(10)
    with life() as two:
        found += two.until(100 - len(found))
        assert two.quiet(2) == []
    assert numbers(found) == list(range(100))


def test_records_of_aborted_and_open_transactions_are_left_out(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    settings = {"bootstrap.servers": kafka.address, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(30)
    for value, commit in ((b"v1", True), (b"v2", False), (b"v3", True)):
        producer.begin_transaction()
        producer.produce(topic, value=value, partition=0)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, value=b"v4", partition=0)
    producer.flush(30)
    with life() as one:
        assert numbers(one.until(2)) == [1, 3]
        assert one.quiet(1) == []
        producer.commit_transaction(30)
        assert numbers(one.until(1)) == [4]


def test_partitions_become_queues_where_that_is_wanted(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    send(kafka, topic, 2, partition=1)
    with life({"keep.partitions": "true"}) as one:
        assert [record.queue for record in one.until(2)] == [1, 1]


def test_latest_begins_at_the_end(life: NewSourceLife, kafka: KafkaServer, topic: str) -> None:
    send(kafka, topic, 5)
    with life({"start.from": "latest"}) as one:
        assert one.quiet(2) == []
        send(kafka, topic, 5, start=5)
        assert numbers(one.until(5)) == [5, 6, 7, 8, 9]


def test_deleted_records_that_were_not_read_are_a_failure(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    send(kafka, topic, 10, partition=0)
    with life({"batch.max.rows": "2"}) as one:
        one.until(2)
        one.commit()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for done in admin.delete_records([TopicPartition(topic, 0, 8)]).values():
        done.result(timeout=30)
    words = r"(?s)Partition 0 of .* no longer has.*reset the partition's offset"
    with life() as two, pytest.raises(StateError, match=words):
        two.until(1)


@pytest.mark.slow
def test_a_log_that_has_lost_its_end_is_a_failure_until_the_position_is_set() -> None:
    with running_kafka() as kafka, contextlib.ExitStack() as opened:
        topic = kafka.create_topic()
        texts = {"kafka.bootstrap.servers": kafka.address, "kafka.topics": topic}
        where = {"kafka_topic": topic, "kafka_partition": 0}
        ahead, behind = KitOffsets(), KitOffsets()
        behind.put(where, {"kafka_offset": 3, "kafka_leader_epoch": 0})
        send(kafka, topic, 5)
        with kafka.about_to_crash():
            send(kafka, topic, 5, start=5)
            with SourceLife(KafkaSourceConnector, texts, ahead) as one:
                one.until(10)
                one.commit()
            two = opened.enter_context(SourceLife(KafkaSourceConnector, texts, behind))
            two.until(7)
        kafka.start()
        # By its numbers, what has been read is a part of the log again.
        send(kafka, topic, 20, start=20)
        with pytest.raises(StateError, match=r"lost its records from offset 5 .*\n.*goes on there"):
            two.until(1)
        for _ in range(2):
            three = opened.enter_context(SourceLife(KafkaSourceConnector, texts, ahead))
            with pytest.raises(StateError, match=r"from offset 5 .*\n.*\{'kafka_offset': 5\}"):
                three.until(1)
        ahead.put(where, {"kafka_offset": 5})
        for committed, first in ((behind, [3, 4]), (ahead, [])):
            last = opened.enter_context(SourceLife(KafkaSourceConnector, texts, committed))
            assert numbers(last.until(len(first) + 20)) == [*first, *range(20, 40)]


def test_position_shows_in_kafkas_own_tools(
    life: NewSourceLife, kafka: KafkaServer, topic: str
) -> None:
    send(kafka, topic, 5, partition=0)
    with life() as one:
        one.until(5)
        one.commit()
        consumer = one.task._consumer  # type: ignore[attr-defined]
        deadline = 50
        while consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset != 5:
            deadline -= 1
            assert deadline, "the group's offset was never committed"
            one.poll()


class TestShares:
    """Topics and partitions are shared out among tasks."""

    def shares(self, kafka: KafkaServer, topics: str, count: int) -> list[str]:
        texts = {"kafka.bootstrap.servers": kafka.address, "kafka.topics": topics}
        return [
            one["task.partitions"]
            for one in task_configs(KafkaSourceConnector, texts, max_tasks=count)
        ]

    def test_are_of_partitions(self, kafka: KafkaServer, topic: str) -> None:
        assert self.shares(kafka, topic, 2) == [
            f'[["{topic}", 0], ["{topic}", 2]]',
            f'[["{topic}", 1]]',
        ]

    def test_follow_patterns(self, kafka: KafkaServer, topic: str) -> None:
        assert self.shares(kafka, f"^{topic[:-2]}.*", 9)[0] == f'[["{topic}", 0]]'

    def test_need_a_topic_that_exists(self, kafka: KafkaServer) -> None:
        with pytest.raises(ConnectorConfigError, match="no topic 'nothing'"):
            self.shares(kafka, "nothing", 1)

    def test_grow_with_new_topics(self, kafka: KafkaServer, topic: str) -> None:
        texts = {
            "kafka.bootstrap.servers": kafka.address,
            "kafka.topics": f"^{topic}.*",
            "topics.poll.interval.ms": "1000",
        }
        with watching(KafkaSourceConnector, texts) as asked:
            time.sleep(0.5)
            kafka.create(f"{topic}-more")
            await_that(lambda: asked.reconfigurations)


def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connect.connectors.kafka.source._ANSWER", 0.5)
    texts = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.topics": "a"}
    with pytest.raises(ConnectionFailedError, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        task_configs(KafkaSourceConnector, texts)


def test_passwords_reach_the_client_and_nothing_else(kafka: KafkaServer) -> None:
    from headrace.connect.connectors.kafka.settings import client_settings

    texts = {
        "kafka.bootstrap.servers": kafka.address,
        "kafka.topics": "a",
        "kafka.sasl.username": "me",
        "kafka.sasl.password": "swordfish",
    }
    config = KafkaSourceConnector.config.parse(texts)
    assert "swordfish" not in repr(config)
    settings = client_settings(config, "x")
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", "swordfish")
    assert "topics" not in settings
