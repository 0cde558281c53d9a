"""Requests of clients about themselves: heartbeats, groups and queue locks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.clients import Member
from headrace.broker.rewriting import SendBackRequest, sent_back
from headrace.broker.topics import RETRY_PREFIX
from headrace.errors import (
    InvalidParameterError,
    NoPermissionError,
    NotFoundError,
    RequestTimeoutError,
)
from headrace.protocol import groups
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import decode_offset_id
from headrace.protocol.routes import DataVersion, MessageQueue, dumps, loads

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Buffer, Command


# Requests of tools that only a member of a group can answer, and what a group is to read.

_PATIENCE = 5.0


async def _forward(core: Core, request: Request, body: Buffer) -> Command:
    """Let the member that a request names answer it."""
    group, client = request.text("consumerGroup"), request.text("clientId", "")
    found = core.clients.group(group)
    members = [] if found is None else list(found.members.values())
    for member in members:
        peer = core.peers.get(member.peer)
        if member.client_id == client and peer is not None:
            ext = request.command.ext | {"brokerName": core.name}
            try:
                answer = await core.client_requests.ask(
                    peer, request.command.code, ext, body, _PATIENCE
                )
            except RequestTimeoutError as error:
                remark = f"consumer <{group}> <{client}> Exception: {error}"
                return request.reply(ResponseCode.SYSTEM_ERROR, remark)
            reply = request.reply(remark=answer.remark, ext=answer.ext, body=answer.payload)
            reply.code = answer.code
            return reply
    remark = f"The Consumer <{group}> <{client}> not online"
    return request.reply(ResponseCode.SYSTEM_ERROR, remark)


async def get_running_info(core: Core, request: Request) -> Command:
    """Ask a member what it is doing."""
    return await _forward(core, request, b"")


async def consume_directly(core: Core, request: Request) -> Command:
    """Have a member consume one message now."""
    body: Buffer = request.command.payload
    if message_id := request.text("msgId", ""):
        body = core.store.read_at(decode_offset_id(message_id)[1])
    return await _forward(core, request, body)


async def get_consumer_status(core: Core, request: Request) -> Command:
    """Ask the members of a group how far each has come in a topic."""
    topic, group = request.text("topic"), request.text("group")
    only = request.text("clientAddr", "")
    found = core.clients.group(group)
    members = [] if found is None else list(found.members.values())
    if not members:
        remark = f"No Any Consumer online in the consumer group: [{group}]"
        return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    asked = [member for member in members if only in ("", member.client_id)]
    tables = await asyncio.gather(*(_status(core, member, topic, group) for member in asked))
    table = {
        member.client_id: offsets
        for member, offsets in zip(asked, tables, strict=True)
        if offsets is not None
    }
    return request.reply(body=dumps({"messageQueueTable": {}, "consumerTable": table}))


async def _status(core: Core, member: Member, topic: str, group: str) -> dict[str, int] | None:
    peer = core.peers.get(member.peer)
    if peer is None:
        return None
    code, ext = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
    try:
        answer = await core.client_requests.ask(peer, code, ext, b"", _PATIENCE)
    except RequestTimeoutError:
        return None
    body = loads(answer.payload or b"{}", dict[str, dict[str, int]])
    # Keys come as objects, and go out as text that holds their JSON.
    return {
        MessageQueue.of_key(key).key: at for key, at in body.get("messageQueueTable", {}).items()
    }


def query_assignment(core: Core, request: Request) -> Command:
    """Return which queues a member is to read, for clients that leave that to the broker."""
    asked = request.body(dict[str, object])
    topic, name = str(asked.get("topic", "")), str(asked.get("consumerGroup", ""))
    strategy = asked.get("strategyName")
    if strategy != "AVG":
        raise InvalidParameterError(f"queues cannot be shared by the rule {strategy!r}: use 'AVG'")
    config = core.topics.get(topic)
    queues = [
        MessageQueue(topic, core.name, queue_id) for queue_id in range(config.read_queue_nums)
    ]
    if asked.get("messageModel") != "BROADCASTING":
        group = core.clients.group(name)
        ids = group.client_ids() if group else []
        queues = list(groups.average_rule(queues, ids, str(asked.get("clientId", ""))))
    rows = [{"messageQueue": queue, "mode": "PULL", "attachments": {}} for queue in queues]
    return request.reply(body=dumps({"messageQueueAssignments": rows}))


def set_request_mode(_core: Core, request: Request) -> Command:
    """Accept that a group pulls, which is all that this broker offers."""
    asked = request.body(dict[str, object])
    mode = asked.get("mode", "PULL")
    if mode != "PULL":
        message = f"group {asked.get('consumerGroup')!r} cannot consume by {mode}"
        raise InvalidParameterError(message, hint="This broker offers PULL only.")
    return request.reply()


# Requests of tools about the settings of groups: create, change, delete and describe them.


async def update_group(core: Core, request: Request) -> Command:
    """Create a group or change it."""
    await _update(core, [request.body(groups.SubscriptionGroupConfig)])
    return request.reply()


async def update_groups(core: Core, request: Request) -> Command:
    """Create or change several groups."""
    body = await core.read(request, dict[str, list[groups.SubscriptionGroupConfig]])
    await _update(core, body.get("groupConfigList", []))
    return request.reply()


async def _update(core: Core, configs: list[groups.SubscriptionGroupConfig]) -> None:
    async for part in core.in_parts(configs):
        for config in part:
            core.groups.update(config)
            core.retry_topic(config.group_name)
    await core.tables.save()


async def get_groups(core: Core, request: Request) -> Command:
    """Describe all groups."""
    body = {
        "subscriptionGroupTable": {config.group_name: config for config in core.groups.configs()},
        "forbiddenTable": {},
        "dataVersion": DataVersion(timestamp=core.tables.started, counter=core.groups.version),
    }
    return request.reply(body=await core.work.in_thread(dumps, body))


def get_group(core: Core, request: Request) -> Command:
    """Describe one group."""
    config = core.groups.get(request.text("group"))
    core.tables.save_soon()
    return request.reply(body=dumps(config))


async def delete_group(core: Core, request: Request) -> Command:
    """Delete a group, and its offsets if asked to; a member's next request creates it anew."""
    name = request.text("groupName")
    core.groups.delete(name)
    core.clients.forget(name)
    if request.flag("cleanOffset"):
        core.offsets.forget_group(name)
    await core.tables.save(offsets=request.flag("cleanOffset"))
    return request.reply()


