"""Consumers that share the queues of topics among the members of a group."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Self

from headrace.client._membership import Membership
from headrace.client.pulling import AsyncPullConsumer, PullResult, PullStatus
from headrace.errors import ConfigurationError, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from headrace.client.client import AsyncClient
    from headrace.client.queues import MessageQueue

__all__ = ["AsyncGroupConsumer", "GroupOptions", "GroupStatistics"]

_log = logging.getLogger("headrace.client")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a group consumer reads."""

    #: Where to begin in a queue of which the group has no offset.
    start: Literal["first", "last"] | datetime = "last"
    #: Whether offsets are committed by themselves, of what ``poll`` returned before its last call.
    auto_commit: bool = True
    #: Tags to read, joined by ``||``; ``*`` is all messages.
    tags: str = "*"
    #: Most messages in one block.
    max_messages: int = 65_536
    #: Most bytes in one block.
    max_bytes: int = _MIB
    #: Blocks that may wait for ``poll``.
    buffered: int = 4
    #: How long the broker holds back a pull that finds nothing.
    wait: timedelta = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """What a member of a group does now and has done so far."""

    #: Queues assigned to this member, with the next offset that ``poll`` returns.
    positions: dict[MessageQueue, int]
    #: Times that the assignment changed.
    rebalances: int
    #: Blocks returned by ``poll``.
    blocks: int
    #: Offsets committed.
    commits: int


