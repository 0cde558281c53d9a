"""Reading a queue for ever, one pull behind the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.client.pulling import AsyncPullConsumer
    from headrace.client.queues import MessageQueue
    from headrace.client.results import PullResult

__all__ = ["PullSize", "follow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSize:
    """How much each pull asks for, and how long it may wait."""

    max_messages: int
    max_bytes: int
    wait: timedelta
    tags: str = "*"


async def follow(
    puller: AsyncPullConsumer, queue: MessageQueue, offset: int, size: PullSize
) -> AsyncGenerator[PullResult | HeadraceError, None]:
    """Give the answers of all pulls from an offset on, empty ones too, and their failures.

    The next pull is sent when the next answer is asked for: who waits with that holds back the
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