# Requests about messages that come later: sent back by consumers, or waiting for their time.


async def send_back(core: Core, request: Request) -> Command:
    """Deliver a message to a group again later, or keep it as a dead letter."""
    group = request.text("group")
    core.check_group(group)
    config = core.groups.get(group)
    if config.retry_queue_nums <= 0:
        return request.reply()
    topic = core.retry_topic(group)
    if not topic.perm & Perm.WRITE:
        raise NoPermissionError(f"the topic[{RETRY_PREFIX}{group}] sending message is forbidden")
    position = request.number("offset")
    try:
        record = core.store.read_at(position)
    except NotFoundError as error:
        remark = f"look message by offset failed, {position}: {error}"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)
    (message,) = decode_messages(record, unpack=False)
    origin = request.text("originTopic", message.topic)
    if message.topic not in (origin, RETRY_PREFIX + group):
        # Whoever may read one topic must not get a copy of another one's messages.
        raise NoPermissionError(f"the message at {position} is not of topic {origin!r}")
    asked = SendBackRequest(
        group,
        request.number("maxReconsumeTimes", config.retry_max_times),
        level=request.number("delayLevel"),
        queue_id=random.randrange(config.retry_queue_nums),
    )
    draft = sent_back(message, asked)
    core.tables.ensure_topic(draft.topic, queues=1)
    await core.put(core.delays.parked(draft))
    return request.reply()


def get_delay_offsets(core: Core, request: Request) -> Command:
    """Return how far the delivery of delayed messages has come, by level."""
    version = DataVersion(timestamp=core.tables.started, counter=core.store.statistics().units)
    levels = core.delays.scheduler.progress.levels
    table = {str(level): offset for level, offset in sorted(levels.items())}
    return request.reply(body=dumps({"offsetTable": table, "dataVersion": version}))


# Requests of tools that change the broker's settings while it runs, or tidy it up.


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


#: RocketMQ's name of each setting that may change, with ours and how its value is read.
_CHANGEABLE: dict[str, tuple[str, Callable[[str], object]]] = {
    "autoCreateTopicEnable": ("create_topics", _truth),
    "autoCreateSubscriptionGroup": ("create_groups", _truth),
    "defaultTopicQueueNums": ("default_queues", _positive),
}


