"""Pull requests: messages of one queue from an offset on, or a wait for the next one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.requests import Request, failure
from headrace.broker.static_topics import LogicalQueue
from headrace.errors import BrokerError, InvalidParameterError, NoPermissionError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.groups import java_hash, split_tags
from headrace.store import ReadResult, ReadStatus

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.protocol.frames import Command


# Requests about offsets: a group's, a queue's, and by time.


def _queue(core: Core, request: Request) -> tuple[str, LogicalQueue]:
    """Read topic and queue; of a static topic, where the queue is here."""
    topic, queue_id = request.text("topic"), request.number("queueId")
    found = core.static_topics.locate(topic, queue_id) if request.flag("lo", default=True) else None
    return topic, found or LogicalQueue(queue_id, queue_id)


def query_consumer_offset(core: Core, request: Request) -> Command:
    """Return how far a group has come in a queue."""
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
        core.check_group(group)
        core.show_group(group)
    core.offsets.update(group, topic, queue_id, queue.physical(offset))
    return request.reply()


def get_max_offset(core: Core, request: Request) -> Command:
    """Return the offset that the next message of a queue gets."""
    topic, queue = _queue(core, request)
    offset = core.store.bounds(topic, queue.queue_id).max_offset
    return request.reply(ext={"offset": str(queue.logical(offset))})


def get_min_offset(core: Core, request: Request) -> Command:
    """Return the first offset that a queue still holds."""
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
    """Return when the first message of a queue was stored."""
    topic, queue = _queue(core, request)
    queue_id = queue.queue_id
    bounds = core.store.bounds(topic, queue_id)
    empty = bounds.min_offset == bounds.max_offset
    timestamp = -1 if empty else core.store.store_time(topic, queue_id, bounds.min_offset)
    return request.reply(ext={"timestamp": str(timestamp)})


_COMMIT = 1
_SUSPEND = 2
_SUBSCRIPTION = 4

_FOUND = (ResponseCode.SUCCESS, "FOUND")
_ANSWERS = {
    ReadStatus.FOUND: _FOUND,
    ReadStatus.NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    ReadStatus.AT_END: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    ReadStatus.BEYOND: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
    ReadStatus.BELOW_MIN: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
}


@dataclass(frozen=True, slots=True)
class _Pull:
    """What a pull asks for, checked."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_count: int
    max_bytes: int
    tags: frozenset[int] | None
    #: The queue as clients of a static topic name it, None for other topics.
    static: LogicalQueue | None = None


def pull_message(core: Core, request: Request) -> Command | None:
    """Answer with messages, or let the request wait for one."""
    flags = request.number("sysFlag")
    pull = _checked(core, request, flags)
    reset = _reset_for(core, request, pull)
    if reset is not None:
        return _moved_by_reset(core, request, pull, reset)
    commit = request.number("commitOffset", 0)
    if flags & _COMMIT and commit >= 0:
        commit = pull.static.physical(commit) if pull.static else commit
        if core.offsets.get(pull.group, pull.topic, pull.queue_id) is None:
            core.show_group(pull.group)
        core.offsets.update(pull.group, pull.topic, pull.queue_id, commit)
    core.offsets.note_pull(pull.group, pull.topic, pull.queue_id, pull.offset)
    seconds = request.number("suspendTimeoutMillis", 0) / 1000 if flags & _SUSPEND else 0.0
    return _answer_or_wait(core, request, pull, core.loop.time() + seconds)


def _reset_for(core: Core, request: Request, pull: _Pull) -> int | None:
    place, peer = (pull.group, pull.topic, pull.queue_id), request.peer.number
    return core.offsets.reset_for(*place, peer=peer, pulled=pull.offset)


def _answer_or_wait(core: Core, request: Request, pull: _Pull, deadline: float) -> Command | None:
    result = _read(core, pull)
    left = deadline - core.loop.time()
    if left > 0 and _is_at_end(pull, result):
        wake = partial(_wake, core, request, pull, deadline)
        end_wait = core.wait([(pull.topic, pull.queue_id)], left, request.peer, wake)
        result = _read(core, pull)
        if _is_at_end(pull, result):
            return None
        end_wait()
    return _answer(request, pull, result)


def _wake(core: Core, request: Request, pull: _Pull, deadline: float) -> None:
    """Look again; an arrival may be told of a message that the first look saw already."""
    reset = _reset_for(core, request, pull)
    if reset is not None:
        request.answer(_moved_by_reset(core, request, pull, reset))
        return
    try:
        answer = _answer_or_wait(core, request, pull, deadline)
    except Exception as error:  # noqa: BLE001  (the client is told, whatever it is)
        answer = failure(request, error)
    if answer is not None:
        request.answer(answer)


def _read(core: Core, pull: _Pull) -> ReadResult:
    result = core.store.read(
        pull.topic, pull.queue_id, pull.offset, pull.max_count, pull.max_bytes, pull.tags
    )
    core.messages_out += result.count
    return result


