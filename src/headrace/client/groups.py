"""Consumers that share the queues of topics among the members of a group."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace._setting import setting
from headrace.client._sharing import MemberOptions, Sharing, start_offset
from headrace.client.client import AsyncClient, Openable
from headrace.client.membership import MemberRole, Membership, new_client_id
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.results import PullResult, PullStatus
from headrace.errors import ConfigurationError, HeadraceError
from headrace.watched import watched_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from headrace.protocol.routes import MessageQueue


# Reading a queue for ever, one pull behind the other.


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSize:
    """Limits of how much each pull asks for, and of how long it may wait."""

    max_messages: int
    max_bytes: int
    wait: timedelta
    tags: str = "*"


async def follow(
    puller: AsyncPullConsumer, queue: MessageQueue, offset: int, size: PullSize
) -> AsyncGenerator[PullResult | HeadraceError, None]:
    """Yield the answers of all pulls from an offset on, empty ones too, and their failures.

    The next pull is sent when the next answer is asked for, so a slow caller holds back the
    broker.
    """
    pause = puller.client.settings.retry_backoff_limit.total_seconds()
    while True:
        try:
            result = await puller.pull(
                queue,
                offset,
                max_messages=size.max_messages,
                max_bytes=size.max_bytes,
                wait=size.wait,
                tags=size.tags,
            )
        except HeadraceError as error:
            yield error
            await asyncio.sleep(pause)
            continue
        offset = result.next_offset
        yield result


logger = logging.getLogger(__name__)
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(MemberOptions):
    """Options of a group consumer."""

    auto_commit: bool = setting(
        default=True,
        doc="Whether offsets are committed by themselves, of what `poll` returned before its last "
        "call.",
    )
    tags: str = setting("*", doc="Tags to read, joined by `||`; `*` is all messages.")
    max_messages: int = setting(65_536, doc="Most messages in one block.", minimum=1)
    max_bytes: int = setting(_MIB, doc="Most bytes in one block.", unit="bytes", minimum=1)
    buffered: int = setting(4, doc="Blocks that may wait for `poll`.")


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Counts of what a member of a group does now and has done so far."""

    #: Queues assigned to this member, with the next offset that ``poll`` returns.
    positions: dict[MessageQueue, int]
    #: How often the assignment has changed.
    rebalances: int
    #: Blocks returned by ``poll``.
    blocks: int
    #: Offsets committed.
    commits: int


