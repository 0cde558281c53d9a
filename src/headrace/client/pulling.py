"""Reading queues by offset: one pull at a time, or a range of offsets with pulls sent ahead."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.client import AsyncClient, Openable
from headrace.client.results import (
    PULL_CODES,
    CommittedReading,
    PullResult,
    PullStatus,
    answer_number,
    join_results,
    read_pull_answer,
)
from headrace.errors import NoPermissionError, NotFoundError, OffsetExpiredError, TopicNotFoundError
from headrace.protocol.codes import Perm, RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import SubscriptionGroupConfig
from headrace.protocol.layout import record_starts
from headrace.protocol.routes import MessageQueue, dumps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping


# Making topics and groups on brokers.


def topic_fields(
    name: str,
    queues: int,
    attributes: Mapping[str, str],
    perm: Perm = Perm.READ | Perm.WRITE,
) -> dict[str, str]:
    """Return the fields of the request that creates or changes a topic."""
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(int(perm)),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        fields["attributes"] = ",".join(f"+{key}={value}" for key, value in attributes.items())
    return fields


async def ensure_group(client: AsyncClient, group: str, brokers: Iterable[str]) -> None:
    """Make a group and its retry topic, as a member's first heartbeat would.

    A stock broker refuses offsets of a group that it does not know, and RocketMQ's tools show the
    progress of a group only if there is a route of its retry topic.
    """
    retry_topic = f"%RETRY%{group}"
    try:
        await client.route(retry_topic)
    except TopicNotFoundError:
        body = dumps(SubscriptionGroupConfig(group_name=group))
        make_group = partial(Command, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        fields = topic_fields(retry_topic, 1, {})
        make_topic = partial(Command, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        # Only an admin may; for other accounts the group was made before, or the request that
        # needs it says that it is missing.
        with contextlib.suppress(NoPermissionError):
            for broker in sorted(set(brokers)):
                await client.ask_broker(broker, make_group)
                await client.ask_broker(broker, make_topic)


# Reading a range of offsets with pulls sent ahead.

#: Answers that may be on their way at once, in bytes.
_BYTES_AHEAD = 16 * 1024 * 1024
#: Pause before a queue is asked again for messages that it must soon show, in seconds.
_PAUSE = 0.005


class ReadAhead:
    """Keeps pulls under way, one behind the other.

    Where a pull starts is a guess: as far behind the one before as the last answer reached.

    Parameters
    ----------
    pull
        Pulls at an offset.
    ahead
        Most pulls under way.
    patience
        How long messages that the queue does not show yet are waited for: RocketMQ confirms a
        message some milliseconds before it can be pulled.
    """

    def __init__(
        self,
        pull: Callable[[int], Coroutine[Any, Any, PullResult]],
        ahead: int,
        patience: timedelta,
    ) -> None:
        #: Pulls whose guess was wrong.
        self.wasted = 0
        self._pull = pull
        self._ahead = ahead
        self._patience = patience.total_seconds()
        self._sent: deque[tuple[int, asyncio.Task[PullResult]]] = deque()

    async def results(self, begin: int, end: int) -> AsyncGenerator[PullResult, None]:
        """Yield the answers that hold the messages from ``begin`` up to ``end``, in order.

        Raises
        ------
        OffsetExpiredError
            If the queue does not hold them.
        """
        at, step, window = begin, 0, 0
        try:
            while at < end:
                self._send(at, step, window, end)
                result = await self._sent.popleft()[1]
                if result.status is not PullStatus.FOUND:
                    at = await self._past_gap(result, at, end)
                    continue
                at, step = result.next_offset, result.next_offset - at
                window = min(self._ahead, _BYTES_AHEAD // len(result.block))
                yield result
        finally:
            for _, task in self._sent:
                task.cancel()

    def _send(self, at: int, step: int, window: int, end: int) -> None:
        sent = self._sent
        while sent and sent[0][0] != at:
            sent.popleft()[1].cancel()
            self.wasted += 1
        if not sent:
            sent.append((at, asyncio.ensure_future(self._pull(at))))
        while step and len(sent) <= window and sent[-1][0] + step < end:
            guess = sent[-1][0] + step
            sent.append((guess, asyncio.ensure_future(self._pull(guess))))

    async def _past_gap(self, result: PullResult, at: int, end: int) -> int:
        if result.status is PullStatus.NO_MATCH and result.next_offset > at:
            return result.next_offset
        deadline = asyncio.get_running_loop().time() + self._patience
        # A RocketMQ broker that has just made a compacted topic names -1 as its first offset.
        while result.min_offset <= at and (result.max_offset < end or result.min_offset < 0):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_PAUSE)
            result = await self._pull(at)
            if result.status is PullStatus.FOUND:
                # It is there now; what follows it is asked for anew.
                return at
        raise _expired(result, at, end)


def _expired(result: PullResult, offset: int, end: int) -> OffsetExpiredError:
    return OffsetExpiredError(
        f"queue {result.queue} was to be read from {offset} to {end}, "
        f"but holds {result.min_offset} to {result.max_offset}",
        hint="what is missing was deleted by the broker's retention, or the topic was made anew: "
        "start from the first offset it holds, or restore the topic",
    )


T = TypeVar("T")

_DEFAULT_GROUP = "headrace"
_MIB = 1024 * 1024
#: Bits of a pull's sysFlag: the broker may hold the request back; the request has a subscription.
_SUSPEND, _SUBSCRIPTION = 2, 4
_NO_WAIT = timedelta(0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PullStatistics:
    """Counts of what a pull consumer has read so far."""

    #: Pulls answered, empty ones too.
    pulls: int
    #: Pulls that found messages.
    blocks: int
    #: Size of all blocks in bytes.
    bytes: int
    #: Pulls sent ahead whose guess of the offset was wrong.
    wasted: int


class AsyncPullConsumer(Openable):
    """Reads queues by offset, and keeps a group's offsets.

    Parameters
    ----------
    client
        The connection to the cluster.
    group
        Consumer group whose offsets ``committed`` returns and ``commit`` sets.
    is_member
        Whether the brokers know the group by heartbeats, so that it need not be made.
    committed
        Whether to return only committed messages of jobs, each of them once; messages that no job
        has tagged pass.  An embedded broker has nothing else to read.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str | None = None,
        *,
        is_member: bool = False,
        committed: bool = False,
    ) -> None:
        self.client = client
        self._committed = CommittedReading(client, self._pull_any) if committed else None
        self.group = group or _DEFAULT_GROUP
        self._group_exists = is_member
        #: Topics and brokers that have offsets of the group.
        self._committed_before: set[tuple[str, str]] = set()
        self._pulls = 0
        self._blocks = 0
        self._bytes = 0
        self._wasted = 0

    def statistics(self) -> PullStatistics:
        """Count what was read."""
        return PullStatistics(self._pulls, self._blocks, self._bytes, self._wasted)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 65_536,
        max_bytes: int = 4 * _MIB,
        wait: timedelta = _NO_WAIT,
        tags: str = "*",
    ) -> PullResult:
        """Read messages of a queue from an offset on.

        A stock RocketMQ broker returns at most 32 messages and 256 KiB however much is asked for.

        Parameters
        ----------
        wait
            How long the broker may hold the request back while there is nothing to read.
        tags
            ``*`` for all messages, or tags joined by ``||``.  The broker compares hashes of tags,
            so the block may hold a message of another tag.

        Raises
        ------
        InvalidParameterError
            If the topic has no such queue.
        TopicNotFoundError
            If there is no such topic.
        """
        fields = self._pull_fields(queue, max_messages, max_bytes, wait, tags)
        result = await self._pull(queue, fields, offset, wait)
        if self._committed is None:
            return result
        return await self._committed.of(result, offset, wait)

    async def blocks(
        self,
        queue: MessageQueue,
        begin: int,
        end: int,
        *,
        max_bytes: int = 4 * _MIB,
        ahead: int = 16,
        gapless: bool = False,
    ) -> AsyncGenerator[PullResult, None]:
        """Yield all messages of a queue with offsets from ``begin`` up to ``end``, exclusive.

        Pulls are sent ahead while the caller handles a block, and small answers are joined, up to
        ``max_bytes``.  The last block may hold messages at ``end`` and beyond.

        Parameters
        ----------
        ahead
            Most pulls under way at once, and fewer when blocks are large.  Where they start is
            guessed from the size of the block before; a wrong guess costs a pull, nothing else.
        gapless
            Whether every offset must have a message.  A RocketMQ broker that deletes a file of its
            log passes over what was in it, and only later says that the queue begins behind it.

        Raises
        ------
        OffsetExpiredError
            If the queue no longer holds ``begin``, does not reach to ``end``, or has a gap
            although ``gapless`` is set.
        """
        fields = self._pull_fields(queue, end - begin, max_bytes, _NO_WAIT, "*")
        reader = ReadAhead(
            lambda offset: self._pull(queue, fields, offset),
            ahead,
            patience=self.client.settings.request_timeout,
        )
        async with aclosing(reader.results(begin, end)) as results:
            joined = _joined(results, max_bytes)
            if gapless:
                joined = whole_results(joined, queue, begin, end)
            async for result in self._shown(joined, begin, end):
                yield result
        self._wasted += reader.wasted

    async def _shown(
        self, results: AsyncGenerator[PullResult, None], begin: int, end: int
    ) -> AsyncGenerator[PullResult, None]:
        """Yield what this consumer may see of blocks that follow one another."""
        offset = begin
        async for result in results:
            if self._committed is None:
                yield result
                continue
            given = await self._committed.whole(result, offset, end)
            offset = result.next_offset
            if given.block:
                yield given

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that a queue still holds."""
        first = await self._ask_offset(queue, RequestCode.GET_MIN_OFFSET)
        if not first:
            return 0
        # For a compacted topic a stock broker names what its commit log still holds, and not what
        # compaction has kept for good.
        fields = self._pull_fields(queue, 1, 1, _NO_WAIT, "*")
        kept = await self._pull(queue, fields, 0)
        if kept.status is not PullStatus.FOUND:
            return first
        return min(first, int(kept.columns().queue_offset[0]))

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last one of a queue."""
        return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET)

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still holds."""
        return await _for_each(self.begin_offset, queues)

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset after the last one of each queue."""
        return await _for_each(self.end_offset, queues)

    async def offset_for_time(self, queue: MessageQueue, time: datetime) -> int:
        """Return the first offset stored at ``time`` or later; the end if there is none."""
        return await self._ask_offset(
            queue,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            timestamp=str(whole_milliseconds(time)),
            boundaryType="LOWER",
        )

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], time: datetime
    ) -> dict[MessageQueue, int]:
        """Return the first offset of each queue that was stored at ``time`` or later."""
        return await _for_each(lambda queue: self.offset_for_time(queue, time), queues)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset of a queue; None if it never committed one."""
        try:
            return await self._ask_offset(
                queue,
                RequestCode.QUERY_CONSUMER_OFFSET,
                consumerGroup=self.group,
                setZeroIfNotFound="false",
            )
        except NotFoundError:
            return None

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the group's offset of queues: the next offset to read of each."""
        if not self._group_exists:
            brokers = {await self.client.broker_of(queue) for queue in offsets}
            await ensure_group(self.client, self.group, brokers)
            self._group_exists = True
        # RocketMQ makes the place for a group's offsets of a topic with the first of them: if two
        # come at once, one of them is lost.
        firsts = {(queue.topic, queue.broker): queue for queue in offsets}
        alone = [queue for place, queue in firsts.items() if place not in self._committed_before]
        await _for_each(lambda queue: self._commit(queue, offsets[queue]), alone)
        self._committed_before |= firsts.keys()
        first = set(alone)
        rest = [queue for queue in offsets if queue not in first]
        await _for_each(lambda queue: self._commit(queue, offsets[queue]), rest)

    def _pull_fields(
        self, queue: MessageQueue, max_messages: int, max_bytes: int, wait: timedelta, tags: str
    ) -> dict[str, str]:
        return {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "maxMsgNums": str(max(1, min(max_messages, 2**31 - 1))),
            "maxMsgBytes": str(min(max_bytes, self.client.settings.max_frame_size - 65_536)),
            "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if wait > _NO_WAIT else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait // timedelta(milliseconds=1)),
            "subscription": tags,
            "subVersion": "0",
            "expressionType": "TAG",
        }

    async def _pull(
        self, queue: MessageQueue, fields: dict[str, str], offset: int, wait: timedelta = _NO_WAIT
    ) -> PullResult:
        ext = fields | {"queueOffset": str(offset)}
        answer = await self.client.ask_queue(
            queue,
            lambda: Command(RequestCode.PULL_MESSAGE, ext),
            expect=PULL_CODES,
            timeout=self.client.settings.request_timeout + wait,
        )
        result = read_pull_answer(queue, answer)
        self._pulls += 1
        self._blocks += result.status is PullStatus.FOUND
        self._bytes += len(result.block)
        return result

    async def _pull_any(self, queue: MessageQueue, offset: int, wait: timedelta) -> PullResult:
        fields = self._pull_fields(queue, 65_536, 4 * _MIB, wait, "*")
        return await self._pull(queue, fields, offset, wait)

    async def _ask_offset(self, queue: MessageQueue, code: RequestCode, **fields: str) -> int:
        ext = fields | {"topic": queue.topic, "queueId": str(queue.queue_id)}
        answer = await self.client.ask_queue(queue, lambda: Command(code, ext))
        return answer_number(answer, "offset")

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        ext = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
        }
        await self.client.ask_queue(queue, lambda: Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))


