from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from headrace.client import (
    Admin,
    Client,
    ClientSettings,
    GroupConsumer,
    GroupOptions,
    Message,
    Producer,
    PullConsumer,
)
from headrace.errors import ConfigurationError

MakeTopic = Callable[..., str]
FIRST = GroupOptions(start="first", wait=timedelta(seconds=2))
POLL = timedelta(milliseconds=50)


def bodies(consumer: GroupConsumer, count: int) -> list[bytes]:
    """Poll until so many messages have arrived."""
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages after 30 s"
        found += [m.body for block in consumer.poll(POLL) for m in block.messages()]
    return found


def await_shares(consumers: Iterable[GroupConsumer], sizes: list[int]) -> None:
    members = list(consumers)
    deadline = time.monotonic() + 30
    while sorted(len(member.assignment()) for member in members) != sizes:
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        time.sleep(0.05)


def send(client: Client, topic: str, count: int) -> set[bytes]:
    producer = Producer(client)
    messages = [b"%d" % number for number in range(count)]
    for body in messages:
        producer.send(Message(topic=topic, body=body))
    return set(messages)


def test_a_lone_member_reads_everything_from_the_first_offset(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=3)
    sent = send(client, topic, 30)
    with GroupConsumer(client, f"{topic}-g", [topic], FIRST) as consumer:
        assert consumer.assignment() == client.queues(topic)
        assert set(bodies(consumer, 30)) == sent
        assert Admin(client).group_members(f"{topic}-g")
        more = send(client, topic, 3)
        assert set(bodies(consumer, 3)) == more
        assert consumer.statistics().blocks > 0
    assert Admin(client).group_members(f"{topic}-g") == []


def test_by_default_a_new_group_begins_at_the_end(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    send(client, topic, 5)
    with GroupConsumer(client, f"{topic}-g", [topic]) as consumer:
        Producer(client).send(Message(topic=topic, body=b"new"))
        assert bodies(consumer, 1) == [b"new"]


def test_the_next_member_goes_on_where_the_last_one_left(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    send(client, topic, 10)
    options = GroupOptions(start="first", max_messages=4, auto_commit=False)
    with GroupConsumer(client, f"{topic}-g", [topic], options) as consumer:
        first = consumer.poll(timedelta(seconds=20))[0]
        (queue,) = consumer.assignment()
        consumer.commit()
        position = consumer.statistics().positions[queue]
        assert position >= first.next_offset
    assert PullConsumer(client, f"{topic}-g").committed(queue) == position
    with GroupConsumer(client, f"{topic}-g", [topic], FIRST) as consumer:
        assert bodies(consumer, 10 - position) == [b"%d" % n for n in range(position, 10)]


def test_offsets_are_committed_by_themselves_once_the_next_poll_asks_for_more(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    send(client, topic, 5)
    group = PullConsumer(client, f"{topic}-g")
    consumer = GroupConsumer(client, f"{topic}-g", [topic], FIRST)
    consumer.start()
    bodies(consumer, 5)
    consumer.close()
    assert (group.committed(queue) or 0) < 5
    with GroupConsumer(client, f"{topic}-g", [topic], FIRST) as consumer:
        bodies(consumer, 1)
    assert group.committed(queue) == 5


def test_members_share_the_queues_and_take_over_from_one_that_leaves(
    cluster_settings: Client, make_topic: MakeTopic
) -> None:
    client = cluster_settings
    topic = make_topic(queues=5)
    first = GroupConsumer(client, f"{topic}-g", [topic], FIRST)
    second = GroupConsumer(client, f"{topic}-g", [topic], FIRST)
    first.start()
    second.start()
    try:
        await_shares([first, second], [2, 3])
        together = first.assignment() + second.assignment()
        assert sorted(together) == client.queues(topic)
        sent = send(client, topic, 50)
        found: set[bytes] = set()
        deadline = time.monotonic() + 30
        while found != sent and time.monotonic() < deadline:
            for member in (first, second):
                found |= {m.body for block in member.poll(POLL) for m in block.messages()}
        assert found == sent
        second.close()
        await_shares([first], [5])
    finally:
        second.close()
        first.close()


@pytest.fixture
def cluster_settings(client: Client) -> Iterable[Client]:
    """A client that looks after its groups every second."""
    brisk = ClientSettings(rebalance_interval=timedelta(seconds=1))
    (address,) = client.asynchronous.name_servers
    with Client(address, brisk) as connected:
        yield connected


def test_a_group_without_topics_is_refused(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="subscribes to no topic"):
        GroupConsumer(client, "nobody", [])
