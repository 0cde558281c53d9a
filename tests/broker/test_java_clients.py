"""RocketMQ's own Java clients and tools against the embedded broker."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.broker.wire import JobWire
from tests.clusters import SCRIPT, Cluster

pytestmark = pytest.mark.rocketmq

CONSUME = Path(__file__).with_name("Consume.java")


def consume(kind: str, address: str, topic: str, group: str, tags: str, count: int) -> list[str]:
    done = subprocess.run(
        [SCRIPT, "java", CONSUME, kind, address, topic, group, tags, str(count)],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return [line.split()[2] for line in done.stdout.splitlines() if line.startswith("got ")]


@pytest.mark.parametrize("kind", ["push", "orderly", "subscribe", "assign"])
def test_java_consumers_get_every_message_of_their_tags(
    broker: EmbeddedBroker, wire: JobWire, cluster_of: Cluster, kind: str
) -> None:
    wire.create("t", queues=2)
    for number in range(60):
        tag = "red" if number % 3 else "blue"
        wire.put("t", b"%d" % number, number % 2, i=f"TAGS\1{tag}\2")
    # A consumer that assigns queues to itself takes all tags.
    wanted = [str(n) for n in range(60) if kind == "assign" or n % 3]
    got = consume(kind, broker.address, "t", "g", "red", len(wanted))
    assert Counter(got) == Counter(wanted)
    if kind != "assign":
        shown = cluster_of.mqadmin("consumerProgress", "-g", "g")
        assert "Consume Diff Total: 0" in shown


def test_mqadmin_creates_describes_and_deletes_topics(wire: JobWire, cluster_of: Cluster) -> None:
    mqadmin = cluster_of.mqadmin
    attribute = "+cleanup.policy=COMPACTION"
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "t", "-r", "3", "-w", "3", "-a", attribute)
    wire.put("t", b"x", 2, i="KEYS\1k\2")
    assert "t" in mqadmin("topicList").split()
    assert '"readQueueNums":3' in mqadmin("topicRoute", "-t", "t")
    assert mqadmin("topicStatus", "-t", "t").count("broker-a") == 3
    assert "DefaultCluster" in mqadmin("topicClusterList", "-t", "t")
    mqadmin("updateTopicPerm", "-c", "DefaultCluster", "-t", "t", "-p", "4")
    assert wire.put("t", b"y", i="KEYS\1k\2").code == 16
    mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "t")
    assert "t" not in mqadmin("topicList").split()


def test_mqadmin_shows_the_broker_and_messages(wire: JobWire, cluster_of: Cluster) -> None:
    mqadmin = cluster_of.mqadmin
    wire.create("t", queues=1)
    sent = wire.put("t", b"to be", i="KEYS\1k1\2TAGS\1red\2")
    assert "broker-a" in mqadmin("clusterList")
    assert "brokerVersionDesc" in mqadmin("brokerStatus", "-b", cluster_of.namesrv)
    assert "to be" in mqadmin("printMsg", "-t", "t", "-d", "true")
    by_id = mqadmin("queryMsgById", "-t", "t", "-i", sent.ext["msgId"])
    by_offset = mqadmin("queryMsgByOffset", "-t", "t", "-b", "broker-a", "-i", "0", "-o", "0")
    for shown in (by_id, by_offset):
        assert "[k1]" in shown
        assert "[red]" in shown
    assert sent.ext["transactionId"] in mqadmin("queryMsgByKey", "-t", "t", "-k", "k1")


def test_mqadmin_shows_the_progress_of_a_job(wire: JobWire, cluster_of: Cluster) -> None:
    wire.create("in", queues=1)
    for _ in range(3):
        wire.put("in", b"x")
    wire.open()
    wire.commit(offsets={"in@broker-a@0": 1}, group="word-count")
    shown = cluster_of.mqadmin("consumerProgress", "-g", "word-count")
    assert "Consume Diff Total: 2" in shown
