from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.client import (
    Client,
    ClientSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StoredMessage,
)
from headrace.errors import (
    ConfigurationError,
    MessageRejectedError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from headrace.keys import encode_key, partition_of
from tests.clusters import Cluster, await_messages

MakeTopic = Callable[..., str]


def test_a_message_arrives_as_it_was_sent(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    before = datetime.now(UTC).timestamp() * 1000
    result = Producer(client, "senders").send(
        Message(
            topic=topic,
            body="Grüße".encode(),
            keys="order-1 order-2",
            tags="red",
            properties={"color": "crimson"},
            born=1_234_567_890_123,
            flag=7,
        )
    )
    (queue,) = client.queues(topic)
    assert (result.queue, result.offset, result.count) == (queue, 0, 1)
    assert len(result.offset_id) == 32
    await_messages(client, queue, 1)
    (message,) = PullConsumer(client).pull(queue, 0).messages()
    assert message.body == "Grüße".encode()
    assert (message.keys, message.tags, message.flag) == ("order-1 order-2", "red", 7)
    assert message.properties["color"] == "crimson"
    assert message.born == 1_234_567_890_123
    assert message.stored >= before - 1000
    assert (message.topic, message.queue_id, message.queue_offset) == (topic, 0, 0)


def test_messages_without_a_key_go_to_all_queues_in_turn(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=3)
    producer = Producer(client)
    queues = [producer.send(Message(topic=topic, body=b"x")).queue.queue_id for _ in range(6)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2]


def test_one_key_goes_to_one_queue_by_the_documented_hash(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=4)
    producer = Producer(client)
    for key in ("a", "b", "Grüße", "word-17"):
        expected = partition_of(encode_key(key), 4)
        for _ in range(2):
            assert (
                producer.send(Message(topic=topic, body=b"x", keys=key)).queue.queue_id == expected
            )


def test_a_sharding_key_chooses_the_queue_before_the_key_does(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=4)
    producer = Producer(client)
    expected = client.queues(topic)[partition_of(encode_key("customer-7"), 4)]
    assert producer.queue_for(topic, "customer-7") == expected
    for number in range(4):
        message = Message(topic=topic, body=b"x", keys=f"order-{number}", sharding_key="customer-7")
        result = producer.send(message)
        assert (result.queue, result.offset) == (expected, number)
    await_messages(client, expected, 4)
    found = PullConsumer(client).pull(expected, 0).messages()
    assert {message.sharding_key for message in found} == {"customer-7"}
    assert [message.keys for message in found] == [f"order-{number}" for number in range(4)]


def test_one_way_messages_arrive(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    producer = Producer(client)
    pending = client.statistics().pending
    for number in range(20):
        producer.send_oneway(Message(topic=topic, body=b"%d" % number))
    assert client.statistics().pending == pending
    await_messages(client, queue, 20)
    found = PullConsumer(client).pull(queue, 0).messages()
    # RocketMQ handles requests on many threads.
    assert {message.body for message in found} == {b"%d" % number for number in range(20)}


def test_delayed_messages_come_late_by_level_delay_and_time(
    cluster: Cluster, client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    producer = Producer(client)
    begin = datetime.now(UTC)
    second = timedelta(seconds=1)
    producer.send(Message(topic=topic, body=b"level", delay_level=1))
    producer.send(Message(topic=topic, body=b"delay", delay=second))
    producer.send(Message(topic=topic, body=b"time", deliver_at=begin + second))
    producer.send(Message(topic=topic, body=b"past", deliver_at=begin - second))
    await_messages(client, queue, 4)
    found = PullConsumer(client).pull(queue, 0).messages()
    assert found[0].body == b"past"
    assert {message.body for message in found} == {b"level", b"delay", b"time", b"past"}
    # Timers of RocketMQ tick by the second.
    earliest = begin.timestamp() + 0.9
    assert all(message.stored / 1000 > earliest for message in found[1:])


def test_a_delayed_message_is_refused_in_a_batch_and_with_two_delays(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    producer = Producer(client)
    for send in (producer.send_batch, producer.send_many):
        with pytest.raises(ConfigurationError, match="holds a delayed message"):
            send([Message(topic=topic, delay_level=1)])
    with pytest.raises(MessageRejectedError, match="two delays: DELAY, TIMER_DELAY_MS"):
        producer.send(Message(topic=topic, delay_level=1, delay=timedelta(seconds=1)))


def test_a_batch_keeps_its_order_and_each_message_its_own_properties(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    queue = client.queues(topic)[1]
    producer = Producer(client)
    messages = [
        Message(topic=topic, body=b"%d" % n, keys=f"k{n}", tags=f"t{n % 2}") for n in range(100)
    ]
    result = producer.send_batch(messages, queue)
    assert (result.queue, result.offset, result.count) == (queue, 0, 100)
    stored = PullConsumer(client)
    found = [message for block in stored.blocks(queue, 0, 100) for message in block.messages()]
    assert [message.body for message in found] == [b"%d" % n for n in range(100)]
    assert [message.keys for message in found] == [f"k{n}" for n in range(100)]
    assert [message.tags for message in found] == [f"t{n % 2}" for n in range(100)]
    statistics = producer.statistics()
    assert (statistics.messages, statistics.requests) == (100, 1)


def test_many_messages_go_to_the_queues_of_their_keys_in_their_order(
    cluster: Cluster, make_topic: MakeTopic
) -> None:
    with Client(cluster.namesrv, ClientSettings(batch_size=1000)) as client:
        keyed, alone = make_topic(queues=4), make_topic(queues=2)
        keys = [f"key-{n % 7}" for n in range(200)]
        messages = [
            Message(topic=keyed, body=b"%d" % n, keys=key, tags="red", flag=n, born=n // 100)
            for n, key in enumerate(keys)
        ]
        with Producer(client) as producer:
            results = producer.send_many([*messages, *[Message(topic=alone)] * 90])
            requests = producer.statistics().requests
            assert producer.send_many([]) == []
        assert (len(results), sum(result.count for result in results)) == (requests, 290)
        assert requests < 40
        without_key = [result.queue.queue_id for result in results if result.queue.topic == alone]
        assert sorted(without_key) == [0, 1]
        found: list[tuple[int, StoredMessage]] = []
        consumer = PullConsumer(client)
        # RocketMQ tells the end of a queue a moment later.
        ends = {one.queue: one.offset + one.count for one in results if one.queue.topic == keyed}
        for queue, end in ends.items():
            blocks = consumer.blocks(queue, 0, end)
            found += [(queue.queue_id, one) for block in blocks for one in block.messages()]
    for key in set(keys):
        own = [(queue, one) for queue, one in found if one.keys == key]
        assert {queue for queue, _ in own} == {partition_of(encode_key(key), 4)}
        numbers = [n for n, one in enumerate(keys) if one == key]
        assert [(one.flag, one.born, one.tags, one.body) for _, one in own] == [
            (n, n // 100, "red", b"%d" % n) for n in numbers
        ]


def test_columns_arrive_in_order_over_several_requests(
    cluster: Cluster, make_topic: MakeTopic
) -> None:
    settings = ClientSettings(batch_size=10_000)
    with Client(cluster.namesrv, settings) as client:
        (queue,) = client.queues(make_topic(queues=1))
        bodies = [b"body-%d" % n + b"." * (n % 50) for n in range(5000)]
        keys = [b"key-%d" % n if n % 3 else None for n in range(5000)]
        producer = Producer(client)
        results = producer.send_columns(queue, pa.array(bodies), pa.array(keys), born=42_000)
        assert len(results) > 10
        assert [sum(result.count for result in results), results[0].offset] == [5000, 0]
        blocks = list(PullConsumer(client).blocks(queue, 0, 5000))
        columns = [block.columns() for block in blocks]
    assert [body for part in columns for body in part.body.to_pylist()] == bodies
    assert [key for part in columns for key in part.property("KEYS").to_pylist()] == keys
    assert {born for part in columns for born in part.born.tolist()} == {42_000}
    offsets = [offset for part in columns for offset in part.queue_offset.tolist()]
    assert offsets == list(range(5000))


def test_raw_properties_may_be_sent_with_columns(client: Client, make_topic: MakeTopic) -> None:
    (queue,) = client.queues(make_topic(queues=1))
    properties = pa.array([b"KEYS\x01a\x02EXTRA\x01b\x02", b""])
    Producer(client).send_columns(queue, pa.array([b"1", b"2"]), properties=properties)
    await_messages(client, queue, 2)
    columns = PullConsumer(client).pull(queue, 0).columns()
    assert columns.property("EXTRA").to_pylist() == [b"b", None]
    with pytest.raises(ConfigurationError, match="not both"):
        Producer(client).send_columns(
            queue, pa.array([b"1"]), pa.array([b"k"]), properties=pa.array([b""])
        )


def test_large_bodies_are_compressed_when_asked(cluster: Cluster, make_topic: MakeTopic) -> None:
    with Client(cluster.namesrv, ClientSettings(compress_from=1000)) as client:
        (queue,) = client.queues(make_topic(queues=1))
        producer = Producer(client)
        for body in (b"small", b"large" * 10_000):
            producer.send(Message(topic=queue.topic, body=body))
        consumer = PullConsumer(client)
        found = list(consumer.blocks(queue, 0, 2))
        assert sum(len(block.block) for block in found) < 2000
        messages = [message for block in found for message in block.messages()]
        bodies = [body for block in found for body in block.columns().body.to_pylist()]
    assert [message.body for message in messages] == [b"small", b"large" * 10_000]
    assert bodies == [b"small", b"large" * 10_000]


def test_a_message_above_the_limit_is_refused_before_it_is_sent(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    producer = Producer(client)
    large = b"x" * (4 * 1024 * 1024 + 1)
    for send in (
        lambda: producer.send(Message(topic=topic, body=large)),
        lambda: producer.send_batch([Message(topic=topic, body=large)]),
        lambda: producer.send_many([Message(topic=topic), Message(topic=topic, body=large)]),
        lambda: producer.send_columns(queue, pa.array([large])),
    ):
        with pytest.raises(MessageTooLargeError, match=r"4194304 are allowed.*") as caught:
            send()
        assert topic in str(caught.value)
        assert "maxMessageSize" in str(caught.value)
    assert PullConsumer(client).end_offset(queue) == 0


def test_a_message_near_the_limit_arrives(client: Client, make_topic: MakeTopic) -> None:
    (queue,) = client.queues(make_topic(queues=1))
    body = b"x" * (4 * 1024 * 1024 - 2000)
    Producer(client).send(Message(topic=queue.topic, body=body))
    await_messages(client, queue, 1)
    (message,) = PullConsumer(client).pull(queue, 0, max_bytes=8 * 1024 * 1024).messages()
    assert message.body == body


def test_a_missing_topic_is_named(client: Client) -> None:
    with pytest.raises(TopicNotFoundError, match="'not-there' does not exist"):
        Producer(client).send(Message(topic="not-there", body=b"x"))
    with pytest.raises(TopicNotFoundError, match="'not-there' does not exist"):
        Producer(client).send_many(
            [Message(topic="not-there", keys="x"), Message(topic="not-there")]
        )


def test_a_batch_is_for_one_topic(client: Client) -> None:
    producer = Producer(client)
    with pytest.raises(ConfigurationError, match="no message"):
        producer.send_batch([])
    with pytest.raises(ConfigurationError, match=r"\['a', 'b'\]"):
        producer.send_batch([Message(topic="a", body=b""), Message(topic="b", body=b"")])


def test_threads_may_share_a_producer(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    producer = Producer(client)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: producer.send(Message(topic=topic, body=b"%d" % n)), range(200)))
    queues = client.queues(topic)
    while sum(PullConsumer(client).end_offsets(queues).values()) < 200:
        time.sleep(0.005)
    consumer = PullConsumer(client)
    ends = consumer.end_offsets(queues)
    found = {
        message.body
        for queue, end in ends.items()
        for block in consumer.blocks(queue, 0, end)
        for message in block.messages()
    }
    assert found == {b"%d" % n for n in range(200)}


def test_a_queue_that_does_not_exist_is_refused(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    with pytest.raises(Exception, match=r"SEND_MESSAGE_V2"):
        Producer(client).send(Message(topic=topic, body=b"x"), MessageQueue(topic, queue.broker, 9))