async def _joined(
    results: AsyncGenerator[PullResult, None], max_bytes: int
) -> AsyncGenerator[PullResult, None]:
    pending: list[PullResult] = []
    size = 0
    async for result in results:
        moved = pending and pending[-1].offset_delta != result.offset_delta
        if moved or (pending and size + len(result.block) > max_bytes):
            yield join_results(pending)
            pending, size = [], 0
        pending.append(result)
        size += len(result.block)
    if pending:
        yield join_results(pending)


async def whole_results(
    results: AsyncGenerator[PullResult, None], queue: MessageQueue, begin: int, end: int
) -> AsyncGenerator[PullResult, None]:
    """Yield results that follow one another from ``begin`` up to ``end``, without a gap.

    Raises
    ------
    OffsetExpiredError
        If a message is missing.
    """
    at = begin
    async for result in results:
        if at + len(record_starts(result.block)) != result.next_offset:
            raise _missing(queue, at, result.next_offset)
        at = result.next_offset
        yield result
    if at < end:
        raise _missing(queue, at, end)


def _missing(queue: MessageQueue, begin: int, end: int) -> OffsetExpiredError:
    return OffsetExpiredError(
        f"of the messages {begin} to {end} of queue {queue} some are missing: its broker is"
        " deleting them",
        hint="go on at the first offset that the queue holds when the broker is done",
    )


def whole_milliseconds(time: datetime) -> int:
    """Return a time in ms since 1970, rounded down.

    Brokers store whole milliseconds of their clock: a time that is rounded up would not find what
    came a moment after ``time``.

    >>> whole_milliseconds(datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC))
    1999
    """
    return (time.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


async def _for_each(
    ask: Callable[[MessageQueue], Coroutine[Any, Any, T]], queues: Iterable[MessageQueue]
) -> dict[MessageQueue, T]:
    chosen = list(queues)
    return dict(zip(chosen, await asyncio.gather(*map(ask, chosen)), strict=True))
