"""Requests of tools about groups: members, progress, resets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.routes import QueueRef, dumps

if TYPE_CHECKING:
    from headrace.broker.clients import Member
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _connections(members: Iterable[Member]) -> list[dict[str, object]]:
    return [
        {
            "clientId": member.client_id,
            "clientAddr": member.address,
            "language": member.language,
            "version": member.version,
        }
        for member in members
    ]


def get_consumer_connections(core: Core, request: Request) -> Command:
    """Describe the members of a consumer group and what it subscribes to."""
    name = request.text("consumerGroup")
    group = core.clients.group(name)
    if group is None or not group.members:
        remark = f"the consumer group[{name}] not online"
        return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    body = {
        "connectionSet": _connections(group.members.values()),
        "subscriptionTable": group.subscriptions,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "consumeFromWhere": group.consume_from_where,
    }
    return request.reply(body=dumps(body))


def get_producer_connections(core: Core, request: Request) -> Command:
    """Describe the members of a producer group."""
    name = request.text("producerGroup")
    members = core.clients.producers(name)
    if not members:
        remark = f"the producer group[{name}] not exist"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)
    return request.reply(body=dumps({"connectionSet": _connections(members)}))


def get_all_producers(core: Core, request: Request) -> Command:
    """Describe the members of all producer groups."""
    groups = core.clients.producer_groups()
    data = {
        name: [
            {
                "clientId": member.client_id,
                "remoteIP": member.address,
                "language": member.language,
                "version": member.version,
                "lastUpdateTimestamp": core.now(),
            }
            for member in members
        ]
        for name, members in groups.items()
    }
    return request.reply(body=dumps({"data": data}))


def get_consume_stats(core: Core, request: Request) -> Command:
    """Tell how far a group has come in every queue that it reads."""
    name = request.text("consumerGroup")
    table: dict[str, dict[str, int]] = {}
    for topic in _topics(core, name, request.text("topic", "")):
        config = core.topics.find(topic)
        for queue_id in range(config.read_queue_nums if config else 0):
            table[QueueRef(topic, core.name, queue_id).key] = _progress(core, name, topic, queue_id)
    return request.reply(body=dumps({"consumeTps": 0.0, "offsetTable": table}))


def _topics(core: Core, group: str, topic: str) -> list[str]:
    if topic:
        return [topic]
    found = core.clients.group(group)
    return sorted({*core.offsets.topics_of(group), *(found.subscriptions if found else ())})


def _progress(core: Core, group: str, topic: str, queue_id: int) -> dict[str, int]:
    bounds = core.store.bounds(topic, queue_id)
    consumed = core.offsets.get(group, topic, queue_id)
    if consumed is None:
        consumed = bounds.min_offset
    pulled = core.offsets.pulled(group, topic, queue_id)
    last = consumed - 1
    known = bounds.min_offset <= last < bounds.max_offset
    return {
        "brokerOffset": bounds.max_offset,
        "consumerOffset": consumed,
        "pullOffset": consumed if pulled is None else max(pulled, consumed),
        "lastTimestamp": core.store.store_time(topic, queue_id, last) if known else 0,
    }


def reset_offsets(core: Core, request: Request) -> Command:
    """Move a group to a time, or to an offset; its members hear of it with their next pull."""
    topic, group = request.text("topic"), request.text("group")
    config = core.topics.get(topic)
    only, timestamp = request.number("queueId", -1), request.number("timestamp")
    offset = request.command.ext.get("offset")
    moved: dict[int, int] = {}
    for queue_id in range(config.read_queue_nums) if only < 0 else [only]:
        if only >= 0 and offset is not None and int(offset) >= 0:
            moved[queue_id] = int(offset)
        elif timestamp < 0:
            moved[queue_id] = core.store.bounds(topic, queue_id).max_offset
        else:
            moved[queue_id] = core.store.offset_at(topic, queue_id, timestamp)
        before = core.offsets.get(group, topic, queue_id)
        if not request.flag("isForce", default=True) and before is not None:
            moved[queue_id] = min(before, moved[queue_id])
    core.offsets.reset(group, topic, moved)
    table = {QueueRef(topic, core.name, queue_id).key: to for queue_id, to in moved.items()}
    return request.reply(body=dumps({"offsetTable": table}))


def get_groups_of_topic(core: Core, request: Request) -> Command:
    """List the groups that read a topic."""
    topic = request.text("topic")
    groups = {group.name for group in core.clients.groups() if topic in group.subscriptions}
    groups.update(core.offsets.groups_of(topic))
    return request.reply(body=dumps({"groupList": sorted(groups)}))


def get_topics_of_group(core: Core, request: Request) -> Command:
    """List the topics that a group reads."""
    topics = _topics(core, request.text("group"), "")
    return request.reply(body=dumps({"topicList": topics, "brokerAddr": core.address}))


def get_subscription(core: Core, request: Request) -> Command:
    """Describe what a group said about a topic."""
    group, topic = request.text("group"), request.text("topic")
    found = core.clients.subscription(group, topic)
    body: dict[str, object] = {"group": group, "topic": topic}
    if found is not None:
        body["subscriptionData"] = found
    return request.reply(body=dumps(body))


HANDLERS = {
    RequestCode.GET_CONSUMER_CONNECTION_LIST: get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: get_all_producers,
    RequestCode.GET_CONSUME_STATS: get_consume_stats,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: get_groups_of_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: get_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: get_subscription,
}