class AsyncGroupConsumer(Openable):
    """A member of a consumer group, which polls for blocks of messages.

    Queues are divided by RocketMQ's own average rule, so members in Java and here agree.
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
        self._puller = AsyncPullConsumer(self.client, group, committed=self.options.committed)
        self._sharing: Sharing | None = None
        self._fetchers: dict[MessageQueue, asyncio.Task[None]] = {}
        #: What has arrived; None wakes a poll.
        self._buffer: asyncio.Queue[PullResult | HeadraceError | None] = asyncio.Queue(
            self.options.buffered
        )
        self._positions: dict[MessageQueue, int] = {}
        self._processed: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._committing: asyncio.Task[None] | None = None
        #: The error that has ended a task of this member, and with it the member.
        self._failure: BaseException | None = None
        self._blocks = 0
        self._commits = 0

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # The caller has processed all that it was given.
            self._processed.update(self._positions)
        await self.close()

    def statistics(self) -> GroupStatistics:
        """Return what this member holds and has done."""
        rebalances = self._sharing.rebalances if self._sharing is not None else 0
        return GroupStatistics(dict(self._positions), rebalances, self._blocks, self._commits)

    def assignment(self) -> list[MessageQueue]:
        """List the queues that this member reads now."""
        return sorted(self._fetchers)

    async def start(self) -> None:
        """Join the group, and begin to read."""
        settings = self.client.settings
        role = MemberRole(
            group=self.group,
            subscriptions=dict.fromkeys(self.topics, self.options.tags),
            # Java's lite pull consumers end their ids the same way.
            client_id=new_client_id("@STREAM"),
        )
        self._sharing = Sharing(Membership(self.client, role), self, settings, self._fail)
        await self._sharing.start()
        if self.options.auto_commit:
            self._committing = watched_task(
                self._keep_committed(settings.commit_interval),
                name=f"group-commits {self.group}",
                on_failure=self._fail,
            )

    async def close(self) -> None:
        """Stop reading, commit, and leave the group."""
        sharing, self._sharing = self._sharing, None
        if sharing is None:
            return
        await sharing.stop()
        tasks = list(self._fetchers.values())
        if self._committing is not None:
            tasks.append(self._committing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.options.auto_commit:
            try:
                await self._commit_processed()
            except HeadraceError as error:
                logger.warning("group %r: the last commit failed: %s", self.group, error)
        await sharing.leave()
        await self.client.close()
        self._fetchers.clear()
        self._positions.clear()

    async def poll(self, timeout: timedelta = timedelta(seconds=1)) -> list[PullResult]:
        """Return blocks that have arrived; none if nothing arrives in time.

        With ``auto_commit`` the call says that all blocks returned before are processed.

        Raises
        ------
        HeadraceError
            If reading a queue failed for longer than it is retried; the next call goes on.
        BaseException
            The error that has ended this member in the background.
        """
        self._require_alive()
        self._processed.update(self._positions)
        found: list[PullResult] = []
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while not found:
                    self._require_alive()
                    self._deliver(await self._buffer.get(), found)
                    while not self._buffer.empty():
                        self._deliver(self._buffer.get_nowait(), found)
        except TimeoutError:
            pass
        return found

    async def commit(self) -> None:
        """Commit the offsets behind everything that ``poll`` has returned."""
        self._require_alive()
        self._processed.update(self._positions)
        await self._commit_processed()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        # A waiting poll has emptied the buffer.
        with suppress(asyncio.QueueFull):
            self._buffer.put_nowait(None)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _deliver(self, item: PullResult | HeadraceError | None, found: list[PullResult]) -> None:
        if item is None:
            return
        if isinstance(item, HeadraceError):
            if not found:
                raise item
            logger.warning("group %r: %s", self.group, item)
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

    # The assignment, as Sharing works it out

    def held(self) -> list[MessageQueue]:
        """List the queues that this member reads now.  Caller: Sharing."""
        return list(self._fetchers)

    async def take(self, queues: list[MessageQueue]) -> bool:
        """Begin to read queues.  Caller: Sharing."""
        for queue in queues:
            start = await start_offset(self._puller, queue, self.options.start)
            self._positions[queue] = self._processed[queue] = self._committed[queue] = start
            self._fetchers[queue] = watched_task(
                self._fetch(queue, start), name=f"group-fetcher {queue}", on_failure=self._fail
            )
        return True

    async def give_up(self, queues: set[MessageQueue]) -> None:
        """Stop reading queues.  Caller: Sharing."""
        for queue in queues:
            self._fetchers.pop(queue).cancel()
        if self.options.auto_commit:
            await self._commit_processed()
        for queue in queues:
            for table in (self._positions, self._processed, self._committed):
                table.pop(queue, None)

    # Background tasks

    async def _fetch(self, queue: MessageQueue, offset: int) -> None:
        options = self.options
        size = PullSize(
            max_messages=options.max_messages,
            max_bytes=options.max_bytes,
            wait=options.wait,
            tags=options.tags,
        )
        async with aclosing(follow(self._puller, queue, offset, size)) as results:
            async for result in results:
                if isinstance(result, HeadraceError) or result.status is PullStatus.FOUND:
                    await self._buffer.put(result)
                elif result.status is PullStatus.OFFSET_MOVED:
                    logger.warning(
                        "group %r: queue %s has not the offset asked for, going on at %d",
                        self.group, queue, result.next_offset,
                    )  # fmt: skip

    async def _keep_committed(self, interval: timedelta) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            try:
                await self._commit_processed()
            except HeadraceError as error:
                logger.warning("group %r: commit failed: %s", self.group, error)
