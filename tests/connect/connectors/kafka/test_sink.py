"""Topics become topics of a real Kafka."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.connect import Header, Queue, SchemaError, SinkRecord
from headrace.connect.connectors.kafka import KafkaSinkConnector, sink
from headrace.errors import FencedError, ProcessingError
from tests.connect.connectors.sinks import Life, ends, record
from tests.connect.servers.kafka import KafkaServer

NewLife = Callable[..., Life]
STANDING = b'{"next_offset":1,"owner":"x","generation":1}'


@pytest.fixture
def life(kafka: KafkaServer, topic: str) -> NewLife:
    def make(config: dict[str, str] | None = None, **more: Any) -> Life:
        texts = {
            "kafka.bootstrap.servers": kafka.address,
            "offsets.topic": f"{topic}-offsets",
            "transactional.id.prefix": f"{topic}-",
        }
        queues = more.pop("queues", [Queue(topic, "broker-a", 0)])
        return Life(KafkaSinkConnector, texts | (config or {}), queues=queues, **more)

    return make


@pytest.fixture
def batch(topic: str) -> Callable[..., list[SinkRecord]]:
    def make(start: int, end: int, queue: int = 0) -> list[SinkRecord]:
        place = Queue(topic, "broker-a", queue)
        return [
            record(at, b"v%d.%d" % (queue, at), b"k%d" % at, queue=place)
            for at in range(start, end)
        ]

    return make


Batch = Callable[..., list[SinkRecord]]


def read(kafka: KafkaServer, topic: str, partitions: int = 3) -> list[Any]:
    """All that a reader of committed records sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    left = set(range(partitions))
    deadline = time.monotonic() + 20
    while left:
        assert time.monotonic() < deadline
        for message in consumer.consume(100, timeout=0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    consumer.close()
    return found


def values(kafka: KafkaServer, topic: str) -> list[bytes]:
    return sorted(message.value() for message in read(kafka, topic))


def expected(end: int) -> list[bytes]:
    return sorted(b"v0.%d" % at for at in range(end))


def test_records_arrive_with_all_that_they_have(
    life: NewLife, kafka: KafkaServer, topic: str
) -> None:
    queue = Queue(topic, "broker-a", 0)
    made = record(0, "text", None, queue=queue).replace(
        timestamp_ms=1234, headers=(Header("h", b"1"), Header("n", None))
    )
    with life() as one:
        one.write([made, record(1, None, b"k", queue=queue)])
        assert one.offset == 2
    by_key = {message.key(): message for message in read(kafka, topic)}
    assert by_key[None].value() == b"text"
    assert by_key[None].timestamp()[1] == 1234
    assert by_key[None].headers() == [("h", b"1"), ("n", None)]
    assert by_key[b"k"].value() is None


def test_keys_choose_partitions_as_javas_clients_do(
    life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
) -> None:
    with life() as one:
        one.write(batch(0, 4))
    # By murmur2 of org.apache.kafka.common.utils.Utils, modulo three.
    assert {message.key(): message.partition() for message in read(kafka, topic)} == {
        key: (_murmur2(key) & 0x7FFFFFFF) % 3 for key in (b"k0", b"k1", b"k2", b"k3")
    }


def _murmur2(data: bytes) -> int:
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    found = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * factor & mask
        part = (part ^ (part >> 24)) * factor & mask
        found = (found * factor & mask) ^ part
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * factor & mask
    found = (found ^ (found >> 13)) * factor & mask
    return found ^ (found >> 15)


def test_queues_choose_partitions_where_that_is_wanted(
    life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
) -> None:
    queues = [Queue(topic, "broker-a", number) for number in (1, 5)]
    with life({"partition.by": "queue"}, queues=queues) as one:
        one.write(batch(0, 2, queue=1) + batch(0, 2, queue=5))
    assert sorted((one.partition(), one.value()) for one in read(kafka, topic)) == [
        (1, b"v1.0"),
        (1, b"v1.1"),
        (2, b"v5.0"),
        (2, b"v5.1"),
    ]


def test_columns_arrive_as_records_do(
    life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
) -> None:
    queues = [Queue(topic, "broker-a", number) for number in (0, 5)]
    records = [one.replace(timestamp_ms=1234) for one in batch(0, 3)] + batch(0, 2, queue=5)
    with life({"partition.by": "queue"}, queues=queues, columns=True) as one:
        one.write([records[0].replace(value=None), *records[1:2]])
        # What was sent before is left out.
        one.write(records)
        assert one.task.offsets() == {queues[0]: 3, queues[1]: 2}
    found = read(kafka, topic)
    assert sorted((one.partition(), one.key(), one.value() or b"") for one in found) == [
        (0, b"k0", b""),
        (0, b"k1", b"v0.1"),
        (0, b"k2", b"v0.2"),
        (2, b"k0", b"v5.0"),
        (2, b"k1", b"v5.1"),
    ]
    assert {one.timestamp()[1] for one in found if not one.partition()} == {1234}


@pytest.mark.parametrize("cause", [KafkaException(KafkaError(KafkaError._FENCED)), None])
def test_a_fatal_error_shows_also_where_kafka_called_back_on_top_of_it(
    cause: KafkaException | None,
) -> None:
    @sink._unmasked
    def flush() -> None:
        message = "<method 'append' of 'list' objects> returned a result with an exception set"
        raise SystemError(message) from cause

    with pytest.raises(type(cause) if cause else SystemError):
        flush()


class TestExactlyOnce:
    """Records and offsets are one transaction."""

    def test_records_that_were_sent_are_left_out_when_they_come_again(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.write(batch(0, 10))
        with life(generation=2) as two:
            assert two.offset == 10
            two.write(batch(0, 12))
        assert values(kafka, topic) == expected(12)

    def test_a_task_that_dies_before_the_commit_has_sent_nothing(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.write(batch(0, 3))
            producer = one.task._producer  # type: ignore[attr-defined]
            producer.begin_transaction()
            one.task._produce(producer, batch(3, 10))  # type: ignore[attr-defined]
            producer.flush(30)
            with life(generation=2) as two:
                assert two.offset == 3
                two.write(batch(3, 10))
        assert values(kafka, topic) == expected(10)

    def test_a_commit_whose_answer_is_lost_is_not_repeated(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            commit = one.task._commit  # type: ignore[attr-defined]

            def lose(producer: Any) -> None:
                commit(producer)
                raise KafkaException(KafkaError(KafkaError._STATE, "lost", fatal=True))

            one.task._commit = lose  # type: ignore[attr-defined]
            with pytest.raises(KafkaException):
                one.write(batch(0, 5))
        with life(generation=2) as two:
            assert two.offset == 5
            two.write(batch(0, 7))
        assert values(kafka, topic) == expected(7)

    def test_a_failure_that_passes_is_tried_again(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            commit = one.task._commit  # type: ignore[attr-defined]
            failures = [KafkaError(KafkaError._TIMED_OUT, txn_requires_abort=True)]

            def fail_once(producer: Any) -> None:
                if failures:
                    raise KafkaException(failures.pop())
                commit(producer)

            one.task._commit = fail_once  # type: ignore[attr-defined]
            one.write(batch(0, 5))
        assert values(kafka, topic) == expected(5)

    def test_records_behind_the_committed_offset_are_not_sent(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.task.put(batch(0, 10))
            one.task.flush(ends(batch(0, 6)))
            one.write(batch(6, 10))
        assert values(kafka, topic) == expected(10)

    def test_a_zombie_of_the_same_task_cannot_write(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as zombie:
            zombie.write(batch(0, 1))
            with life(generation=2) as successor:
                with pytest.raises(FencedError):
                    zombie.write(batch(1, 2))
                successor.write(batch(1, 3))
        assert values(kafka, topic) == expected(3)

    def test_a_zombie_of_another_task_cannot_write(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        other = life({"transactional.id.prefix": f"{topic}-other-"})
        with other as zombie:
            zombie.write(batch(0, 1))
            with life(generation=2) as successor:
                assert successor.offset == 1
                with pytest.raises(FencedError):
                    zombie.write(batch(1, 2))
                successor.write(batch(1, 3))
        assert values(kafka, topic) == expected(3)

    def test_a_zombie_stops_whatever_kafka_says(self, life: NewLife) -> None:
        class Fenced:
            def purge(self) -> None:
                """Do nothing."""

            def flush(self, _timeout: float) -> None:
                raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

        with life() as zombie:
            leaving, zombie.task._producer = zombie.task._producer, Fenced()  # type: ignore[attr-defined]
            zombie.task.stop()
            zombie.task._producer = leaving  # type: ignore[attr-defined]

    def test_a_zombie_cannot_take_its_queue_back(self, life: NewLife, topic: str) -> None:
        late = life({"transactional.id.prefix": f"{topic}-other-"}, generation=4)
        with life(generation=5), pytest.raises(FencedError, match="generation 5"), late:
            pass

    def test_an_open_transaction_of_another_task_hides_no_offset(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.write(batch(0, 1))
            other = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic})
            other.init_transactions(30)
            other.begin_transaction()
            other.produce(f"{topic}-offsets", partition=0, key=b'["t","b",9]', value=STANDING)
            other.flush(30)
            one.write(batch(1, 3))
        ending = threading.Timer(1.0, other.commit_transaction, [30])
        ending.start()
        with life(generation=2) as two:
            assert two.offset == 3
        ending.join()

    def test_offsets_are_set_by_hand(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.write(batch(0, 3))
        connector = KafkaSinkConnector()
        connector.context = one.context  # type: ignore[assignment]
        where = {
            "rocketmq_topic": topic,
            "rocketmq_broker": "broker-a",
            "rocketmq_queue_id": 0,
        }
        config = connector.config.parse(one.config)
        assert connector.alter_offsets(config, [(where, {"rocketmq_queue_offset": 1})])
        with life(generation=2) as two:
            assert two.offset == 1
        assert connector.alter_offsets(config, [(where, None)])
        with life(generation=3) as three:
            assert three.offset is None

    def test_offsets_are_kept_in_a_compacted_topic(
        self, life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
    ) -> None:
        with life() as one:
            one.write(batch(0, 3))
        last = read(kafka, f"{topic}-offsets", 1)[-1]
        assert json.loads(last.key()) == [topic, "broker-a", 0]
        assert json.loads(last.value())["next_offset"] == 3


class TestRefusals:
    """Kafka does not take some records."""

    @pytest.fixture
    def bad(self, batch: Batch) -> list[SinkRecord]:
        found = batch(0, 5)
        found[2] = found[2].replace(value=b"x" * 2_000_000)
        return found

    @pytest.fixture(params=["records", "columns"])
    def columns(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param == "columns")

    @pytest.mark.parametrize("exactly", ["true", "false"])
    def test_are_reported_while_the_others_are_sent(
        self,
        life: NewLife,
        kafka: KafkaServer,
        topic: str,
        bad: list[SinkRecord],
        exactly: str,
        *,
        columns: bool,
    ) -> None:
        with life({"exactly.once": exactly}, tolerant=True, columns=columns) as one:
            one.write(bad)
            assert one.errant_offsets == [2]
        assert len(values(kafka, topic)) == 4

    def test_by_the_broker_are_found_too(
        self,
        life: NewLife,
        kafka: KafkaServer,
        topic: str,
        bad: list[SinkRecord],
        *,
        columns: bool,
    ) -> None:
        config = {"kafka.message.max.bytes": "4000000"}
        with life(config, tolerant=True, columns=columns) as one:
            one.write(bad)
            assert one.errant_offsets == [2]
        assert len(values(kafka, topic)) == 4

    def test_end_the_task_where_no_error_is_tolerated(
        self,
        life: NewLife,
        kafka: KafkaServer,
        topic: str,
        bad: list[SinkRecord],
        *,
        columns: bool,
    ) -> None:
        life = partial(life, columns=columns)
        with life() as one, pytest.raises(ProcessingError, match=r"(?s)record 2 of .*max\.bytes"):
            one.write(bad)
        assert values(kafka, topic) == []

    def test_name_values_that_are_no_bytes(self, life: NewLife, topic: str) -> None:
        queue = Queue(topic, "broker-a", 0)
        with life() as one, pytest.raises(SchemaError, match=r"value is dict.*\n.*ByteArrayCon"):
            one.write([record(0, {"a": 1}, queue=queue)])


def test_at_least_once_keeps_no_offsets(
    life: NewLife, kafka: KafkaServer, topic: str, batch: Batch
) -> None:
    for generation in (1, 2):
        with life({"exactly.once": "false"}, generation=generation) as one:
            one.write(batch(0, 3))
            assert one.task.offsets() is None
    assert len(values(kafka, topic)) == 6
