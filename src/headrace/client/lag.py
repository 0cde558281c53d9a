"""How far a consumer group is behind, whether or not it ever connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.client.pulling import AsyncPullConsumer
from headrace.errors import NotFoundError, TopicNotFoundError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import ConsumerConnections, dead_letter_topic
from headrace.protocol.routes import MessageQueue, TopicList, loads
from headrace.protocol.transactions import CommitRecord, StagedBatch

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient


# Where queues, groups and jobs stand, as the administration shows it.


class JobStanding(msgspec.Struct, frozen=True):
    """Where a job stands."""

    commit_topic: str
    #: Names its newest driver.
    driver: str
    #: Its newest commit record.
    record: CommitRecord
    #: The holder of its driver's lease; empty where there is none.
    holder: str = ""
    #: What is staged and not committed.
    staged: list[StagedBatch] = []


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The range of offsets that a queue holds."""

    #: First offset.
    begin: int
    #: One past the last offset.
    end: int
    #: When the last message was stored; None for an empty queue.
    updated: datetime | None


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in a queue."""

    #: Next offset that the group reads; -1 if it has none.
    offset: int
    #: One past the last offset of the queue.
    end: int

    @property
    def lag(self) -> int:
        """Messages that the group has not read."""
        return self.end - max(self.offset, 0)


_NOTHING = timedelta(0)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's lag in one queue."""

    #: Next offset that the group reads; None if it has none, so it has read nothing.
    offset: int | None
    #: First offset that the queue holds.
    begin: int
    #: One past its last offset.
    end: int
    #: Age of the oldest message that the group has not read; zero if it has read all.
    behind: timedelta

    @property
    def lag(self) -> int:
        """Messages that the queue holds and the group has not read."""
        return max(0, self.end - max(self.offset or 0, self.begin))


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's lag, by queue and in all.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> queue = MessageQueue("lines", "broker-a", 0)
    >>> lag = GroupLag("readers", {queue: QueueLag(3, 0, 10, timedelta(seconds=5))})
    >>> lag.total, lag.behind
    (7, datetime.timedelta(seconds=5))
    """

    group: str
    queues: dict[MessageQueue, QueueLag]

    @property
    def total(self) -> int:
        """Messages not read, over all queues."""
        return sum(queue.lag for queue in self.queues.values())

    @property
    def behind(self) -> timedelta:
        """Age of the oldest message that is not read."""
        return max((queue.behind for queue in self.queues.values()), default=_NOTHING)


async def group_lag(client: AsyncClient, group: str, topics: Iterable[str] = ()) -> GroupLag:
    """Work out a group's lag from its offsets and queues, which are asked for now.

    Caller: AsyncAdmin.
    """
    chosen = list(topics) or await topics_of_group(client, group)
    if not chosen:
        raise NotFoundError(
            f"group {group!r} has no offsets and no member: nothing tells what it reads",
            hint="name the topic, or correct the group's name: `headrace group list` shows all",
        )
    queues: list[MessageQueue] = []
    for topic in chosen:
        queues += await client.queues(topic, refresh=True)
    own, reader = AsyncPullConsumer(client, group), AsyncPullConsumer(client)
    found = await asyncio.gather(*(_queue_lag(own, reader, queue) for queue in queues))
    return GroupLag(group, dict(sorted(zip(queues, found, strict=True))))


async def topics_of_group(client: AsyncClient, group: str) -> list[str]:
    """List the topics that a group has offsets in, or that its members read."""
    found: set[str] = set()
    for broker in await client.brokers():
        answer = await client.ask_broker(
            broker, lambda: Command(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group})
        )
        if answer.payload:
            found.update(loads(answer.payload, TopicList).topic_list)
    for connections in await connections_of_group(client, group):
        found.update(connections.subscription_table)
    found.discard(dead_letter_topic(group))
    return [topic for topic in sorted(found) if await _exists(client, topic)]


async def connections_of_group(client: AsyncClient, group: str) -> list[ConsumerConnections]:
    """Return a group's members on each broker that knows any."""
    found = []
    for broker in await client.brokers():
        answer = await client.ask_broker(
            broker,
            lambda: Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}),
            expect=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
        )
        if answer.code == ResponseCode.SUCCESS:
            found.append(loads(answer.payload, ConsumerConnections))
    return found


async def _exists(client: AsyncClient, topic: str) -> bool:
    try:
        await client.route(topic, refresh=True)
    except TopicNotFoundError:
        return False
    return True


async def _queue_lag(
    own: AsyncPullConsumer, reader: AsyncPullConsumer, queue: MessageQueue
) -> QueueLag:
    offset, begin, end = await asyncio.gather(
        own.committed(queue), own.begin_offset(queue), own.end_offset(queue)
    )
    first = max(offset or 0, begin)
    behind = _NOTHING
    if first < end:
        unread = (await reader.pull(queue, first, max_messages=1)).messages()
        if unread:
            behind = timedelta(seconds=max(0.0, time.time() - unread[0].stored / 1000))
    return QueueLag(offset, begin, end, behind)
