"""Groups whose members are Java's push consumers and ours."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.client import Client, Message, Producer, PushConsumer
from tests.client.test_push import Log, brisk, committed, options, send, until
from tests.clusters import Cluster
from tests.java.clients import Java, JavaGot

MakeTopic = Callable[..., str]

__all__ = ["brisk"]

pytestmark = pytest.mark.rocketmq


def test_members_in_java_and_here_share_queues_and_failures(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic, java: Java
) -> None:
    topic = make_topic(queues=5)
    group = f"{topic}-g"
    ours = Log()
    with PushConsumer(brisk, group, [topic], ours, options()) as consumer:
        with java.push_consumer(
            cluster.namesrv,
            group,
            topic,
            fail={"again": 1},
            level=1,
        ) as theirs:

            def shared() -> bool:
                mine = {(q.topic, q.broker, q.queue_id) for q in consumer.assignment()}
                other = set(theirs.assignment(topic))
                # The retry topic's only queue is one member's, too.
                mine_here = {queue for queue in mine if queue[0] == topic}
                return len(mine_here | other) == 5 == len(mine_here) + len(other)

            until(shared)
            send(brisk, topic, [b"%d" % number for number in range(100)])

            def all_there() -> bool:
                return len(ours.seen) + len(theirs.taken()) == 100

            until(all_there)
            bodies = set(ours.bodies) | {message.body for message in theirs.taken()}
            assert bodies == {b"%d" % number for number in range(100)}
            assert ours.seen
            assert theirs.taken()
            # Java fails with it; it comes again to either.
            java_queue = theirs.assignment(topic)[0][2]
            queue = next(q for q in brisk.queues(topic) if q.queue_id == java_queue)
            Producer(brisk).send(Message(topic=topic, body=b"again"), queue)
            until(lambda: _times(ours, theirs.taken(), b"again") == 2)
        # Java is gone: everything is ours.
        until(lambda: len([q for q in consumer.assignment() if q.topic == topic]) == 5)
        until(lambda: committed(brisk, group, topic) == 101)

        def all_read() -> bool:
            shown = java.mqadmin(cluster.namesrv, "consumerProgress", "-g", group)
            return "Consume Diff Total: 0" in shown

        until(all_read)


def _times(ours: Log, theirs: list[JavaGot], body: bytes) -> int:
    return ours.bodies.count(body) + sum(message.body == body for message in theirs)


def test_ordered_queues_are_locked_against_members_in_java(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic, java: Java
) -> None:
    topic = make_topic(queues=2)
    group = f"{topic}-g"
    ours = Log()
    with (
        java.push_consumer(cluster.namesrv, group, topic, orderly=True) as theirs,
        PushConsumer(brisk, group, [topic], ours, options(orderly=True)) as consumer,
    ):
        until(lambda: len([q for q in consumer.assignment() if q.topic == topic]) == 1)
        until(lambda: len(theirs.assignment(topic)) == 1)
        send(brisk, topic, [b"%d" % number for number in range(60)])
        until(lambda: len(ours.seen) + len(theirs.taken()) >= 60)
        time.sleep(0.1)
        for seen in ([m.body for m in theirs.taken()], ours.bodies):
            assert [int(body) for body in seen] == sorted(int(body) for body in seen)
            assert len(seen) == 30
