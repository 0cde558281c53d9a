"""Where a push consumer goes on in each queue: offsets at the brokers, or in a local file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.client._sharing import Start, first_offset
from headrace.protocol.groups import retry_topic

if TYPE_CHECKING:
    from headrace.client._local_offsets import LocalOffsets
    from headrace.client.pulling import AsyncPullConsumer
    from headrace.client.queues import MessageQueue

__all__ = ["LocalPositions", "Positions", "SharedPositions"]


class Positions(Protocol):
    """Offsets of a group or of a member."""

    async def start_of(self, queue: MessageQueue) -> int:
        """Where to go on in a queue."""
        ...

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note the next offset to read of queues."""
        ...


class SharedPositions:
    """The group's offsets, which the brokers keep."""

    def __init__(self, puller: AsyncPullConsumer, start: Start) -> None:
        self._puller = puller
        self._start = start
        self._retry_topic = retry_topic(puller.group)

    async def start_of(self, queue: MessageQueue) -> int:
        """Where the group left off; what waits for another try is never passed over."""
        committed = await self._puller.committed(queue)
        if committed is not None:
            return committed
        start = "first" if queue.topic == self._retry_topic else self._start
        return await first_offset(self._puller, queue, start)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets."""
        await self._puller.commit(offsets)


class LocalPositions:
    """A broadcasting member's own offsets."""

    def __init__(self, puller: AsyncPullConsumer, start: Start, offsets: LocalOffsets) -> None:
        self._puller = puller
        self._start = start
        self._offsets = offsets

    async def start_of(self, queue: MessageQueue) -> int:
        """Where this member left off."""
        known = self._offsets.get(queue)
        return await first_offset(self._puller, queue, self._start) if known is None else known

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write the file anew."""
        await asyncio.to_thread(self._offsets.save, offsets)
