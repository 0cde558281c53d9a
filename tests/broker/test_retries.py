"""Messages that a group could not process, and the settings of groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import StoredMessage, compress
from headrace.protocol.routes import TopicConfig, loads
from tests.broker.test_delays import FAST, wait_for
from tests.broker.wire import Wire


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with (
        EmbeddedBroker(tmp_path / "data", settings=FAST) as broker,
        Wire(broker.address) as connected,
    ):
        connected.create("t")
        yield connected


def send_back(wire: Wire, message: StoredMessage, level: int = 1, **more: object) -> Command:
    fields = {"offset": message.position, "group": "g", "delayLevel": level, **more}
    return wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)


def first(wire: Wire, **more: object) -> StoredMessage:
    wire.put("t", b"x", 1, i="KEYS\1k\2TAGS\1red\2", **more)
    return wait_for(wire, 1, queue=1)[0]


def topic_perm(wire: Wire, topic: str) -> tuple[int, int]:
    answer = wire.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    config = loads(answer.payload, TopicConfig)
    return config.write_queue_nums, config.perm


def test_message_sent_back_comes_again_on_the_retry_topic(wire: Wire) -> None:
    message = first(wire)
    assert send_back(wire, message).code == 0
    [again] = wait_for(wire, 1, "%RETRY%g")
    assert again.stored - message.stored >= 60
    assert (again.body, again.keys, again.tags) == (b"x", "k", "red")
    assert again.reconsume_times == 1
    assert again.properties["RETRY_TOPIC"] == "t"
    assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_id
    assert topic_perm(wire, "%RETRY%g") == (1, 6)
    send_back(wire, again)
    thrice = wait_for(wire, 2, "%RETRY%g")[1]
    assert thrice.reconsume_times == 2
    assert thrice.properties["RETRY_TOPIC"] == "t"
    assert thrice.properties["ORIGIN_MESSAGE_ID"] == message.offset_id


@pytest.mark.parametrize(
    ("level", "times", "fields", "parked"),
    [
        # Chosen by the broker: 3 and one more for each time; never more than there are.
        (0, 0, {}, "SCHEDULE_TOPIC_XXXX"),
        (2, 15, {}, "SCHEDULE_TOPIC_XXXX"),
        (2, 16, {}, "%DLQ%g"),
        (2, 1, {"maxReconsumeTimes": 1}, "%DLQ%g"),
        (-1, 0, {}, "%DLQ%g"),
    ],
)
def test_message_is_tried_again_until_it_is_dead(
    wire: Wire, level: int, times: int, fields: dict[str, object], parked: str
) -> None:
    message = first(wire, j=times)
    assert send_back(wire, message, level, **fields).code == 0
    queue = 1 if parked.startswith("SCHEDULE") else 0
    [found] = wait_for(wire, 1, parked, queue)
    assert found.reconsume_times == times + 1
    assert found.properties["RETRY_TOPIC"] == "t"
    if queue == 0:
        assert topic_perm(wire, "%DLQ%g") == (1, 6)
        assert "DELAY" not in found.properties


def test_compressed_message_stays_compressed(wire: Wire) -> None:
    body = compress(b"to be " * 1000)
    wire.put("t", body, 1, f=1)
    [message] = wait_for(wire, 1, queue=1)
    send_back(wire, message)
    [again] = wait_for(wire, 1, "%RETRY%g")
    assert again.body == b"to be " * 1000
    assert again.size < 1000


def test_message_that_is_not_there_cannot_be_sent_back(wire: Wire) -> None:
    answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=7, group="g", delayLevel=0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "look message by offset failed" in (answer.remark or "")


@pytest.mark.parametrize(("times", "topic"), [(16, "%RETRY%g"), (17, "%DLQ%g")])
def test_consumer_may_send_its_retry_itself(wire: Wire, times: int, topic: str) -> None:
    properties = "RETRY_TOPIC\1t\2ORIGIN_MESSAGE_ID\1A\2DELAY\0011\2"
    assert wire.put("%RETRY%g", b"x", i=properties, j=times, l=16).code == 0
    [found] = wait_for(wire, 1, topic)
    assert (found.reconsume_times, found.properties["RETRY_TOPIC"]) == (times, "t")


def test_group_that_consumes_in_order_gives_up_at_once(wire: Wire) -> None:
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    asked = {"consumerGroup": "g", "clientId": "a", "mqSet": [queue]}
    wire.ask(RequestCode.LOCK_BATCH_MQ, msgspec.json.encode(asked))
    wire.put("%RETRY%g", b"x", i="DELAY\0011\2", j=1, l=16)
    assert wait_for(wire, 1, "%DLQ%g")[0].body == b"x"


def update(wire: Wire, **config: object) -> None:
    body = msgspec.json.encode({"groupName": "g", **config})
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0


def test_settings_of_a_group_count(wire: Wire) -> None:
    update(wire, retryMaxTimes=1, retryQueueNums=3)
    assert topic_perm(wire, "%RETRY%g") == (3, 6)
    send_back(wire, first(wire, j=1))
    assert len(wait_for(wire, 1, "%DLQ%g")) == 1
    update(wire, consumeEnable=False)
    refused = wire.pull("t")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "subscription group no permission" in (refused.remark or "")


def test_group_without_retry_queues_keeps_nothing(wire: Wire) -> None:
    update(wire, retryQueueNums=0)
    assert send_back(wire, first(wire)).code == 0
    answer = wire.ask(RequestCode.GET_MAX_OFFSET, topic="SCHEDULE_TOPIC_XXXX", queueId=0)
    assert answer.ext["offset"] == "0"


def test_groups_survive_a_restart_and_can_be_deleted(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t")
        update(wire, retryMaxTimes=3)
        wire.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            b'{"groupConfigList":[{"groupName":"h"},{"groupName":"i"}]}',
        )
        wire.pull("t", sysFlag=5, commitOffset=0)
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        table = groups(wire)
        assert sorted(table) == ["g", "h", "i"]
        assert table["g"]["retryMaxTimes"] == 3
        one = wire.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert loads(one.payload, dict) == table["g"]
        wire.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="true")
        assert sorted(groups(wire)) == ["h", "i"]
        none = wire.ask(
            RequestCode.QUERY_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="t",
            queueId=0,
            setZeroIfNotFound="false",
        )
        assert none.code == ResponseCode.QUERY_NOT_FOUND


def groups(wire: Wire) -> dict[str, dict[str, object]]:
    answer = wire.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = loads(answer.payload, dict)["subscriptionGroupTable"]
    assert isinstance(table, dict)
    return table


def test_group_that_nobody_created_is_refused_if_told_so(tmp_path: Path) -> None:
    settings = BrokerSettings(create_groups=False)
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        assert wire.pull("t").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=7, group="g", delayLevel=0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        update(wire)
        assert wire.pull("t").code == ResponseCode.PULL_NOT_FOUND
