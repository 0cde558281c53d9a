"""Requests of clients about themselves: heartbeats, groups and queue locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.clients import Member
from headrace.broker.network.admission import check_heartbeat
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.groups import ClientConfig, Heartbeat, LockRequest
from headrace.protocol.routes import QueueRef, dumps

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


async def heart_beat(core: Core, request: Request) -> Command:
    """Note who is there and what its groups read."""
    beat = await core.read(request, Heartbeat)
    check_heartbeat(core, beat, request.peer.number)
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
    asked = request.body(ClientConfig)
    kind = asked.subscription_data.expression_type or "TAG"
    if kind != "TAG":
        message = f"The broker does not support consumer to filter message by {kind}"
        return request.reply(ResponseCode.SYSTEM_ERROR, message)
    return request.reply()


async def lock_queues(core: Core, request: Request) -> Command:
    """Let a client consume queues alone, for a while."""
    asked = await core.read(request, LockRequest)
    granted: list[QueueRef] = []
    async for part in core.in_parts(asked.mq_set):
        names = {(queue.topic, queue.queue_id): queue for queue in part}
        found = core.locks.acquire(
            asked.consumer_group, asked.client_id, names, now=core.loop.time()
        )
        granted += map(names.__getitem__, found)
    return request.reply(body=await core.write(request, {"lockOKMQSet": granted}))


async def unlock_queues(core: Core, request: Request) -> Command:
    """Give queues back."""
    asked = await core.read(request, LockRequest)
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
}
