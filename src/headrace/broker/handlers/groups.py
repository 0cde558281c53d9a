"""Requests of tools about groups: their members and what these read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.handlers.progress import topics_read
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.routes import dumps

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


def get_groups_of_topic(core: Core, request: Request) -> Command:
    """List the groups that read a topic."""
    topic = request.text("topic")
    groups = {group.name for group in core.clients.groups() if topic in group.subscriptions}
    groups.update(core.offsets.groups_of(topic))
    return request.reply(body=dumps({"groupList": sorted(groups)}))


def get_topics_of_group(core: Core, request: Request) -> Command:
    """List the topics that a group reads."""
    topics = topics_read(core, request.text("group"))
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
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: get_groups_of_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: get_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: get_subscription,
}
