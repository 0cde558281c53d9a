from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.client import (
    AsyncClient,
    AsyncProducer,
    AsyncPullConsumer,
    Client,
    ClientSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
)
from headrace.errors import InvalidParameterError, OffsetExpiredError, TopicNotFoundError
from tests.clusters import Cluster, await_messages

MakeTopic = Callable[..., str]


@pytest.fixture
def filled(client: Client, make_topic: MakeTopic) -> MessageQueue:
    """A queue with a thousand messages."""
    (queue,) = client.queues(make_topic(queues=1))
    bodies = pa.array([b"message %d" % number for number in range(1000)])
    Producer(client).send_columns(queue, bodies)
    await_messages(client, queue, 1000)
    return queue


def test_a_pull_begins_at_its_offset(client: Client, filled: MessageQueue) -> None:
    result = PullConsumer(client).pull(filled, 100, max_messages=10)
    assert result.status is PullStatus.FOUND
    assert (result.next_offset, result.min_offset, result.max_offset) == (110, 0, 1000)
    assert [m.queue_offset for m in result.messages()] == list(range(100, 110))
    assert result.columns().body.to_pylist() == [b"message %d" % n for n in range(100, 110)]


def test_the_end_and_offsets_outside_are_told_apart(client: Client, filled: MessageQueue) -> None:
    consumer = PullConsumer(client)
    at_end = consumer.pull(filled, 1000)
    assert (at_end.status, at_end.next_offset, bytes(at_end.block)) == (
        PullStatus.AT_END,
        1000,
        b"",
    )
    beyond = consumer.pull(filled, 5000)
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_MOVED, 1000)


def test_an_empty_queue_is_at_its_end(client: Client, make_topic: MakeTopic) -> None:
    (queue,) = client.queues(make_topic(queues=1))
    result = PullConsumer(client).pull(queue, 0)
    assert (result.status, result.next_offset) == (PullStatus.AT_END, 0)


@pytest.mark.parametrize("ahead", [0, 1, 16])
@pytest.mark.parametrize("end", [1, 500, 1000])
def test_blocks_hold_each_message_of_the_range_once(
    client: Client, filled: MessageQueue, ahead: int, end: int
) -> None:
    consumer = PullConsumer(client)
    blocks = list(consumer.blocks(filled, 0, end, max_bytes=8192, ahead=ahead))
    offsets = [n for block in blocks for n in block.columns().queue_offset.tolist()]
    assert offsets[:end] == list(range(end))
    assert consumer.statistics().bytes >= sum(len(block.block) for block in blocks)


def test_blocks_of_an_empty_range_ask_for_nothing(client: Client, filled: MessageQueue) -> None:
    consumer = PullConsumer(client)
    assert list(consumer.blocks(filled, 7, 7)) == []
    assert consumer.statistics().pulls == 0


def test_a_reader_of_blocks_may_stop_early(client: Client, filled: MessageQueue) -> None:
    blocks = PullConsumer(client).blocks(filled, 0, 1000, max_bytes=4096)
    first = next(blocks)
    assert first.messages()[0].queue_offset == 0
    del blocks
    assert PullConsumer(client).pull(filled, 0).status is PullStatus.FOUND


def test_a_range_that_is_not_there_is_an_error(cluster: Cluster, filled: MessageQueue) -> None:
    hasty = ClientSettings(request_timeout=timedelta(seconds=0.5))
    with Client(cluster.namesrv, hasty) as client, pytest.raises(OffsetExpiredError) as caught:
        list(PullConsumer(client).blocks(filled, 900, 1100))
    assert f"queue {filled} was to be read from 1000 to 1100" in str(caught.value)
    assert "holds 0 to 1000" in str(caught.value)


def test_a_range_is_awaited_that_is_still_to_come(client: Client, filled: MessageQueue) -> None:
    topic = filled.topic
    late = threading.Timer(0.2, lambda: Producer(client).send(Message(topic=topic, body=b"late")))
    late.start()
    *_, last = PullConsumer(client).blocks(filled, 990, 1001)
    assert last.messages()[-1].body == b"late"
    late.join()


def test_a_waiting_pull_is_woken_by_a_message(client: Client, make_topic: MakeTopic) -> None:
    (queue,) = client.queues(make_topic(queues=1))
    sender = threading.Timer(
        0.3, lambda: Producer(client).send(Message(topic=queue.topic, body=b"x"))
    )
    sender.start()
    started = time.monotonic()
    result = PullConsumer(client).pull(queue, 0, wait=timedelta(seconds=20))
    assert result.status is PullStatus.FOUND
    assert 0.2 < time.monotonic() - started < 5
    sender.join()


