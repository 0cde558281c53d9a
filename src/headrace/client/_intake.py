"""Reading a member's queues ahead of its listener, as far as memory allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.client._consuming import ProcessQueue
from headrace.client.groups import PullSize, follow
from headrace.client.results import PullResult, PullStatus
from headrace.errors import HeadraceError
from headrace.protocol.groups import ALL_TAGS, retry_topic, split_tags
from headrace.protocol.properties import RETRY_TOPIC
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client.pulling import AsyncPullConsumer
    from headrace.protocol.messages import StoredMessage
    from headrace.protocol.routes import MessageQueue


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits of what may wait or be worked on at once."""

    messages: int
    bytes: int
    #: How far a queue may be read beyond its first message that is not done.
    span: int


class QueueIntake:
    """Fills one process queue for each queue that is open.

    Caller: AsyncPushConsumer.

    Parameters
    ----------
    on_ready
        Called when messages were added to a process queue, with their number.
    on_moved
        Called when the broker sent the reader elsewhere: with the process queue that was dropped
        and the one that takes its place.
    on_failure
        Called with the error that has ended a task.
    """

    def __init__(
        self,
        puller: AsyncPullConsumer,
        subscriptions: Mapping[str, str],
        size: PullSize,
        limits: IntakeLimits,
        *,
        on_ready: Callable[[ProcessQueue, int], None],
        on_moved: Callable[[ProcessQueue, ProcessQueue], None],
        on_failure: OnFailure,
    ) -> None:
        self.open: dict[MessageQueue, ProcessQueue] = {}
        #: Messages whose tag only has the same hash as a wanted one.
        self.filtered = 0
        self._puller = puller
        self._subscriptions = subscriptions
        self._tags = {topic: frozenset(split_tags(tags)) for topic, tags in subscriptions.items()}
        self._retry_topic = retry_topic(puller.group)
        self._size = size
        self._limits = limits
        self._on_ready = on_ready
        self._on_moved = on_moved
        self._on_failure = on_failure
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()

    def start(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Begin to read a queue."""
        process = self.open[queue] = ProcessQueue(queue, offset)
        self._tasks[queue] = watched_task(
            self._read(queue), name=f"push-reader {queue}", on_failure=self._on_failure
        )
        self.freed()
        return process

    async def stop(self, queue: MessageQueue) -> ProcessQueue:
        """Stop reading a queue, and return what was read of it."""
        task, process = self._tasks.pop(queue), self.open.pop(queue)
        task.cancel()
        await asyncio.wait({task})
        # The others have more room now.
        self.freed()
        return process

    def freed(self) -> None:
        """Note that messages were done."""
        self._freed.set()

    async def _read(self, queue: MessageQueue) -> None:
        pause = self._puller.client.settings.retry_backoff_limit.total_seconds()
        tags = self._subscriptions.get(queue.topic, ALL_TAGS)
        size = replace(self._size, tags=tags)
        while True:
            offset = self.open[queue].next_offset
            try:
                async with aclosing(follow(self._puller, queue, offset, size)) as results:
                    await self._room(queue)
                    async for result in results:
                        self._take(queue, result)
                        await self._room(queue)
            except HeadraceError as error:
                # Nothing is skipped: a block that cannot be decoded is asked for again.
                logger.error("group %r: %s cannot be read: %s", self._puller.group, queue, error)
                await asyncio.sleep(pause)

    def _take(self, queue: MessageQueue, result: PullResult | HeadraceError) -> None:
        if isinstance(result, HeadraceError):
            logger.warning("group %r: reading %s failed: %s", self._puller.group, queue, result)
        elif result.status is PullStatus.OFFSET_MOVED:
            logger.warning(
                "group %r: %s goes on at %d", self._puller.group, queue, result.next_offset
            )
            old, new = self.open[queue], ProcessQueue(queue, result.next_offset)
            self.open[queue] = new
            old.drop()
            self._on_moved(old, new)
        else:
            process = self.open[queue]
            messages = self._wanted(queue, result)
            process.add(messages, result.next_offset)
            self._on_ready(process, len(messages))

    def _wanted(self, queue: MessageQueue, result: PullResult) -> list[StoredMessage]:
        messages = result.messages()
        if queue.topic == self._retry_topic:
            return [_as_first_sent(message) for message in messages]
        tags = self._tags.get(queue.topic)
        if not tags:
            return messages
        # The broker compares hashes of tags, which may collide.
        wanted = [message for message in messages if message.tags in tags]
        self.filtered += len(messages) - len(wanted)
        return wanted

    async def _room(self, queue: MessageQueue) -> None:
        while self._is_full(self.open[queue]):
            self._freed.clear()
            await self._freed.wait()

    def _is_full(self, process: ProcessQueue) -> bool:
        # Each queue has a share, so one that is stuck does not hold up the others.
        limits, queues = self._limits, len(self.open)
        return bool(len(process)) and (
            len(process) * queues >= limits.messages
            or process.bytes * queues >= limits.bytes
            or process.span >= limits.span
        )


def _as_first_sent(message: StoredMessage) -> StoredMessage:
    """Return a message that comes again with the topic that it was first sent to."""
    topic = message.properties.get(RETRY_TOPIC)
    return message if topic is None else replace(message, topic=topic)
