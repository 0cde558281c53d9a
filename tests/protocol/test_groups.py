from __future__ import annotations

import json

import pytest

from headrace.protocol.groups import (
    ConsumerData,
    Heartbeat,
    LockRequest,
    LockResult,
    ProducerData,
    SubscriptionData,
    split_tags,
)
from headrace.protocol.routes import MessageQueue, dumps, loads

JAVA_HEARTBEAT = b"""{"clientID":"127.0.0.1@1#2@STREAM","consumerDataSet":[{"consumeFromWhere":
"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_ACTIVELY","groupName":"g","messageModel":
"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":
"TAG","subString":"TagA","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"t"}],
"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"p"}],
"withoutSub":false}"""


def test_heartbeat_of_a_java_client_is_read() -> None:
    beat = loads(JAVA_HEARTBEAT, Heartbeat)
    assert beat.client_id == "127.0.0.1@1#2@STREAM"
    assert beat.producer_data_set == [ProducerData(group_name="p")]
    (consumer,) = beat.consumer_data_set
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set == [SubscriptionData.of("t", "TagA", 1_700_000_000_000)]


def test_heartbeat_is_written_as_java_writes_it() -> None:
    beat = loads(JAVA_HEARTBEAT, Heartbeat)
    assert json.loads(dumps(beat)) == json.loads(JAVA_HEARTBEAT)
    assert json.loads(dumps(ConsumerData()))["subscriptionDataSet"] == []


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, []),
        ("", []),
        (" * ", []),
        ("a", ["a"]),
        ("a||b || a", ["a", "b"]),
        ("|| a ||", ["a"]),
    ],
)
def test_tags_are_split(expression: str | None, tags: list[str]) -> None:
    assert split_tags(expression) == tags
    assert SubscriptionData.of("t", expression).tags_set == tags


def test_subscription_without_tags_takes_everything() -> None:
    assert SubscriptionData.of("t").sub_string == "*"
    assert SubscriptionData.of("t", "b||a").sub_string == "b || a"


def test_locks_name_queues() -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"t"}]}'
    )
    assert loads(body, LockRequest).mq_set == [MessageQueue("t", "b", 1)]
    assert json.loads(dumps(LockResult(granted=[MessageQueue("t", "b", 1)]))) == {
        "lockOKMQSet": [{"topic": "t", "brokerName": "b", "queueId": 1}]
    }
