"""Requests about offsets: a group's, a queue's, and by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _queue(request: Request) -> tuple[str, int]:
    return request.text("topic"), request.number("queueId")


def query_consumer_offset(core: Core, request: Request) -> Command:
    """Tell how far a group has come in a queue."""
    group = request.text("consumerGroup")
    topic, queue_id = _queue(request)
    offset = core.offsets.get(group, topic, queue_id)
    if offset is None:
        young = core.store.bounds(topic, queue_id).min_offset <= 0
        # RocketMQ lets a new group begin a young queue at its start, unless it insists.
        if not young or not request.flag("setZeroIfNotFound", default=True):
            remark = f"group {group!r} has no offset in queue {queue_id} of topic {topic!r}"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
        offset = 0
    return request.reply(ext={"offset": str(offset)})


def update_consumer_offset(core: Core, request: Request) -> Command:
    """Note how far a group has come in a queue."""
    topic, queue_id = _queue(request)
    core.topics.get(topic)
    offset = request.number("commitOffset")
    if offset < 0 or queue_id < 0:
        message = f"offset {offset} of queue {queue_id} of topic {topic!r} cannot be"
        raise InvalidParameterError(message)
    group = request.text("consumerGroup")
    if core.offsets.get(group, topic, queue_id) is None:
        core.show_group(group)
    core.offsets.update(group, topic, queue_id, offset)
    return request.reply()


def get_max_offset(core: Core, request: Request) -> Command:
    """Tell the offset that the next message of a queue gets."""
    return request.reply(ext={"offset": str(core.store.bounds(*_queue(request)).max_offset)})


def get_min_offset(core: Core, request: Request) -> Command:
    """Tell the first offset that a queue still holds."""
    return request.reply(ext={"offset": str(core.store.bounds(*_queue(request)).min_offset)})


def search_offset_by_timestamp(core: Core, request: Request) -> Command:
    """Find a queue's first message that was stored at a time or later, or the last before."""
    topic, queue_id = _queue(request)
    upper = request.text("boundaryType", "LOWER").upper() == "UPPER"
    timestamp = request.number("timestamp")
    offset = core.store.offset_at(topic, queue_id, timestamp, upper=upper)
    return request.reply(ext={"offset": str(offset)})


def get_earliest_store_time(core: Core, request: Request) -> Command:
    """Tell when the first message of a queue was stored."""
    topic, queue_id = _queue(request)
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
