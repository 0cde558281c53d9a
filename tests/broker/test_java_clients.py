"""RocketMQ's own Java clients and tools against the embedded broker."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.broker import EmbeddedBroker
from tests.broker.wire import JobWire
from tests.java.clients import Java

pytestmark = pytest.mark.rocketmq


@pytest.mark.parametrize("kind", ["push", "orderly", "subscribe", "assign"])
def test_java_consumers_get_every_message_of_their_tags(
    broker: EmbeddedBroker, wire: JobWire, java: Java, kind: str
) -> None:
    wire.create("t", queues=2)
    for number in range(60):
        tag = "red" if number % 3 else "blue"
        wire.put("t", b"%d" % number, number % 2, i=f"TAGS\1{tag}\2")
    # A consumer that assigns queues to itself takes all tags.
    wanted = [b"%d" % n for n in range(60) if kind == "assign" or n % 3]
    address, subscriptions = broker.address, {"t": "red"}
    if kind in ("push", "orderly"):
        consumer = java.push_consumer(address, "g", subscriptions, orderly=kind == "orderly")
    else:
        consumer = java.lite_consumer(address, "g", subscriptions if kind == "subscribe" else None)
    with consumer:
        if kind == "assign":
            consumer.assign(consumer.queues("t"))
        got = consumer.bodies(len(wanted))
        assert Counter(got) == Counter(wanted)
        if kind == "subscribe":
            consumer.commit()
        if kind != "assign":
            java.until("Consume Diff Total: 0", address, "consumerProgress", "-g", "g")


def test_mqadmin_creates_describes_and_deletes_topics(
    broker: EmbeddedBroker, wire: JobWire, java: Java
) -> None:
    def mqadmin(command: str) -> str:
        return java.mqadmin(broker.address, *command.split())

    mqadmin("updateTopic -c DefaultCluster -t t -r 3 -w 3 -a +cleanup.policy=COMPACTION")
    wire.put("t", b"x", 2, i="KEYS\1k\2")
    assert "t" in mqadmin("topicList").split()
    assert '"readQueueNums":3' in mqadmin("topicRoute -t t")
    assert mqadmin("topicStatus -t t").count("broker-a") == 3
    assert "DefaultCluster" in mqadmin("topicClusterList -t t")
    mqadmin("updateTopicPerm -c DefaultCluster -t t -p 4")
    assert wire.put("t", b"y", i="KEYS\1k\2").code == 16
    mqadmin("deleteTopic -c DefaultCluster -t t")
    assert wire.put("t", b"y", i="KEYS\1k\2").code == 17


def test_mqadmin_shows_the_broker_and_messages(
    broker: EmbeddedBroker, wire: JobWire, java: Java
) -> None:
    wire.create("t", queues=1)
    sent = wire.put("t", b"to be", i="KEYS\1k1\2TAGS\1red\2")
    for command, text in {
        "clusterList": "broker-a",
        f"brokerStatus -b {broker.address}": "brokerVersionDesc",
        "printMsg -t t -d true": "to be",
        f"queryMsgById -t t -i {sent.ext['msgId']}": "[k1]",
        "queryMsgByOffset -t t -b broker-a -i 0 -o 0": "[red]",
    }.items():
        assert text in java.mqadmin(broker.address, *command.split())
    # Whatever keeps it from asking, its timeout of six seconds also, it calls "no message".
    by_key = "queryMsgByKey -t t -k k1"
    java.until(sent.ext["transactionId"], broker.address, *by_key.split())


def test_mqadmin_shows_the_progress_of_a_job(
    broker: EmbeddedBroker, wire: JobWire, java: Java
) -> None:
    wire.create("in", queues=1)
    for _ in range(3):
        wire.put("in", b"x")
    wire.open()
    wire.commit(offsets={"in@broker-a@0": 1}, group="word-count")
    shown = java.mqadmin(broker.address, "consumerProgress", "-g", "word-count")
    assert "Consume Diff Total: 2" in shown