def test_pulls_on_one_connection_do_not_wait_for_one_another(
    cluster: Cluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)

    async def scenario() -> bool:
        async with AsyncClient(cluster.namesrv) as client:
            first, second = await client.queues(topic)
            await AsyncProducer(client).send(Message(topic=topic, body=b"x"), second)
            consumer = AsyncPullConsumer(client)
            held = asyncio.create_task(consumer.pull(first, 0, wait=timedelta(seconds=20)))
            await asyncio.sleep(0.05)
            await consumer.pull(second, 0)
            waited = not held.done()
            await AsyncProducer(client).send(Message(topic=topic, body=b"x"), first)
            await held
            return waited

    assert asyncio.run(scenario())


def test_tags_select(client: Client, make_topic: MakeTopic) -> None:
    (queue,) = client.queues(make_topic(queues=1))
    messages = [Message(topic=queue.topic, body=b"%d" % n, tags=f"t{n % 5}") for n in range(20)]
    Producer(client).send_batch(messages, queue)
    await_messages(client, queue, 20)
    consumer = PullConsumer(client)
    result = consumer.pull(queue, 0, tags="t1 || t3")
    assert [m.tags for m in result.messages()] == ["t1", "t3"] * 4
    nothing = consumer.pull(queue, 0, tags="other")
    assert nothing.status in (PullStatus.NO_MATCH, PullStatus.AT_END)
    assert nothing.next_offset == 20


def test_offsets_and_times(client: Client, make_topic: MakeTopic) -> None:
    queues = client.queues(make_topic(queues=2))
    first, second = queues
    consumer = PullConsumer(client)
    assert consumer.begin_offsets(queues) == dict.fromkeys(queues, 0)
    assert consumer.end_offsets(queues) == dict.fromkeys(queues, 0)
    producer = Producer(client)
    producer.send(Message(topic=first.topic, body=b"before"), first)
    time.sleep(0.005)
    between = datetime.now(UTC)
    producer.send(Message(topic=first.topic, body=b"after"), first)
    await_messages(client, first, 2)
    assert consumer.end_offsets(queues) == {first: 2, second: 0}
    assert consumer.offset_for_time(first, between) == 1
    assert consumer.offset_for_time(first, between - timedelta(hours=1)) == 0
    assert consumer.offsets_for_time(queues, between + timedelta(hours=1)) == {first: 2, second: 0}


def test_committed_offsets_are_kept_by_group(client: Client, filled: MessageQueue) -> None:
    one = PullConsumer(client, f"{filled.topic}-one")
    other = PullConsumer(client, f"{filled.topic}-other")
    assert one.committed(filled) is None
    one.commit({filled: 400})
    other.commit({filled: 1000})
    assert (one.committed(filled), other.committed(filled)) == (400, 1000)


def test_first_offset_of_a_topic_on_a_broker_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # RocketMQ 5.3 keeps one of two that come at once.
    async def commit_twice() -> list[str]:
        steps: list[str] = []

        async def commit(_: AsyncPullConsumer, queue: MessageQueue, offset: int) -> None:
            steps.append(f"{queue.topic} {offset}")
            await asyncio.sleep(0)
            steps.append("done")

        async with AsyncClient("127.0.0.1:1") as client:
            consumer = AsyncPullConsumer(client, "readers")
            monkeypatch.setattr(AsyncPullConsumer, "_commit", commit)
            monkeypatch.setattr(consumer, "_group_exists", True)
            for offset in (1, 2):
                await consumer.commit({MessageQueue("t", "b", n): offset for n in range(3)})
        return steps

    first, second = ["t 1", "done", "t 1", "t 1", "done", "done"], ["t 2"] * 3 + ["done"] * 3
    assert asyncio.run(commit_twice()) == first + second


def test_a_missing_queue_and_a_missing_topic_are_refused(
    client: Client, filled: MessageQueue
) -> None:
    consumer = PullConsumer(client)
    with pytest.raises(InvalidParameterError):
        consumer.pull(MessageQueue(filled.topic, filled.broker, 77), 0)
    with pytest.raises(TopicNotFoundError):
        consumer.pull(MessageQueue("not-there", filled.broker, 0), 0)
