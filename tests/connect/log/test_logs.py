"""The log in memory: what it holds, and what a compaction leaves of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace.connect.log import (
    LARGEST_RECORD,
    ClusterView,
    CompactedRecord,
    Log,
    MemoryLog,
    Record,
    TopicUsed,
    fold,
)
from headrace.errors import MessageTooLargeError
from tests.connect.log.samples import put


def run(test: Callable[[Log], Awaitable[None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(test(MemoryLog()), 30)

    asyncio.run(body())


async def everything(
    items: AsyncIterator[tuple[int, Record | CompactedRecord]],
) -> list[tuple[int, str]]:
    return [(position, getattr(record, "name", "")) async for position, record in items]


async def summed(log: Log) -> ClusterView:
    view = ClusterView()
    async for position, record in log.read():
        view, _ = fold(view, record, position)
    return view


def used(number: int) -> TopicUsed:
    return TopicUsed(name=str(number), topic="t")


def test_positions_follow_each_other_and_reading_begins_anywhere() -> None:
    async def test(log: Log) -> None:
        assert [await log.append(used(one)) for one in range(4)] == [0, 1, 2, 3]
        assert await log.end() == 4
        assert await everything(log.read(2)) == [(2, "2"), (3, "3")]
        assert await everything(log.read(4)) == []

    run(test)


def test_who_follows_sees_what_comes_later() -> None:
    async def test(log: Log) -> None:
        seen: list[int] = []

        async def follow() -> None:
            async for position, _ in log.follow(1):
                seen.append(position)
                if position == 3:
                    return

        await log.append(used(0))
        follower = asyncio.create_task(follow())
        for one in range(1, 4):
            await log.append(used(one))
        await follower
        assert seen == [1, 2, 3]

    run(test)


@pytest.mark.defect(12)
def test_a_record_above_the_limit_is_refused_and_not_dropped() -> None:
    async def test(log: Log) -> None:
        with pytest.raises(MessageTooLargeError, match="connector 'a'"):
            await log.append(put("a", x="y" * LARGEST_RECORD))
        assert await log.append(put("a", x="y" * (LARGEST_RECORD - 1000))) == 0

    run(test)


def test_a_compaction_keeps_the_sum_and_positions_go_on() -> None:
    async def test(log: Log) -> None:
        for number in range(50):
            await log.append(put("ab"[number % 2], x=str(number)))
        view = await summed(log)
        assert await log.compact(view)
        assert len(await everything(log.read())) == 2
        assert (await summed(log)).entries == view.entries
        # One that is behind gets all sums, wherever it stands.
        assert len(await everything(log.read(49))) == 2
        assert await log.append(put("c")) == 50
        assert len(await everything(log.read(50))) == 1

    run(test)


def test_a_compaction_that_lacks_a_record_does_nothing() -> None:
    async def test(log: Log) -> None:
        await log.append(put("a"))
        view = await summed(log)
        await log.append(put("b"))
        assert not await log.compact(view)
        assert len(await everything(log.read())) == 2

    run(test)
