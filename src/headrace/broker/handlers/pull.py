"""Pull requests: messages of one queue from an offset on, or a wait for the next one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.failures import failure
from headrace.broker.network.admission import check_group
from headrace.errors import BrokerError, InvalidParameterError, NoPermissionError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.groups import split_tags
from headrace.protocol.hashing import java_hash
from headrace.store import ReadResult, ReadStatus

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.broker.static_topics import LogicalQueue
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]

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


def _check_group(core: Core, name: str) -> None:
    if name not in core.groups:
        check_group(core, name)
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
}