class AsyncGroupConsumer:
    """One member of a consumer group.

    Queues are divided as RocketMQ's own average rule does, so members in Java and here agree.
    What a member has not committed is read again by the next owner of the queue.

    Parameters
    ----------
    client
        A client of the cluster; the member has a connection of its own.
    group
        Name of the group; all its members must subscribe to the same topics.
    topics
        What to read.
    options
        How to read.

    Examples
    --------
    >>> async def read(client: AsyncClient) -> None:
    ...     async with AsyncGroupConsumer(client, "readers", ["lines"]) as consumer:
    ...         for block in await consumer.poll():
    ...             print(block.columns().body)
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        topics: Sequence[str],
        options: GroupOptions | None = None,
    ) -> None:
        if not topics:
            raise ConfigurationError(f"group {group!r} subscribes to no topic")
        # Brokers tell the members of a group apart by their connections.
        self.client = client.sibling()
        self.group = group
        self.topics = tuple(topics)
        self.options = options or GroupOptions()
        self._puller = AsyncPullConsumer(self.client, group)
        self._membership: Membership | None = None
        self._fetchers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._buffer: asyncio.Queue[PullResult | HeadraceError] = asyncio.Queue(
            self.options.buffered
        )
        self._positions: dict[MessageQueue, int] = {}
        self._processed: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._rebalances = 0
        self._blocks = 0
        self._commits = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # The caller got through what it was given.
            self._processed.update(self._positions)
        await self.close()

    def statistics(self) -> GroupStatistics:
        """Tell what this member holds and has done."""
        return GroupStatistics(dict(self._positions), self._rebalances, self._blocks, self._commits)

    def assignment(self) -> list[MessageQueue]:
        """List the queues that this member reads now."""
        return sorted(self._fetchers)

    async def start(self) -> None:
        """Join the group, and begin to read."""
        settings = self.client.settings
        membership = Membership(self.client, self.group, self.topics, self.options.tags)
        self._membership = membership
        await membership.heartbeat()
        await self._rebalance(membership)
        self._tasks = [
            asyncio.create_task(self._keep_alive(membership, settings.heartbeat_interval)),
            asyncio.create_task(self._keep_balanced(membership, settings.rebalance_interval)),
        ]
        if self.options.auto_commit:
            self._tasks.append(asyncio.create_task(self._keep_committed(settings.commit_interval)))

    async def close(self) -> None:
        """Stop reading, commit, and leave the group."""
        membership, self._membership = self._membership, None
        if membership is None:
            return
        tasks = self._tasks + list(self._fetchers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if self.options.auto_commit:
                await self._commit_processed()
            await membership.leave()
        except HeadraceError as error:
            _log.warning("group %r: leaving it failed: %s", self.group, error)
        await self.client.close()
        self._fetchers.clear()
        self._positions.clear()

    async def poll(self, timeout: timedelta = timedelta(seconds=1)) -> list[PullResult]:
        """Return blocks that have arrived; none if nothing arrives in time.

        With ``auto_commit`` the call says that all blocks returned before are processed.

        Raises
        ------
        HeadraceError
            If reading a queue failed for longer than is tried again; the next call goes on.
        """
        self._processed.update(self._positions)
        found: list[PullResult] = []
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while not found:
                    self._deliver(await self._buffer.get(), found)
                    while not self._buffer.empty():
                        self._deliver(self._buffer.get_nowait(), found)
        except TimeoutError:
            pass
        return found

    async def commit(self) -> None:
        """Commit the offsets behind everything that ``poll`` has returned."""
        self._processed.update(self._positions)
        await self._commit_processed()

    def _deliver(self, item: PullResult | HeadraceError, found: list[PullResult]) -> None:
        if isinstance(item, HeadraceError):
            if not found:
                raise item
            _log.warning("group %r: %s", self.group, item)
        elif item.queue in self._fetchers:
            # Blocks of a queue that went to another member meanwhile are that member's to read.
            found.append(item)
            self._positions[item.queue] = item.next_offset
            self._blocks += 1

    async def _commit_processed(self) -> None:
        due = {
            queue: offset
            for queue, offset in self._processed.items()
            if self._committed.get(queue) != offset
        }
        if due:
            await self._puller.commit(due)
            self._committed.update(due)
            self._commits += len(due)

    # The assignment

    async def _rebalance(self, membership: Membership) -> None:
        wanted: set[MessageQueue] = set()
        for topic in self.topics:
            share = await membership.share(topic)
            if share is None:
                wanted.update(queue for queue in self._fetchers if queue.topic == topic)
            else:
                wanted.update(share)
        lost = set(self._fetchers) - wanted
        gained = sorted(wanted - set(self._fetchers))
        if lost:
            await self._give_up(lost)
        for queue in gained:
            start = await self._start_of(queue)
            self._positions[queue] = self._processed[queue] = self._committed[queue] = start
            self._fetchers[queue] = asyncio.create_task(self._fetch(queue, start))
        self._rebalances += bool(lost or gained)

    async def _give_up(self, queues: set[MessageQueue]) -> None:
        for queue in queues:
            self._fetchers.pop(queue).cancel()
        if self.options.auto_commit:
            await self._commit_processed()
        for queue in queues:
            for table in (self._positions, self._processed, self._committed):
                table.pop(queue, None)

    async def _start_of(self, queue: MessageQueue) -> int:
        committed = await self._puller.committed(queue)
        if committed is not None:
            return committed
        start = self.options.start
        if start == "first":
            return await self._puller.begin_offset(queue)
        if start == "last":
            return await self._puller.end_offset(queue)
        return await self._puller.offset_for_time(queue, start)

    # Background tasks

    async def _fetch(self, queue: MessageQueue, offset: int) -> None:
        options = self.options
        while True:
            try:
                result = await self._puller.pull(
                    queue,
                    offset,
                    max_messages=options.max_messages,
                    max_bytes=options.max_bytes,
                    wait=options.wait,
                    tags=options.tags,
                )
            except HeadraceError as error:
                await self._buffer.put(error)
                await asyncio.sleep(self.client.settings.retry_backoff_limit.total_seconds())
                continue
            if result.status is PullStatus.OFFSET_MOVED:
                _log.warning(
                    "group %r: queue %s has no offset %d, going on at %d",
                    self.group, queue, offset, result.next_offset,
                )  # fmt: skip
            if result.status is PullStatus.FOUND:
                await self._buffer.put(result)
            offset = result.next_offset

    async def _keep_alive(self, membership: Membership, interval: timedelta) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            try:
                await membership.heartbeat()
            except HeadraceError as error:
                _log.warning("group %r: heartbeat failed: %s", self.group, error)

    async def _keep_balanced(self, membership: Membership, interval: timedelta) -> None:
        while True:
            try:
                async with asyncio.timeout(interval.total_seconds()):
                    await membership.changed.wait()
            except TimeoutError:
                pass
            membership.changed.clear()
            try:
                await self._rebalance(membership)
            except HeadraceError as error:
                _log.warning("group %r: rebalance failed: %s", self.group, error)

    async def _keep_committed(self, interval: timedelta) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            try:
                await self._commit_processed()
            except HeadraceError as error:
                _log.warning("group %r: commit failed: %s", self.group, error)
