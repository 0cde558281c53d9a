"""Who is a member: those that brokers list, less those whose signs of life stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import AsyncAdmin, AsyncClient
from headrace.connect.coordination import Members
from headrace.errors import NoPermissionError, WorkerIdTakenError

Scenario = Callable[["Group"], Awaitable[None]]


class Group:
    """Members of one group, each with a connection of its own."""

    def __init__(self, address: str, opened: AsyncExitStack) -> None:
        self._address, self._opened = address, opened

    async def member(self, name: str) -> Members:
        client = await self._opened.enter_async_context(AsyncClient(self._address))
        admin = AsyncAdmin(client)
        if not await admin.topic_exists("g-log"):
            await admin.create_topic("g-log", 1)
        times = {"interval": timedelta(seconds=0.05), "timeout": timedelta(seconds=0.4)}
        member = Members(client, "g", "g-log", name, **times)
        self._opened.push_async_callback(member.leave)
        return member

    async def joined(self, name: str) -> Members:
        member = await self.member(name)
        await member.join()
        return member


@asynccontextmanager
async def group(folder: Path) -> AsyncIterator[Group]:
    with EmbeddedBroker(folder) as broker:
        async with AsyncExitStack() as opened:
            yield Group(broker.address, opened)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.02)


async def a_silent_one_is_gone_though_brokers_list_it(group: Group) -> None:
    first, second = await group.joined("w1"), await group.joined("w2")
    await asyncio.sleep(0.8)
    assert await first.workers() == {"w1", "w2"}
    (signs,) = (task for task in second._tasks if task.get_name() == "connect-signs")
    signs.cancel()

    async def is_gone() -> bool:
        return await first.workers() == {"w1"}

    await until(is_gone)
    # One that begins now knows nothing of the silence, but what the log says of it.
    third = await group.joined("w3")
    assert await third.workers({"w2": asyncio.get_running_loop().time()}) == {"w1", "w3"}
    await second.join_again()
    assert await first.workers() == await third.workers() == {"w1", "w2", "w3"}


async def an_old_id_of_ones_own_does_not_stand_in_the_way(group: Group) -> None:
    member = await group.joined("w1")

    async def is_not_heard() -> None:
        return

    assert member._membership is not None
    member._membership.leave = is_not_heard  # type: ignore[method-assign]
    await member.join_again()
    other = await group.member("w1")
    with pytest.raises(WorkerIdTakenError):
        await other.join()


async def one_that_may_give_no_signs_is_a_member_while_brokers_say_so(group: Group) -> None:
    silent = await group.member("w2")

    async def refuse(*_: object, **__: object) -> None:
        raise NoPermissionError("g-heartbeats is not yours")

    silent._send_sign = refuse  # type: ignore[method-assign]
    first = await group.joined("w1")
    await silent.join()
    await asyncio.sleep(1)
    assert await first.workers() == await silent.workers() == {"w1", "w2"}
    await silent.leave()
    assert await first.workers() == {"w1"}


@pytest.mark.parametrize(
    "scenario",
    [
        a_silent_one_is_gone_though_brokers_list_it,
        an_old_id_of_ones_own_does_not_stand_in_the_way,
        one_that_may_give_no_signs_is_a_member_while_brokers_say_so,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_members(scenario: Scenario, tmp_path: Path) -> None:
    async def run() -> None:
        async with group(tmp_path) as members:
            await scenario(members)

    asyncio.run(run())
