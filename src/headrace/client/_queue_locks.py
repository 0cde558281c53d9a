"""Locks on queues, which brokers keep: one member at a time consumes an ordered queue."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from headrace.client.queues import MessageQueue
from headrace.errors import HeadraceError
from headrace.protocol.bodies import QueueRef, dumps, loads
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient

__all__ = ["QueueLocks"]

_log = logging.getLogger("headrace.client")

#: Brokers give a lock to others after 60 s without a word; this side trusts it half as long.
_TRUSTED = 30.0


class QueueLocks:
    """The queues that one member of a group has locked.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, client: AsyncClient, group: str, client_id: str) -> None:
        self._client = client
        self._group = group
        self._client_id = client_id
        #: When a broker last granted each lock, by the loop's clock.
        self._granted: dict[MessageQueue, float] = {}
        #: Queues whose locks are asked for or held, and were not given back since.
        self._wanted: set[MessageQueue] = set()

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the lock is surely still this member's."""
        granted = self._granted.get(queue)
        return granted is not None and self._now() - granted < _TRUSTED

    async def acquire(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, or renew their locks; those that were granted are given."""
        granted: set[MessageQueue] = set()
        self._wanted.update(queues)
        for broker, part in (await self._by_broker(queues)).items():
            asked = self._now()
            make = partial(Command, RequestCode.LOCK_BATCH_MQ, {}, self._body(part))
            answer = await self._client.ask_broker(broker, make)
            result = loads(answer.payload, LockResult).granted
            mine = {MessageQueue(ref.topic, ref.broker_name, ref.queue_id) for ref in result}
            mine &= set(part)
            if strays := mine - self._wanted:
                # They were given back while the broker was asked, which may have heard that before.
                await self._unlock(strays)
            mine &= self._wanted
            granted |= mine
            for queue in part:
                if queue in mine:
                    self._granted[queue] = asked
                else:
                    self._granted.pop(queue, None)
                    self._wanted.discard(queue)
        return granted

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Give locks back; one that cannot be told of it takes them back by itself."""
        self._wanted.difference_update(queues)
        await self._unlock(
            [queue for queue in queues if self._granted.pop(queue, None) is not None]
        )

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        try:
            for broker, part in (await self._by_broker(queues)).items():
                command = Command(RequestCode.UNLOCK_BATCH_MQ, {}, self._body(part))
                await self._client.ask_broker_once(broker, command)
        except HeadraceError as error:
            _log.warning("group %r: unlocking queues failed: %s", self._group, error)

    async def keep(self) -> None:
        """Renew all locks in time, until cancelled."""
        pause = self._client.settings.lock_interval.total_seconds()
        while True:
            await asyncio.sleep(pause)
            try:
                await self.acquire(list(self._granted))
            except HeadraceError as error:
                _log.warning("group %r: renewing locks failed: %s", self._group, error)

    async def _by_broker(self, queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
        parts: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            parts[await self._client.broker_of(queue)].append(queue)
        return parts

    def _body(self, queues: Collection[MessageQueue]) -> bytes:
        refs = [QueueRef(queue.topic, queue.broker, queue.queue_id) for queue in queues]
        return dumps(
            LockRequest(consumer_group=self._group, client_id=self._client_id, mq_set=refs)
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
