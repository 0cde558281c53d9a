"""Requests of tools about how far groups have come, and to move them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import GroupNotFoundError
from headrace.protocol.codes import RequestCode
from headrace.protocol.routes import QueueRef, dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS", "topics_read"]


def topics_read(core: Core, group: str) -> list[str]:
    """List the topics that a group reads: once it has members, those that they subscribe to."""
    found = core.clients.group(group)
    topics = set(core.offsets.topics_of(group))
    if found is not None and found.members and found.subscriptions:
        # Members that assign queues to themselves name no topic.
        return sorted(found.subscriptions)
    return sorted(topics)


def get_consume_stats(core: Core, request: Request) -> Command:
    """Tell how far a group has come in every queue that it reads, or in the topics named."""
    name = request.text("consumerGroup")
    named = [request.text("topic", ""), *request.text("topicList", "").split(";")]
    topics = [topic for topic in named if topic] or topics_read(core, name)
    table = _stats(core, name, topics)
    return request.reply(body=dumps({"consumeTps": 0.0, "offsetTable": table}))


def _stats(core: Core, group: str, topics: Iterable[str]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for topic in topics:
        config = core.topics.find(topic)
        for queue_id in range(config.read_queue_nums if config else 0):
            key = QueueRef(topic, core.name, queue_id).key
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
    """Tell how far all groups have come; with ``isOrder`` only those that consume in order."""
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
    return request.reply(body=dumps(body))


def get_time_span(core: Core, request: Request) -> Command:
    """Tell the times between which each queue holds messages, and how late a group is."""
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
                "messageQueue": QueueRef(topic, core.name, queue_id),
                "minTimeStamp": _stored(core, topic, queue_id, bounds.min_offset),
                "maxTimeStamp": latest,
                "consumeTimeStamp": seen,
                "delayTime": max(core.now() - max(seen, 0), 0) if waits and latest else 0,
            }
        )
    return request.reply(body=dumps({"consumeTimeSpanSet": rows}))


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
    table = {QueueRef(topic, core.name, queue_id).key: to for queue_id, to in moved.items()}
    return request.reply(body=dumps({"offsetTable": table}))


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


HANDLERS = {
    RequestCode.GET_CONSUME_STATS: get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: get_time_span,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
}
