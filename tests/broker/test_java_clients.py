"""RocketMQ's own Java clients and tools against the embedded broker."""

from __future__ import annotations

import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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


def at_once(cluster: Cluster, *commands: str) -> list[str]:
    """Run several commands side by side: each spends its time waiting for itself."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda command: cluster.mqadmin(*command.split()), commands))


def test_mqadmin_creates_describes_and_deletes_topics(wire: JobWire, cluster_of: Cluster) -> None:
    cluster_of.mqadmin(
        *(
            [
                "updateTopic",
                "-c",
                "DefaultCluster",
                "-t",
                "t",
                "-r",
                "3",
                "-w",
                "3",
                "-a",
                "+cleanup.policy=COMPACTION",
            ]
        )
    )
    wire.put("t", b"x", 2, i="KEYS\1k\2")
    names, route, status, where = at_once(
        cluster_of, "topicList", "topicRoute -t t", "topicStatus -t t", "topicClusterList -t t"
    )
    assert "t" in names.split()
    assert '"readQueueNums":3' in route
    assert status.count("broker-a") == 3
    assert "DefaultCluster" in where
    cluster_of.mqadmin(*["updateTopicPerm", "-c", "DefaultCluster", "-t", "t", "-p", "4"])
    assert wire.put("t", b"y", i="KEYS\1k\2").code == 16
    cluster_of.mqadmin(*["deleteTopic", "-c", "DefaultCluster", "-t", "t"])
    assert wire.put("t", b"y", i="KEYS\1k\2").code == 17


def test_mqadmin_shows_the_broker_and_messages(wire: JobWire, cluster_of: Cluster) -> None:
    wire.create("t", queues=1)
    sent = wire.put("t", b"to be", i="KEYS\1k1\2TAGS\1red\2")
    shown = at_once(
        cluster_of,
        "clusterList",
        f"brokerStatus -b {cluster_of.namesrv}",
        "printMsg -t t -d true",
        f"queryMsgById -t t -i {sent.ext['msgId']}",
        "queryMsgByOffset -t t -b broker-a -i 0 -o 0",
        "queryMsgByKey -t t -k k1",
    )
    wanted = ("broker-a", "brokerVersionDesc", "to be", "[k1]", "[red]", sent.ext["transactionId"])
    for text, printed in zip(wanted, shown, strict=True):
        assert text in printed


def test_mqadmin_shows_the_progress_of_a_job(wire: JobWire, cluster_of: Cluster) -> None:
    wire.create("in", queues=1)
    for _ in range(3):
        wire.put("in", b"x")
    wire.open()
    wire.commit(offsets={"in@broker-a@0": 1}, group="word-count")
    shown = cluster_of.mqadmin("consumerProgress", "-g", "word-count")
    assert "Consume Diff Total: 2" in shown
