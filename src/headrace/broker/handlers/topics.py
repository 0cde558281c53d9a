"""Requests that create, change, delete and describe topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import GroupNotFoundError, InvalidParameterError
from headrace.protocol import routes
from headrace.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from headrace.broker.clients import Member
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command


# Requests of tools about how far groups have come, and to move them.


def topics_read(core: Core, group: str) -> list[str]:
    """List the topics that a group reads: once it has members, those that they subscribe to."""
    found = core.clients.group(group)
    topics = set(core.offsets.topics_of(group))
    if found is not None and found.members and found.subscriptions:
        # Members that assign queues to themselves name no topic.
        return sorted(found.subscriptions)
    return sorted(topics)


def get_consume_stats(core: Core, request: Request) -> Command:
    """Return how far a group has come in every queue that it reads, or in the topics named."""
    name = request.text("consumerGroup")
    named = [request.text("topic", ""), *request.text("topicList", "").split(";")]
    topics = [topic for topic in named if topic] or topics_read(core, name)
    table = _stats(core, name, topics)
    return request.reply(body=routes.dumps({"consumeTps": 0.0, "offsetTable": table}))


def _stats(core: Core, group: str, topics: Iterable[str]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for topic in topics:
        config = core.topics.find(topic)
        for queue_id in range(config.read_queue_nums if config else 0):
            key = routes.MessageQueue(topic, core.name, queue_id).key
            table[key] = _progress(core, group, topic, queue_id)
    return table


def _progress(core: Core, group: str, topic: str, queue_id: int) -> dict[str, int]:
    bounds = core.store.bounds(topic, queue_id)
    consumed = core.offsets.get(group, topic, queue_id)
    # Who never committed has everything before it that is still there.
    consumed = bounds.min_offset if consumed is None else consumed
    pulled = core.offsets.pulled(group, topic, queue_id)
    return {
        "brokerOffset": bounds.max_offset,
        "consumerOffset": consumed,
        "pullOffset": consumed if pulled is None else max(pulled, consumed),
        "lastTimestamp": _stored(core, topic, queue_id, consumed - 1),
    }


def _stored(core: Core, topic: str, queue_id: int, offset: int) -> int:
    bounds = core.store.bounds(topic, queue_id)
    known = bounds.min_offset <= offset < bounds.max_offset
    return core.store.store_time(topic, queue_id, offset) if known else 0


def get_all_consume_stats(core: Core, request: Request) -> Command:
    """Return how far all groups have come; with ``isOrder`` only those that consume in order."""
    in_order = request.flag("isOrder")
    rows: list[dict[str, list[object]]] = []
    behind = 0
    for config in core.groups.configs():
        if in_order and not config.consume_message_orderly:
            continue
        table = _stats(core, config.group_name, topics_read(core, config.group_name))
        if table:
            behind += sum(row["brokerOffset"] - row["consumerOffset"] for row in table.values())
            rows.append({config.group_name: [{"consumeTps": 0.0, "offsetTable": table}]})
    body = {"consumeStatsList": rows, "brokerAddr": core.address, "totalDiff": behind}
    return request.reply(body=routes.dumps(body))


def get_time_span(core: Core, request: Request) -> Command:
    """Return the times between which each queue holds messages, and how late a group is."""
    topic, group = request.text("topic"), request.text("group")
    rows = []
    for queue_id in range(core.topics.get(topic).write_queue_nums):
        bounds = core.store.bounds(topic, queue_id)
        consumed = core.offsets.get(group, topic, queue_id)
        latest = _stored(core, topic, queue_id, bounds.max_offset - 1)
        seen = _stored(core, topic, queue_id, (consumed or 0) - 1) if consumed else -1
        waits = consumed is None or consumed < bounds.max_offset
        rows.append(
            {
                "messageQueue": routes.MessageQueue(topic, core.name, queue_id),
                "minTimeStamp": _stored(core, topic, queue_id, bounds.min_offset),
                "maxTimeStamp": latest,
                "consumeTimeStamp": seen,
                "delayTime": max(core.now() - max(seen, 0), 0) if waits and latest else 0,
            }
        )
    return request.reply(body=routes.dumps({"consumeTimeSpanSet": rows}))


def reset_offsets(core: Core, request: Request) -> Command:
    """Move a group to a time, or to an offset; its members hear of it at once."""
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
    # Pulls that wait for a message are told at once.
    core.arrived([(topic, queue_id) for queue_id in moved])
    table = {
        routes.MessageQueue(topic, core.name, queue_id).key: to for queue_id, to in moved.items()
    }
    return request.reply(body=routes.dumps({"offsetTable": table}))


def clone_offsets(core: Core, request: Request) -> Command:
    """Let a group begin where another one stands."""
    source, target = request.text("srcGroup"), request.text("destGroup")
    only = request.text("topic", "")
    if source not in core.offsets.groups():
        raise GroupNotFoundError(f"group {source!r} has no offsets to clone")
    core.retry_topic(target)
    for topic in [only] if only else core.offsets.topics_of(source):
        for queue_id in range(core.topics.get(topic).read_queue_nums):
            offset = core.offsets.get(source, topic, queue_id)
            if offset is not None:
                core.offsets.put(target, topic, queue_id, offset)
    return request.reply()


# Requests of tools about groups: their members and what these read.


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
    return request.reply(body=routes.dumps(body))


def get_producer_connections(core: Core, request: Request) -> Command:
    """Describe the members of a producer group."""
    name = request.text("producerGroup")
    members = core.clients.producers(name)
    if not members:
        remark = f"the producer group[{name}] not exist"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)
    return request.reply(body=routes.dumps({"connectionSet": _connections(members)}))


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
    return request.reply(body=routes.dumps({"data": data}))


def get_groups_of_topic(core: Core, request: Request) -> Command:
    """List the groups that read a topic."""
    topic = request.text("topic")
    groups = {group.name for group in core.clients.groups() if topic in group.subscriptions}
    groups.update(core.offsets.groups_of(topic))
    return request.reply(body=routes.dumps({"groupList": sorted(groups)}))


def get_topics_of_group(core: Core, request: Request) -> Command:
    """List the topics that a group reads."""
    topics = topics_read(core, request.text("group"))
    return request.reply(body=routes.dumps({"topicList": topics, "brokerAddr": core.address}))


def get_subscription(core: Core, request: Request) -> Command:
    """Describe what a group said about a topic."""
    group, topic = request.text("group"), request.text("topic")
    found = core.clients.subscription(group, topic)
    body: dict[str, object] = {"group": group, "topic": topic}
    if found is not None:
        body["subscriptionData"] = found
    return request.reply(body=routes.dumps(body))


async def update_topic(core: Core, request: Request) -> Command:
    """Create a topic or change it."""
    await _keep(core, [core.topics.update(_config(request), request.text("attributes", ""))])
    return request.reply()


async def _keep(core: Core, configs: list[routes.TopicConfig]) -> None:
    """Make topics durable, and compact those that are to be before they get a message."""
    kept = []
    async for part in core.in_parts(configs):
        kept += [future for config in part if (future := core.keep_as_configured(config))]
    for future in kept:
        await asyncio.wrap_future(future)
    await core.tables.save()


async def update_static_topic(core: Core, request: Request) -> Command:
    """Create a static topic or change it: its queues have numbers that no broker owns."""
    config, detail = _config(request), await core.read(request, routes.MappingDetail)
    if detail.topic != config.topic_name:
        message = f"the mapping is of topic {detail.topic!r}, not {config.topic_name!r}"
        raise InvalidParameterError(message)
    queues = min(config.read_queue_nums, config.write_queue_nums)
    merged = core.static_topics.merged(detail, queues=queues, force=request.flag("force"))
    core.topics.update(config, request.text("attributes", ""))
    core.static_topics.put(merged)
    await core.tables.save()
    return request.reply()


def _config(request: Request) -> routes.TopicConfig:
    return routes.TopicConfig(
        topic_name=request.text("topic"),
        read_queue_nums=request.number("readQueueNums"),
        write_queue_nums=request.number("writeQueueNums"),
        perm=request.number("perm"),
        topic_filter_type=request.text("topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=request.number("topicSysFlag", 0),
        order=request.flag("order"),
    )


async def update_topics(core: Core, request: Request) -> Command:
    """Create or change several topics."""
    asked = await core.read(request, routes.TopicConfigList)
    updated = []
    async for part in core.in_parts(asked.topic_config_list):
        for config in part:
            attributes = ",".join(
                key if key.startswith("-") else f"+{key.removeprefix('+')}={value}"
                for key, value in config.attributes.items()
            )
            updated.append(core.topics.update(config, attributes))
    await _keep(core, updated)
    return request.reply()


async def delete_topic(core: Core, request: Request) -> Command:
    """Delete a topic with its messages; one that is not there is deleted already."""
    if await core.delete_topic(request.text("topic")):
        await core.replication.settled(core.replication.port.end)
    return request.reply()


def get_topic_config(core: Core, request: Request) -> Command:
    """Describe a topic."""
    config = core.topics.get(request.text("topic"))
    if request.flag("lo") and (detail := core.static_topics.find(config.topic_name)) is not None:
        config = msgspec.structs.replace(config, mapping_detail=detail)
    return request.reply(body=routes.dumps(config))


async def get_all_topic_config(core: Core, request: Request) -> Command:
    """Describe all topics."""
    version = routes.DataVersion(timestamp=core.tables.started, counter=core.topics.version)
    table = routes.TopicConfigTable(
        topic_config_table={config.topic_name: config for config in core.topics.configs()},
        data_version=version,
        topic_queue_mapping_info_map=core.static_topics.infos(),
        topic_queue_mapping_detail_map=core.static_topics.details(),
        mapping_data_version=routes.DataVersion(
            timestamp=core.tables.started, counter=core.static_topics.version
        ),
    )
    return request.reply(body=await core.work.in_thread(routes.dumps, table))


def get_topic_stats(core: Core, request: Request) -> Command:
    """Return the offsets of a topic's queues, and when each got its last message."""
    topic = request.text("topic")
    config = core.topics.get(topic)
    table = {}
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
        bounds = core.store.bounds(topic, queue_id)
        empty = bounds.min_offset == bounds.max_offset
        table[routes.MessageQueue(topic, core.name, queue_id).key] = {
            "minOffset": bounds.min_offset,
            "maxOffset": bounds.max_offset,
            "lastUpdateTimestamp": 0
            if empty
            else core.store.store_time(topic, queue_id, bounds.max_offset - 1),
        }
    return request.reply(body=routes.dumps({"offsetTable": table, "topicPutTps": 0.0}))


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_topics,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: update_static_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_TOPIC_CONFIG: get_topic_config,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topic_config,
    RequestCode.GET_TOPIC_STATS_INFO: get_topic_stats,
    RequestCode.GET_CONSUME_STATS: get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: get_time_span,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: get_all_producers,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: get_groups_of_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: get_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: get_subscription,
}