def _is_at_end(pull: _Pull, result: ReadResult) -> bool:
    empty = result.status is ReadStatus.EMPTY and pull.offset == result.max_offset
    return empty or result.status is ReadStatus.AT_END


def _answer(request: Request, pull: _Pull, result: ReadResult) -> Command:
    next_offset = result.next_offset
    if result.status is ReadStatus.EMPTY:
        moved = pull.offset != result.max_offset
        code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        remark, next_offset = "NO_MESSAGE_IN_QUEUE", result.max_offset
    else:
        code, remark = _ANSWERS[result.status]
        if result.status is ReadStatus.BEYOND:
            next_offset = result.max_offset
        elif result.status is ReadStatus.BELOW_MIN:
            next_offset = result.min_offset
    ext = _ext(next_offset, result.min_offset, result.max_offset, pull.static)
    return request.reply(code, remark, ext=ext, body=list(result.slices))


def _ext(
    next_offset: int, min_offset: int, max_offset: int, static: LogicalQueue | None
) -> dict[str, str]:
    if static is not None:
        offsets = map(static.logical, (next_offset, min_offset, max_offset))
        return _ext(next(offsets), next(offsets), next(offsets), None) | {
            "offsetDelta": str(static.delta)
        }
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }


def _moved_by_reset(core: Core, request: Request, pull: _Pull, offset: int) -> Command:
    bounds = core.store.bounds(pull.topic, pull.queue_id)
    ext = _ext(offset, bounds.min_offset, bounds.max_offset, pull.static)
    return request.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext=ext)


def _checked(core: Core, request: Request, flags: int) -> _Pull:
    group, topic = request.text("consumerGroup"), request.text("topic")
    queue_id, offset = request.number("queueId"), request.number("queueOffset")
    config = core.topics.get(topic)
    _check_group(core, group)
    static = core.static_topics.locate(topic, queue_id)
    if static is not None:
        queue_id, offset = static.queue_id, static.physical(offset)
    if not config.perm & Perm.READ:
        raise NoPermissionError(f"topic {topic!r} cannot be read")
    if not 0 <= queue_id < config.read_queue_nums:
        message = f"topic {topic!r} has {config.read_queue_nums} queues to read"
        raise InvalidParameterError(f"{message}, queue {queue_id} is none of them")
    most = core.settings.max_pull_size
    wanted = request.number("maxMsgBytes", most)
    return _Pull(
        group,
        topic,
        queue_id,
        offset,
        max(1, request.number("maxMsgNums")),
        min(most, wanted) if wanted > 0 else most,
        _tags(core, request, group, topic, by_request=bool(flags & _SUBSCRIPTION)),
        static,
    )


def may_pull(core: Core, group: str, topic: str) -> bool:
    """Return whether a group may read a topic of this broker."""
    return core.groups.get(group).consume_enable and bool(core.topics.get(topic).perm & Perm.READ)


def _check_group(core: Core, name: str) -> None:
    if name not in core.groups:
        core.check_group(name)
    config = core.groups.get(name)
    if not config.consume_enable:
        raise NoPermissionError(f"subscription group no permission, {name}")
    if not config.consume_broadcast_enable:
        group = core.clients.group(name)
        if group is not None and group.message_model == "BROADCASTING":
            message = f"the consumer group[{name}] can not consume by broadcast way"
            raise NoPermissionError(message)


def _tags(
    core: Core, request: Request, group: str, topic: str, *, by_request: bool
) -> frozenset[int] | None:
    """Return hashes of the tags to give, None for all."""
    if by_request:
        kind = request.text("expressionType", "TAG") or "TAG"
        expression = request.text("subscription", "*")
    else:
        known = core.clients.subscription(group, topic)
        if known is None:
            message = f"group {group!r} does not subscribe to topic {topic!r}"
            raise _subscription_error(ResponseCode.SUBSCRIPTION_NOT_EXIST, message)
        if known.sub_version < request.number("subVersion"):
            message = f"the subscription of group {group!r} to topic {topic!r} is not the latest"
            raise _subscription_error(ResponseCode.SUBSCRIPTION_NOT_LATEST, message)
        kind, expression = known.expression_type or "TAG", known.sub_string
    if kind != "TAG":
        # Java reads this text of a refused filter.
        message = f"The broker does not support consumer to filter message by {kind}"
        raise _subscription_error(ResponseCode.SYSTEM_ERROR, message)
    return _tag_hashes(expression)


def _tag_hashes(expression: str) -> frozenset[int] | None:
    tags = split_tags(expression)
    return frozenset(map(java_hash, tags)) if tags else None


def _subscription_error(code: ResponseCode, message: str) -> BrokerError:
    return BrokerError(message, number=code)


HANDLERS = {
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull_message,
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset_by_timestamp,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_store_time,
}
