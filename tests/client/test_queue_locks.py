"""Locks on queues: one that is given back while it is renewed is not held on to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from headrace.client import AsyncClient, MessageQueue
from headrace.client._push_engine import MemberLocks
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult
from headrace.protocol.routes import dumps, loads

QUEUES = [MessageQueue("lines", "b", number) for number in (0, 1)]


class SlowBroker:
    """Grants every lock, when it is let; stands in for a client."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.unlocked: list[int] = []

    async def broker_of(self, queue: MessageQueue) -> str:
        return queue.broker

    async def ask_broker(self, _: str, make: Callable[[], Command]) -> Command:
        command = make()
        assert command.code == RequestCode.LOCK_BATCH_MQ
        await self.may_answer.wait()
        asked = loads(command.payload, LockRequest).mq_set
        return command.reply(body=dumps(LockResult(granted=asked)))

    async def ask_broker_once(self, _: str, command: Command) -> None:
        assert command.code == RequestCode.UNLOCK_BATCH_MQ
        self.unlocked += [each.queue_id for each in loads(command.payload, LockRequest).mq_set]


def test_a_lock_that_is_given_back_while_it_is_renewed_is_not_held() -> None:
    async def scenario() -> None:
        broker = SlowBroker()
        locks = MemberLocks(cast("AsyncClient", broker), "g", "me")
        assert await locks.acquire(QUEUES) == set(QUEUES)
        broker.may_answer.clear()
        renewing = asyncio.create_task(locks.acquire(QUEUES))
        await asyncio.sleep(0)
        await locks.release(QUEUES[:1])
        broker.may_answer.set()
        assert await renewing == {QUEUES[1]}
        assert [locks.holds(queue) for queue in QUEUES] == [False, True]
        assert broker.unlocked == [0, 0], "the broker may have heard of the renewal last"
        assert await locks.acquire(QUEUES[:1]) == {QUEUES[0]}
        assert locks.holds(QUEUES[0])

    asyncio.run(scenario())
