"""Push consumers whose process, peer or broker is killed: nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.client import Admin, Client, ClientSettings, PushConsumer, StoredMessage
from tests.client.test_push import Log, brisk, committed, options, send, until
from tests.client.test_restarts import Restartable
from tests.clusters import Cluster
from tests.java.clients import Java

MakeTopic = Callable[..., str]

__all__ = ["brisk"]

MEMBER = """
import os, sys, time
from datetime import timedelta
from headrace.client import Client, ClientSettings, PushConsumer, PushOptions

def listener(message):
    os.write(1, message.body + b"\\n")
    if int(message.body) % 3 == 0:
        time.sleep(600)

settings = ClientSettings(commit_interval=timedelta(milliseconds=20))
with Client(sys.argv[1], settings) as client:
    options = PushOptions(start="first", concurrency=8)
    PushConsumer(client, sys.argv[2], [sys.argv[3]], listener, options).run()
"""


def test_a_killed_process_leaves_its_work_to_the_others(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    group = f"{topic}-g"
    send(brisk, topic, [b"%d" % number for number in range(60)])
    command = [sys.executable, "-c", MEMBER, cluster.namesrv, group, topic]
    begun: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        # Eight messages are being worked on, all others wait, and the offset stands still.
        try:
            while sum(int(body) % 3 == 0 for body in begun) < 8:
                begun.append(member.stdout.readline().strip())
        finally:
            member.kill()
    log = Log()
    with PushConsumer(brisk, group, [topic], log, options()):
        until(lambda: committed(brisk, group, topic) == 60)
    finished = {body for body in begun if int(body) % 3}
    everything = {b"%d" % number for number in range(60)}
    assert finished | set(log.bodies) == everything
    # What it worked on when it died came again.
    assert set(log.bodies) >= set(begun) - finished


@pytest.mark.rocketmq
def test_a_java_member_that_dies_leaves_its_work_to_us(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic, java: Java
) -> None:
    topic = make_topic(queues=2)
    group = f"{topic}-g"
    theirs = java.push_consumer(cluster.namesrv, group, topic, pause_ms=50)
    log = Log()
    with PushConsumer(brisk, group, [topic], log, options()) as consumer:
        until(lambda: len([q for q in consumer.assignment() if q.topic == topic]) == 1)
        until(lambda: len(theirs.assignment(topic)) == 1)
        send(brisk, topic, [b"%d" % number for number in range(80)])
        until(lambda: len(log.seen) == 40)
        until(lambda: len(theirs.taken()) > 0)
        done = {message.body for message in theirs.taken()}
        theirs.kill()
        until(lambda: committed(brisk, group, topic) == 80)
    # It had begun what it told of; the rest, and what was not committed, came to us.
    assert done | set(log.bodies) >= {b"%d" % number for number in range(80)}


def test_messages_are_processed_when_the_broker_comes_back(tmp_path: Path) -> None:
    broker = Restartable(tmp_path / "data")
    settings = ClientSettings(
        commit_interval=timedelta(milliseconds=50),
        rebalance_interval=timedelta(seconds=1),
        retry_backoff_limit=timedelta(milliseconds=100),
    )
    half = threading.Event()
    seen: list[bytes] = []

    def listener(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) >= 100:
            half.set()

    try:
        with Client(broker.address, settings) as client:
            Admin(client).create_topic("lines", queues=2)
            send(client, "lines", [b"%d" % number for number in range(100)])
            with PushConsumer(client, "g", ["lines"], listener, options()) as consumer:
                assert half.wait(20)
                broker.kill()
                broker.start()
                send(client, "lines", [b"%d" % number for number in range(100, 200)])
                until(lambda: len(set(seen)) == 200, lambda: len(set(seen)))
                until(lambda: committed(client, "g", "lines") == 200)
                until(lambda: len(Admin(client).group_members("g")) == 1)
                assert len([q for q in consumer.assignment() if q.topic == "lines"]) == 2
    finally:
        broker.kill()
