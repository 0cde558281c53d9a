"""Pull requests: messages of one queue from an offset on, or a wait for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.requests import check_group, failure
from headrace.broker.static_topics import LogicalQueue
from headrace.errors import BrokerError, HeadraceError, InvalidParameterError, NoPermissionError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.groups import java_hash, split_tags
from headrace.store import ReadResult, ReadStatus

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command
    from headrace.store import AppendResult, MessageStore, QueueAppend


# Long polls: requests that wait for the next message of some queues.

# Calls from other threads into the event loop, many for one wake-up.


class Mailbox:
    """Carries calls from any thread to the loop's own.

    Waking a loop costs a system call, so calls that come while it is being woken share one.

    Parameters
    ----------
    loop
        The loop whose thread makes the calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._waking = False

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make a call soon; any thread may ask."""
        self._calls.append(call)
        if not self._waking:
            self._waking = True
            # The loop is closed only when nobody waits for an answer any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            calls.popleft()()


# Appends of one round of the loop, handed to the store together.


@dataclass(slots=True)
class AppendOutcome:
    """How an append ended: a result for each queue, or what went wrong."""

    results: list[AppendResult]
    error: BaseException | None = None


OnAppended = Callable[[AppendOutcome], None]
"""Told, on the loop, how an append ended."""


class Appends:
    """Gathers what one round of the loop appends, so that it costs one write and one wake-up.

    Parameters
    ----------
    store
        Where messages go.
    mailbox
        The way back to the loop.
    loop
        The loop whose thread makes all calls.
    """

    def __init__(
        self, store: MessageStore, mailbox: Mailbox, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._loop = loop
        self._gathered: list[tuple[list[QueueAppend], OnAppended]] = []

    def add(self, appends: list[QueueAppend], done: OnAppended) -> None:
        """Append with whatever else comes in this round, in the order of the calls.

        Raises
        ------
        MessageTooLargeError, InvalidParameterError
            As :meth:`MessageStore.append`; the others of the round go on.
        """
        for append in appends:
            self._store.check(append)
        self._gathered.append((appends, done))
        if len(self._gathered) == 1:
            self._loop.call_soon(self.submit)

    def submit(self) -> None:
        """Hand over what was gathered."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        appends = [append for each, _ in gathered for append in each]
        try:
            future = self._store.append(appends, checked=True)
        except HeadraceError as error:
            _tell(gathered, [], error)
            return
        if future.done():
            _finish(gathered, future)
        else:
            future.add_done_callback(
                lambda ended: self._mailbox.post(partial(_finish, gathered, ended))
            )


def _finish(
    gathered: list[tuple[list[QueueAppend], OnAppended]], ended: Future[list[AppendResult]]
) -> None:
    error = ended.exception()
    _tell(gathered, [] if error else ended.result(), error)


def _tell(
    gathered: list[tuple[list[QueueAppend], OnAppended]],
    results: list[AppendResult],
    error: BaseException | None,
) -> None:
    first = 0
    for appends, done in gathered:
        last = first + len(appends)
        done(AppendOutcome(results[first:last], error))
        first = last


Queue = tuple[str, int]
"""A topic and a queue id."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class Poll:
    """One waiting request."""

    #: Queues whose next message ends the wait.
    queues: tuple[Queue, ...]
    #: Connection that asked.
    owner: int
    #: Answer the request from what is there now.
    wake: Callable[[], None]


class LongPolls:
    """All requests that wait for messages, by queue.

    Examples
    --------
    >>> polls = LongPolls()
    >>> poll = polls.add([("lines", 0), ("lines", 1)], owner=7, wake=lambda: None)
    >>> polls.arrived([("lines", 1)]) == [poll], len(polls)
    (True, 0)
    """

    def __init__(self) -> None:
        #: In the order in which they came: who has waited longest is answered first.
        self._by_queue: dict[Queue, dict[Poll, None]] = {}
        self._by_owner: dict[int, dict[Poll, None]] = {}
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits; any thread may ask."""
        return not self._by_owner

    def __len__(self) -> int:
        return self._count

    def of(self, owner: int) -> int:
        """Count the requests of a connection that wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, queues: Iterable[Queue], *, owner: int, wake: Callable[[], None]) -> Poll:
        """Let a request wait."""
        poll = Poll(tuple(queues), owner, wake)
        for queue in poll.queues:
            self._by_queue.setdefault(queue, {})[poll] = None
        self._by_owner.setdefault(owner, {})[poll] = None
        self._count += 1
        return poll

    def arrived(self, queues: Collection[Queue]) -> list[Poll]:
        """Take out the requests that waited for a message of these queues."""
        if not self._by_queue:
            return []
        waiting: dict[Poll, None] = {}
        for queue in queues:
            waiting |= self._by_queue.get(queue, {})
        return [poll for poll in waiting if self.remove(poll)]

    def remove(self, poll: Poll) -> bool:
        """Take out one request; False when it no longer waits."""
        owned = self._by_owner.get(poll.owner)
        if owned is None or poll not in owned:
            return False
        _discard(self._by_owner, poll.owner, poll)
        self._count -= 1
        for queue in poll.queues:
            _discard(self._by_queue, queue, poll)
        return True

    def abandon(self, owner: int) -> None:
        """Take out every request of a connection that is gone."""
        for poll in list(self._by_owner.get(owner, ())):
            self.remove(poll)


def _discard(table: dict[K, dict[Poll, None]], key: K, poll: Poll) -> None:
    polls = table.get(key)
    if polls is not None:
        polls.pop(poll, None)
        if not polls:
            del table[key]


# Requests about offsets: a group's, a queue's, and by time.


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
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset_by_timestamp,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_store_time,
}
