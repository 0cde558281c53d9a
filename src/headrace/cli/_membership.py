"""``headrace consume --group``: prints as a member of a consumer group."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from headrace.cli._cluster import asynchronous
from headrace.cli._terminal import message_line
from headrace.watched import watched_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client import AsyncPushConsumer, Client, MessageQueue, PushOptions, StoredMessage

__all__ = ["print_group"]

_PAUSE = 0.05


def print_group(
    client: Client,
    group: str,
    topic: str,
    options: PushOptions,
    limit: int | None,
    *,
    until_end: bool,
) -> None:
    """Print what comes to a member of a group; only what is printed counts as read."""
    asyncio.run(_print(client, group, topic, options, limit, until_end=until_end))


async def _print(
    client: Client,
    group: str,
    topic: str,
    options: PushOptions,
    limit: int | None,
    *,
    until_end: bool,
) -> None:
    from headrace.client import AsyncPullConsumer, AsyncPushConsumer
    from headrace.topology.operators.core import WATERMARK

    async with asynchronous(client) as connection:
        ends = await AsyncPullConsumer(connection).end_offsets(await connection.queues(topic))
        async with AsyncPushConsumer(connection, group, [topic], options=options) as consumer:
            failures: list[BaseException] = []

            def fail(error: BaseException) -> None:
                failures.append(error)
                consumer.close_soon()

            watch = None
            if until_end:
                work = _close_at(consumer, ends)
                watch = watched_task(work, name="until-end", on_failure=fail)
            left = limit
            async for delivery in consumer:
                shown = WATERMARK not in delivery.message.properties
                if shown:
                    _write(delivery.message)
                delivery.ack()
                if not shown:
                    continue
                if left is not None:
                    left -= 1
                    if not left:
                        break
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            for failure in failures:
                raise failure


async def _close_at(consumer: AsyncPushConsumer, ends: Mapping[MessageQueue, int]) -> None:
    """Close the consumer when it has read its own queues up to their ends."""
    while True:
        await asyncio.sleep(_PAUSE)
        statistics = consumer.statistics()
        positions = {} if statistics is None else statistics.positions
        mine = [queue for queue in ends if queue in positions]
        if all(positions[queue] >= ends[queue] for queue in mine):
            # Not awaited: the loop that prints ends by it, and would wait for itself.
            consumer.close_soon()
            return


def _write(message: StoredMessage) -> None:
    from headrace.keys import key_from_properties

    sys.stdout.write(message_line(key_from_properties(message.properties), message.body))
    sys.stdout.flush()
