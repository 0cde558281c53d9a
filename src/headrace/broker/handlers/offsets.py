"""Requests about offsets: a group's, a queue's, and by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.network.admission import check_group
from headrace.broker.static_topics import LogicalQueue
from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _queue(core: Core, request: Request) -> tuple[str, LogicalQueue]:
    """Read topic and queue; of a static topic, where the queue is here."""
    topic, queue_id = request.text("topic"), request.number("queueId")
    found = core.static_topics.locate(topic, queue_id) if request.flag("lo", default=True) else None
    return topic, found or LogicalQueue(queue_id, queue_id)


def query_consumer_offset(core: Core, request: Request) -> Command:
    """Tell how far a group has come in a queue."""
    group = request.text("consumerGroup")
    topic, queue = _queue(core, request)
    offset = core.offsets.get(group, topic, queue.queue_id)
    if offset is None:
        young = queue.logical(core.store.bounds(topic, queue.queue_id).min_offset) <= 0
        # RocketMQ lets a new group begin a young queue at its start, unless it insists.
        if not young or not request.flag("setZeroIfNotFound", default=True):
            remark = f"group {group!r} has no offset in queue {queue.global_id} of topic {topic!r}"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
        offset = 0
    return request.reply(ext={"offset": str(queue.logical(offset))})


def update_consumer_offset(core: Core, request: Request) -> Command:
    """Note how far a group has come in a queue."""
    topic, queue = _queue(core, request)
    config = core.topics.get(topic)
    offset, queue_id = request.number("commitOffset"), queue.queue_id
    count = max(config.read_queue_nums, config.write_queue_nums)
    if offset < 0 or not 0 <= queue_id < count:
        message = f"offset {offset} of queue {queue_id} of topic {topic!r} cannot be"
        raise InvalidParameterError(message)
    group = request.text("consumerGroup")
    if core.offsets.get(group, topic, queue_id) is None:
        check_group(core, group)
        core.show_group(group)
    core.offsets.update(group, topic, queue_id, queue.physical(offset))
    return request.reply()


def get_max_offset(core: Core, request: Request) -> Command:
    """Tell the offset that the next message of a queue gets."""
    topic, queue = _queue(core, request)
    offset = core.store.bounds(topic, queue.queue_id).max_offset
    return request.reply(ext={"offset": str(queue.logical(offset))})


def get_min_offset(core: Core, request: Request) -> Command:
    """Tell the first offset that a queue still holds."""
    topic, queue = _queue(core, request)
    offset = core.store.bounds(topic, queue.queue_id).min_offset
    return request.reply(ext={"offset": str(queue.logical(offset))})


def search_offset_by_timestamp(core: Core, request: Request) -> Command:
    """Find a queue's first message that was stored at a time or later, or the last before."""
    topic, queue = _queue(core, request)
    upper = request.text("boundaryType", "LOWER").upper() == "UPPER"
    timestamp = request.number("timestamp")
    offset = core.store.offset_at(topic, queue.queue_id, timestamp, upper=upper)
    return request.reply(ext={"offset": str(queue.logical(offset))})


def get_earliest_store_time(core: Core, request: Request) -> Command:
    """Tell when the first message of a queue was stored."""
    topic, queue = _queue(core, request)
    queue_id = queue.queue_id
    bounds = core.store.bounds(topic, queue_id)
    empty = bounds.min_offset == bounds.max_offset
    timestamp = -1 if empty else core.store.store_time(topic, queue_id, bounds.min_offset)
    return request.reply(ext={"timestamp": str(timestamp)})


HANDLERS = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset_by_timestamp,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_store_time,
}
