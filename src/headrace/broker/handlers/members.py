"""Requests of tools that only a member of a group can answer, and what a group is to read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import InvalidParameterError, RequestTimeoutError
from headrace.protocol.allocation import average_rule
from headrace.protocol.bodies import loads
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.ids import decode_offset_id
from headrace.protocol.routes import QueueRef, dumps

if TYPE_CHECKING:
    from headrace.broker.clients import Member
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Buffer, Command

__all__ = ["HANDLERS"]

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
                answer = await core.questions.ask(peer, request.command.code, ext, body, _PATIENCE)
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
        answer = await core.questions.ask(peer, code, ext, b"", _PATIENCE)
    except RequestTimeoutError:
        return None
    body = loads(answer.payload or b"{}", dict[str, dict[str, int]])
    # Keys come as objects, and go out as text that holds their JSON.
    return {QueueRef.of_key(key).key: at for key, at in body.get("messageQueueTable", {}).items()}


def query_assignment(core: Core, request: Request) -> Command:
    """Tell a member which queues it is to read, for clients that leave that to the broker."""
    asked = request.body(dict[str, object])
    topic, name = str(asked.get("topic", "")), str(asked.get("consumerGroup", ""))
    strategy = asked.get("strategyName")
    if strategy != "AVG":
        raise InvalidParameterError(f"queues cannot be shared by the rule {strategy!r}: use 'AVG'")
    config = core.topics.get(topic)
    queues = [QueueRef(topic, core.name, queue_id) for queue_id in range(config.read_queue_nums)]
    if asked.get("messageModel") != "BROADCASTING":
        group = core.clients.group(name)
        ids = group.client_ids() if group else []
        queues = list(average_rule(queues, ids, str(asked.get("clientId", ""))))
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


HANDLERS = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: get_consumer_status,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
}