def update_broker_config(core: Core, request: Request) -> Command:
    """Change settings until the broker stops: none of them, or all that were named."""
    changes: dict[str, object] = {}
    for line in request.lines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        if key not in _CHANGEABLE:
            message = f"the setting {key!r} cannot be changed while the broker runs"
            hint = f"These can: {', '.join(_CHANGEABLE)}."
            raise InvalidParameterError(message, hint=hint)
        name, read = _CHANGEABLE[key]
        try:
            changes[name] = read(value)
        except ValueError:
            raise InvalidParameterError(f"{key} cannot be {value!r}") from None
    core.change_settings(**changes)
    return request.reply()


async def tidy(core: Core, request: Request) -> Command:
    """Delete now what has expired; by itself it goes within seconds."""
    await core.work.in_thread(core.store.expire)
    return request.reply()


async def delete_unused_topics(core: Core, request: Request) -> Command:
    """Delete retry topics of groups that do not exist any more, if they hold no message."""
    for name in list(core.topics):
        group = name.removeprefix("%RETRY%")
        if group != name and group not in core.groups and core.clients.group(group) is None:
            bounds = core.store.bounds(name, 0)
            if bounds.min_offset == bounds.max_offset:
                await core.delete_topic(name)
    return request.reply()


def view_stats(_core: Core, request: Request) -> Command:
    """Return a figure per minute, hour and day, of which this broker keeps none."""
    name, key = request.text("statsName"), request.text("statsKey")
    return request.reply(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")


async def heart_beat(core: Core, request: Request) -> Command:
    """Note who is there and what its groups read."""
    beat = await core.read(request, groups.Heartbeat)
    core.check_heartbeat(beat, request.peer.number)
    command, peer = request.command, request.peer
    host, port = peer.address
    member = Member(
        beat.client_id, peer.number, f"{host}:{port}", command.language, command.version
    )
    for consumer in beat.consumer_data_set:
        if core.groups.creates or consumer.group_name in core.groups:
            core.retry_topic(consumer.group_name)
    notices = core.clients.heartbeat(beat, member, now=core.loop.time())
    core.notify(notices)
    # After news a client of the second version sends its subscriptions once more.
    ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(bool(notices)).lower()}
    return request.reply(ext=ext)


def unregister_client(core: Core, request: Request) -> Command:
    """Let a client leave a group."""
    notices = core.clients.unregister(
        request.peer.number,
        producer_group=request.text("producerGroup", ""),
        consumer_group=request.text("consumerGroup", ""),
    )
    core.notify(notices)
    return request.reply()


def get_consumer_list(core: Core, request: Request) -> Command:
    """List the members of a consumer group."""
    name = request.text("consumerGroup")
    group = core.clients.group(name)
    ids = group.client_ids() if group else []
    if not ids:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer of group {name!r} is here")
    return request.reply(body=dumps({"consumerIdList": ids}))


def check_client_config(_core: Core, request: Request) -> Command:
    """Refuse a subscription that pulls could not use."""
    asked = request.body(groups.ClientConfig)
    kind = asked.subscription_data.expression_type or "TAG"
    if kind != "TAG":
        message = f"The broker does not support consumer to filter message by {kind}"
        return request.reply(ResponseCode.SYSTEM_ERROR, message)
    return request.reply()


async def lock_queues(core: Core, request: Request) -> Command:
    """Let a client consume queues alone, for a while."""
    asked = await core.read(request, groups.LockRequest)
    granted: list[MessageQueue] = []
    async for part in core.in_parts(asked.mq_set):
        names = {(queue.topic, queue.queue_id): queue for queue in part}
        found = core.locks.acquire(
            asked.consumer_group, asked.client_id, names, now=core.loop.time()
        )
        granted += map(names.__getitem__, found)
    return request.reply(body=await core.write(request, {"lockOKMQSet": granted}))


async def unlock_queues(core: Core, request: Request) -> Command:
    """Return queues back."""
    asked = await core.read(request, groups.LockRequest)
    async for part in core.in_parts(asked.mq_set):
        queues = [(queue.topic, queue.queue_id) for queue in part]
        core.locks.release(asked.consumer_group, asked.client_id, queues)
    return request.reply()


HANDLERS = {
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: get_consumer_list,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
    RequestCode.GET_CONSUMER_RUNNING_INFO: get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: get_consumer_status,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.GET_ALL_DELAY_OFFSET: get_delay_offsets,
    RequestCode.UPDATE_BROKER_CONFIG: update_broker_config,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: tidy,
    RequestCode.DELETE_EXPIRED_COMMITLOG: tidy,
    RequestCode.CLEAN_UNUSED_TOPIC: delete_unused_topics,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
}
