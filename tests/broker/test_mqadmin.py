"""RocketMQ's own administration tool, command by command."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.protocol.codes import RequestCode
from headrace.protocol.groups import SubscriptionGroupTable
from headrace.protocol.routes import TopicConfigTable, loads
from tests.broker.wire import Wire
from tests.java.clients import Java, JavaConsumer

pytestmark = pytest.mark.rocketmq

Tool = Callable[[str], str]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A broker with six messages in a topic of two queues."""
    settings = BrokerSettings(delay_levels="20ms " * 18)
    with (
        EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings=settings) as broker,
        Wire(broker.address) as connected,
    ):
        connected.create("t", queues=2)
        for number in range(6):
            connected.put("t", b"body %d" % number, number % 2, i=f"KEYS\1k{number}\2TAGS\1red\2")
        yield connected


@pytest.fixture(scope="module")
def consumer(java: Java, wire: Wire) -> Iterator[JavaConsumer]:
    """A member of the group "members" that has read everything."""
    with java.push_consumer(wire.address, "members", "t") as started:
        started.take(6)
        yield started


@pytest.fixture
def tool(java: Java, wire: Wire) -> Tool:
    def run(command: str) -> str:
        given = command.replace("ADDRESS", wire.address)
        return java.mqadmin(wire.address, *given.split())

    return run


def groups(wire: Wire) -> SubscriptionGroupTable:
    answer = wire.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return loads(answer.payload, SubscriptionGroupTable)


def topics(wire: Wire) -> TopicConfigTable:
    return loads(wire.ask(RequestCode.GET_ALL_TOPIC_CONFIG).payload, TopicConfigTable)


@pytest.mark.parametrize("where", ["-c DefaultCluster", "-b ADDRESS"])
def test_topics_are_created_changed_and_deleted(wire: Wire, tool: Tool, where: str) -> None:
    tool(f"updateTopic {where} -t new -r 3 -w 2 -p 6 -o true")
    config = topics(wire).topic_config_table["new"]
    assert (config.read_queue_nums, config.write_queue_nums, config.order) == (3, 2, True)
    tool(f"updateTopicPerm {where} -t new -p 4")
    assert topics(wire).topic_config_table["new"].perm == 4
    assert "new" in tool("topicList").split()
    assert "new" in tool("topicList -c")
    assert "DefaultCluster" in tool("topicClusterList -t new")
    tool("deleteTopic -c DefaultCluster -t new")
    assert "new" not in topics(wire).topic_config_table


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("topicRoute -t t", r'"writeQueueNums":2'),
        ("topicStatus -t t", r"broker-a +1 +0 +3 +20\d\d-"),
        ("clusterList", r"broker-a +0 +\S+ +V5_3_3"),
        ("clusterList -m", r"DefaultCluster +broker-a"),
        ("brokerStatus -b ADDRESS", r"brokerVersionDesc +: V5_3_3"),
        ("brokerStatus -c DefaultCluster", r"putTps +: \d"),
        ("getBrokerConfig -b ADDRESS", r"autoCreateTopicEnable +=  true"),
        ("getNamesrvConfig", r"listenPort"),
        ("printMsg -t t -d true", r"body 5"),
        ("printMsgByQueue -t t -a broker-a -i 1 -p true -d true", r"body 3"),
        ("queryMsgByKey -t t -k k4", r"[0-9A-F]{32} +0 +2"),
        ("queryMsgByOffset -t t -b broker-a -i 1 -o 2", r"Keys: +\[k5\]"),
        ("consumeMessage -t t -b broker-a -i 1 -o 0 -c 1", r"body 1"),
        ("allocateMQ -t t -i 127.0.0.1,127.0.0.2", r'"queueId":1'),
        ("cleanExpiredCQ -b ADDRESS", r"success"),
        ("cleanUnusedTopic -b ADDRESS", r"success"),
        ("deleteExpiredCommitLog -b ADDRESS", r"success"),
        ("statsAll", r"\bt +\w"),
    ],
)
@pytest.mark.usefixtures("consumer")
def test_broker_and_messages_are_shown(tool: Tool, command: str, shown: str) -> None:
    printed = tool(command)
    assert re.search(shown, printed), printed


def test_message_is_found_by_each_of_its_ids(wire: Wire, tool: Tool) -> None:
    sent = wire.put("other", b"found", c="TBW102", i="KEYS\1mine\2")
    ids = sent.ext
    assert "[mine]" in tool(f"queryMsgById -t other -i {ids['msgId']}")
    assert "[mine]" in tool(f"queryMsgByUniqueKey -t other -i {ids['transactionId']}")
    assert "SEND_OK" in tool(f"queryMsgById -t other -i {ids['msgId']} -s true")


def test_member_consumes_a_message_because_it_is_told_to(
    wire: Wire, tool: Tool, consumer: JavaConsumer
) -> None:
    sent = wire.put("aside", b"now", c="TBW102")
    client = consumer.client_id
    before = len(consumer.taken())
    for command in (
        f"queryMsgByUniqueKey -t aside -i {sent.ext['transactionId']} -g members -d {client}",
        f"queryMsgById -t aside -i {sent.ext['msgId']} -g members -d {client}",
    ):
        assert "CR_SUCCESS" in tool(command)
    assert [message.body for message in consumer.taken()[before:]] == [b"now"] * 2


