from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

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
from headrace.errors import ConfigurationError, NotFoundError, TopicNotFoundError
from headrace.protocol.groups import SubscriptionGroupConfig
from tests.clusters import Cluster, await_messages
from tests.java.clients import Java

MakeTopic = Callable[..., str]


@pytest.fixture
def admin(client: Client) -> Admin:
    return Admin(client)


def test_a_topic_is_there_with_its_queues_when_create_returns(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=5)
    assert topic in admin.topics()
    assert admin.topic_exists(topic)
    for for_ in ("read", "write"):
        queues = client.queues(topic, for_=for_)
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3, 4]
        assert {queue.broker for queue in queues} == {"broker-a"}


def test_a_topic_may_get_more_queues(client: Client, admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    Producer(client).send(Message(topic=topic, body=b"x"))
    await_messages(client, client.queues(topic)[0], 1)
    admin.create_topic(topic, queues=3)
    queues = client.queues(topic, refresh=True)
    assert len(queues) == 3
    assert list(PullConsumer(client).end_offsets(queues).values()) == [1, 0, 0]


def test_attributes_are_kept(admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(attributes={"cleanup.policy": "COMPACTION"})
    (config,) = admin.topic_config(topic).values()
    assert config.topic_name == topic
    assert config.attributes["cleanup.policy"] == "COMPACTION"


def test_a_deleted_topic_is_gone(client: Client, admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic()
    Producer(client).send(Message(topic=topic, body=b"x"))
    admin.delete_topic(topic)
    assert not admin.topic_exists(topic)
    with pytest.raises(TopicNotFoundError):
        client.queues(topic)
    admin.delete_topic(topic)


def test_a_topic_without_queues_is_refused(admin: Admin) -> None:
    with pytest.raises(ConfigurationError, match="0 queues"):
        admin.create_topic("none", queues=0)


def test_topic_statistics_tell_what_each_queue_holds(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    first, second = client.queues(topic)
    for _ in range(3):
        Producer(client).send(Message(topic=topic, body=b"x"), first)
    await_messages(client, first, 3)
    statistics = admin.topic_stats(topic)
    assert list(statistics) == [first, second]
    assert (statistics[first].begin, statistics[first].end) == (0, 3)
    assert (statistics[second].begin, statistics[second].end) == (0, 0)
    updated = statistics[first].updated
    assert updated is not None
    assert abs(updated - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_progress_of_a_group_is_shown(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    group = f"{topic}-group"
    with pytest.raises(NotFoundError):
        admin.group_progress(f"{group}-nobody")
    for _ in range(10):
        Producer(client).send(Message(topic=topic, body=b"x"))
    await_messages(client, queue, 10)
    PullConsumer(client, group).commit({queue: 4})
    progress = admin.group_progress(group, topic)
    assert (progress[queue].offset, progress[queue].end, progress[queue].lag) == (4, 10, 6)
    admin.set_group_offsets(group, {queue: 9})
    assert admin.group_progress(group)[queue].lag == 1
    assert admin.group_members(group) == []


def test_one_message_can_be_read(client: Client, admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    Producer(client).send(Message(topic=topic, body=b"first"))
    Producer(client).send(Message(topic=topic, body=b"second"))
    await_messages(client, queue, 2)
    assert admin.message(queue, 1).body == b"second"
    with pytest.raises(NotFoundError, match="no message at 5"):
        admin.message(queue, 5)


def test_messages_are_found_by_id_and_by_key(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    producer = Producer(client)
    first = producer.send(Message(topic=topic, body=b"first", keys="k1 other"))
    producer.send(Message(topic=topic, body=b"second", keys="k2"))
    producer.send(Message(topic=topic, body=b"third", keys="k1"))
    assert admin.message_by_id(topic, first.offset_id).body == b"first"
    deadline = time.monotonic() + 10
    while len(found := admin.messages_by_key(topic, "k1")) < 2:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    assert sorted(message.body for message in found) == [b"first", b"third"]
    assert admin.messages_by_key(topic, "nothing") == []


def test_a_group_can_be_reset_to_a_time_and_deleted(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    Producer(client).send(Message(topic=topic, body=b"old"))
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    Producer(client).send(Message(topic=topic, body=b"new"))
    await_messages(client, queue, 2)
    group = f"{topic}-group"
    admin.reset_group(group, topic, between)
    assert group in admin.groups()
    assert PullConsumer(client, group).committed(queue) == 1
    admin.delete_group(group)
    assert group not in admin.groups()


def test_the_lag_of_any_group_is_told_by_queue_in_all_and_in_time(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    first, second = client.queues(topic)
    group = f"{topic}-group"
    with pytest.raises(NotFoundError, match="nothing tells what it reads"):
        admin.lag(group)
    producer = Producer(client)
    for number in range(5):
        producer.send(Message(topic=topic, body=b"%d" % number), first)
    producer.send(Message(topic=topic, body=b"x"), second)
    await_messages(client, first, 5)
    await_messages(client, second, 1)
    # A group that never connected has everything before it.
    never = admin.lag(group, topic)
    assert (never.total, never.queues[first].offset, never.queues[first].lag) == (6, None, 5)
    PullConsumer(client, group).commit({first: 3})
    time.sleep(0.05)
    producer.send(Message(topic=topic, body=b"new"), first)
    await_messages(client, first, 6)
    # It has offsets, but no member: its topics are known now.
    lag = admin.lag(group)
    assert list(lag.queues) == [first, second]
    assert (lag.queues[first].lag, lag.queues[second].lag, lag.total) == (3, 1, 4)
    assert timedelta(milliseconds=40) < lag.queues[first].behind <= lag.behind
    assert lag.behind < timedelta(minutes=1)
    PullConsumer(client, group).commit({first: 6, second: 1})
    done = admin.lag(group)
    assert (done.total, done.behind) == (0, timedelta(0))


def test_a_group_is_reset_to_either_end_while_its_members_run(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    group = f"{topic}-group"
    Producer(client).send_batch([Message(topic=topic, body=b"%d" % n) for n in range(3)], queue)
    await_messages(client, queue, 3)
    assert admin.reset_group(group, topic, "last") == {queue: 3}
    assert admin.lag(group, topic).total == 0
    options = GroupOptions(wait=timedelta(seconds=1))
    with GroupConsumer(client, group, [topic], options) as consumer:
        assert admin.reset_group(group, topic, "first") == {queue: 0}
        found: list[bytes] = []
        while len(found) < 3:
            found += [m.body for block in consumer.poll() for m in block.messages()]
    assert found == [b"0", b"1", b"2"]


def test_settings_of_a_group_are_read_and_changed(
    client: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    group = f"{make_topic(queues=1)}-group"
    with pytest.raises(NotFoundError, match="there is no group"):
        admin.group_config(group)
    admin.set_group_config(SubscriptionGroupConfig(group_name=group, retry_max_times=3))
    config = admin.group_config(group)
    assert (config.retry_max_times, config.consume_enable) == (3, True)
    config.retry_max_times = 5
    admin.set_group_config(config)
    assert admin.group_config(group).retry_max_times == 5


def test_brokers_report_themselves(client: Client, admin: Admin) -> None:
    assert list(client.brokers()) == ["broker-a"]
    assert admin.cluster_info().cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert "brokerVersionDesc" in admin.broker_status("broker-a")


def test_the_kind_of_broker_is_known(cluster: Cluster, client: Client) -> None:
    assert client.is_headrace() == (cluster.kind == "embedded")
    assert client.is_headrace("broker-a") == (cluster.kind == "embedded")


@pytest.mark.rocketmq
def test_rocketmqs_own_tool_shows_what_we_did(
    cluster: Cluster, client: Client, make_topic: MakeTopic, java: Java
) -> None:
    topic = make_topic(queues=2)
    first, second = client.queues(topic)
    for _ in range(7):
        Producer(client).send(Message(topic=topic, body=b"x"), second)
    await_messages(client, second, 7)
    PullConsumer(client, f"{topic}-group").commit({first: 0, second: 5})
    progress = java.mqadmin(cluster.namesrv, "consumerProgress", "-g", f"{topic}-group")
    assert _line(progress, topic, second)[:3] == ["7", "5", "2"]
    assert "Consume Diff Total: 2" in progress
    status = java.mqadmin(cluster.namesrv, "topicStatus", "-t", topic)
    assert _line(status, "broker-a", second)[:2] == ["0", "7"]


def _line(output: str, begins: str, queue: MessageQueue) -> list[str]:
    """Numbers behind a queue's id in a table that mqadmin printed."""
    pattern = rf"^{re.escape(begins)}\s+(?:broker-a\s+)?{queue.queue_id}\s+(.*)$"
    match = re.search(pattern, output, re.MULTILINE)
    assert match is not None, output
    return match.group(1).split()
