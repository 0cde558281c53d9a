from __future__ import annotations

import json

from headrace.protocol.groups import ConsumerConnections, ConsumeStats, TopicOffset, TopicStats
from headrace.protocol.routes import MessageQueue, dumps, loads

STATS = b"""{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{
"lastUpdateTimestamp":1700000000000,"maxOffset":5,"minOffset":0}},"topicPutTps":0.5}"""


def test_stats_of_a_real_broker_are_read() -> None:
    stats = loads(STATS, TopicStats)
    ((key, offset),) = stats.offset_table.items()
    assert MessageQueue.of_key(key) == MessageQueue("T", "broker-a", 0)
    assert (offset.min_offset, offset.max_offset) == (0, 5)


def test_queues_are_written_as_strings_that_hold_json() -> None:
    queue = MessageQueue("T", "b", 1)
    written = dumps(TopicStats(offset_table={queue.key: TopicOffset(max_offset=3)}))
    (key,) = json.loads(written)["offsetTable"]
    assert json.loads(key) == {"topic": "T", "brokerName": "b", "queueId": 1}


def test_consume_stats_of_a_real_broker_are_read() -> None:
    body = b"""{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":2,"topic":"T"}:
    {"brokerOffset":9,"consumerOffset":4,"lastTimestamp":0,"pullOffset":5}}}"""
    (offset,) = loads(body, ConsumeStats).offset_table.values()
    assert (offset.broker_offset, offset.consumer_offset, offset.pull_offset) == (9, 4, 5)


def test_connections_name_clients_and_subscriptions() -> None:
    body = b"""{"connectionSet":[{"clientAddr":"127.0.0.1:5","clientId":"c","language":"JAVA",
    "version":479}],"subscriptionTable":{"T":{"topic":"T","subString":"*"}}}"""
    found = loads(body, ConsumerConnections)
    assert found.connection_set[0].client_id == "c"
    assert found.subscription_table["T"].sub_string == "*"