def test_members_are_shown(tool: Tool, java: Java, wire: Wire, consumer: JavaConsumer) -> None:
    client = consumer.client_id
    assert client in tool("consumerConnection -g members")
    assert "%RETRY%members" in tool("consumerConnection -g members")
    assert client in tool("consumerStatus -g members")
    running = tool(f"consumerStatus -g members -i {client}")
    assert "#Consumer MQ Detail#" in running
    assert re.search(r"\bt +broker-a +1 +3", running), running
    with java.producer(wire.address, "makers") as producer:
        producer.send("made", b"x")
        # Its next heartbeat tells.
        java.until("producer group (makers)", wire.address, "producer", "-b", wire.address)
        assert "JAVA" in tool("producerConnection -g makers -t made")


@pytest.mark.usefixtures("consumer")
def test_progress_of_groups_is_shown(wire: Wire, tool: Tool) -> None:
    wire.pull("t", 0, 0, consumerGroup="late", sysFlag=5, commitOffset=1)
    wire.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup="late",
        topic="t",
        queueId=0,
        commitOffset=1,
    )
    assert "Consume Diff Total: 5" in tool("consumerProgress -g late -t t")
    listed = tool("consumerProgress")
    assert re.search(r"members +1 +V5_3_3 +PUSH +CLUSTERING +\d+ +\d", listed), listed
    assert re.search(r"late +0 +OFFLINE +\d* +5", listed), listed
    assert re.search(r"\bt +late +broker-a", tool("brokerConsumeStats -b ADDRESS"))
    tool("cloneGroupOffset -s late -d cloned -t t")
    assert "Consume Diff Total: 5" in tool("consumerProgress -g cloned -t t")
    assert "broker-a" in tool("skipAccumulatedMessage -g late -t t -f true")
    assert "Consume Diff Total: 0" in tool("consumerProgress -g late -t t")


def test_groups_are_created_described_and_deleted(wire: Wire, tool: Tool) -> None:
    tool("updateSubGroup -c DefaultCluster -g set -s false -r 3 -q 2")
    config = groups(wire).subscription_group_table["set"]
    assert (config.consume_enable, config.retry_max_times, config.retry_queue_nums) == (False, 3, 2)
    assert re.search(r"retryMaxTimes += +3", tool("getConsumerConfig -g set"))
    assert wire.pull("t", consumerGroup="set").code == 16
    assert "%RETRY%set" in topics(wire).topic_config_table
    tool("deleteSubGroup -c DefaultCluster -g set -r true")
    assert "set" not in groups(wire).subscription_group_table
    assert "%RETRY%set" not in topics(wire).topic_config_table


def test_group_is_moved_by_time_and_by_offset(java: Java, wire: Wire, tool: Tool) -> None:
    wire.create("moved", queues=1)
    for number in range(4):
        wire.put("moved", b"%d" % number)
    with java.lite_consumer(wire.address, "movers", "moved") as member:
        assert len(member.take(4)) == 4
        # An online member hears of it with its next pull, and starts again.
        printed = tool("resetOffsetByTime -g movers -t moved -s 0")
        assert re.search(r"broker-a +0 +0", printed), printed
        assert [message.body for message in member.take(4)] == [b"0", b"1", b"2", b"3"]
    printed = tool("resetOffsetByTime -g movers -t moved -s -1")
    assert re.search(r"broker-a +0 +4", printed), printed
    tool("resetOffsetByTime -g movers -t moved -s 0 -b ADDRESS -q 0 -o 2")
    assert "Consume Diff Total: 2" in tool("consumerProgress -g movers -t moved")


def test_settings_are_changed_while_the_broker_runs(wire: Wire, tool: Tool) -> None:
    tool("updateBrokerConfig -b ADDRESS -k autoCreateTopicEnable -v false")
    assert wire.put("never", b"x", c="TBW102").code == 17
    tool("updateBrokerConfig -c DefaultCluster -k autoCreateTopicEnable -v true")
    assert wire.put("never", b"x", c="TBW102").code == 0
    for body in (b"brokerIP1=x\n", b"autoCreateTopicEnable=perhaps\n"):
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, body).code == 29


def test_name_servers_part_is_answered_too(wire: Wire, tool: Tool) -> None:
    assert "OK" in tool("wipeWritePerm -n ADDRESS -b broker-a")
    assert "OK" in tool("addWritePerm -n ADDRESS -b broker-a")
    tool("updateOrderConf -t t -m put -v broker-a:2")
    assert "broker-a:2" in tool("updateOrderConf -t t -m get")
    tool("updateOrderConf -t t -m delete")
    tool("updateKvConfig -s space -k name -v value")
    assert wire.ask(RequestCode.GET_KV_CONFIG, namespace="space", key="name").ext == {
        "value": "value"
    }
    tool("deleteKvConfig -s space -k name")


def test_modes_of_consumption_other_than_pull_are_refused(wire: Wire, tool: Tool) -> None:
    assert "success" in tool("setConsumeMode -c DefaultCluster -t t -g members -m PULL")
    body = b'{"topic":"t","consumerGroup":"members","mode":"POP","popShareQueueNum":1}'
    assert wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body).code == 29


def test_tool_sends_messages(wire: Wire, tool: Tool) -> None:
    wire.create("sent", queues=1)
    assert "SEND_OK" in tool("sendMessage -t sent -p hello -k key -c tag")
    assert "SEND_OK" in tool("sendMsgStatus -b broker-a -s 10 -c 2")
    deadline = time.monotonic() + 5
    while wire.pull("sent").code:
        assert time.monotonic() < deadline
