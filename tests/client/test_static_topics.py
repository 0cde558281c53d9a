"""Static topics: queues with numbers of their own, wherever brokers hold them."""

from __future__ import annotations

import itertools
import os

import pytest

from headrace.client import (
    Admin,
    Client,
    GroupConsumer,
    GroupOptions,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
)
from headrace.client.pulling import topic_fields
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.routes import (
    LOGICAL_BROKER,
    BrokerData,
    MappingDetail,
    MappingInfo,
    MappingItem,
    QueueData,
    TopicRoute,
    dumps,
    loads,
)
from tests.client.test_groups import bodies
from tests.client.test_push import until
from tests.clusters import Cluster, await_messages

BROKER = "broker-a"
_numbers = itertools.count(1)


def item(queue_id: int, logic: int = 0, end: int = -1, gen: int = 0) -> MappingItem:
    return MappingItem(gen=gen, queue_id=queue_id, bname=BROKER, logic_offset=logic, end_offset=end)


def map_topic(client: Client, topic: str, hosted: dict[str, list[MappingItem]], epoch: int) -> None:
    """Say which of the broker's queues serve the queues of a static topic, the last of each now."""
    detail = MappingDetail(
        topic=topic,
        total_queues=len(hosted),
        bname=BROKER,
        epoch=epoch,
        hosted_queues=hosted,
        curr_id_map={number: items[-1].queue_id for number, items in hosted.items()},
    )
    fields = topic_fields(
        topic, 1 + max(i.queue_id for items in hosted.values() for i in items), {}
    )
    command = Command(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields | {"force": "true"}, dumps(detail)
    )
    client.ask_broker(BROKER, lambda: command)


def test_a_route_names_the_holder_of_each_queue() -> None:
    route = TopicRoute(
        broker_datas=[BrokerData(broker_name=name, broker_addrs={"0": name}) for name in "ab"],
        queue_datas=[QueueData(broker_name=name, read_queue_nums=9) for name in "ab"],
        topic_queue_mapping_by_broker={
            "a": MappingInfo(epoch=1, curr_id_map={"0": 4, "2": 5}),
            "b": MappingInfo(epoch=2, curr_id_map={"1": 0, "2": 1}),
        },
    )
    # Queue 2 moved to b with epoch 2; a has not heard of it.
    assert route.holders() == {0: "a", 1: "b", 2: "b"}
    assert [queue.queue_id for queue in route.readable_queues("t")] == [0, 1, 2]
    assert {queue.broker for queue in route.writable_queues("t")} == {LOGICAL_BROKER}
    assert loads(dumps(route), TopicRoute) == route


def test_sends_reads_and_groups_use_the_numbers_of_a_static_topic(
    cluster: Cluster, client: Client
) -> None:
    topic = f"static-{os.getpid()}-{next(_numbers)}"
    # Crosswise: number 0 is the broker's queue 1.
    map_topic(client, topic, {"0": [item(1)], "1": [item(0)]}, epoch=1)
    queues = client.queues(topic, refresh=True)
    while not queues:
        queues = client.queues(topic, refresh=True)
    first, second = queues
    assert first == MessageQueue(topic, LOGICAL_BROKER, 0)
    producer, reader = Producer(client), PullConsumer(client, f"{topic}-g")
    sent = producer.send_batch([Message(topic=topic, body=b"%d" % n) for n in range(5)], first)
    assert (sent.queue, sent.offset) == (first, 0)
    await_messages(client, first, 5)
    assert reader.end_offsets(queues) == {first: 5, second: 0}
    assert [m.queue_id for m in reader.pull(first, 2).messages()] == [0, 0, 0]
    assert reader.pull(first, 2).columns().queue_id.tolist() == [0, 0, 0]
    reader.commit({first: 3})
    assert reader.committed(first) == 3
    with GroupConsumer(client, f"{topic}-g", [topic], GroupOptions(start="first")) as consumer:
        assert consumer.assignment() == [first, second]
        assert bodies(consumer, 2) == [b"3", b"4"]
    assert Admin(client).message(first, 4).body == b"4"


@pytest.mark.rocketmq
def test_offsets_go_on_when_a_queue_has_moved(rocketmq: Cluster) -> None:
    topic = f"static-{os.getpid()}-{next(_numbers)}"
    with Client(rocketmq.namesrv) as client:
        map_topic(client, topic, {"0": [item(0)]}, epoch=1)
        while not (queues := client.queues(topic, refresh=True)):
            pass
        (queue,) = queues
        producer, reader = Producer(client), PullConsumer(client)
        for body in (b"a", b"b"):
            producer.send(Message(topic=topic, body=body), queue)
        await_messages(client, queue, 2)
        moved = {"0": [item(0, end=2), item(1, logic=10, gen=1)]}
        map_topic(client, topic, moved, epoch=2)
        sent = producer.send(Message(topic=topic, body=b"c"), queue)
        assert (sent.queue, sent.offset) == (queue, 10)
        until(lambda: reader.end_offset(queue) == 11)
        old = reader.pull(queue, 0)
        assert [(m.queue_offset, m.body) for m in old.messages()] == [(0, b"a"), (1, b"b")]
        new = reader.pull(queue, old.next_offset)
        while not new.block:
            new = reader.pull(queue, new.next_offset)
        assert [(m.queue_offset, m.body) for m in new.messages()] == [(10, b"c")]
        assert new.columns().queue_offset.tolist() == [10]
