"""Which workers of a cluster are alive: members of a consumer group, as brokers know them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, WorkerIdTakenError

if TYPE_CHECKING:
    from headrace.client import AsyncClient
    from headrace.client._membership import Membership

__all__ = ["Members"]

logger = logging.getLogger(__name__)

#: Seconds between two signs of life; a worker stops what it runs after several that failed.
_HEARTBEAT = 5.0
#: Stands between a worker's name and the word for this life of it.
_MARK = "%"


class Members:
    """The membership of one worker, and the names of all.

    A broker drops a member when its connection ends, and tells the others at once.

    Parameters
    ----------
    client
        Connection to the cluster.
    group
        Name of the cluster of workers.
    topic
        Topic of its log.
    worker
        Name of this worker.
    """

    def __init__(self, client: AsyncClient, group: str, topic: str, worker: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._worker = worker
        self.client_id = f"{worker}{_MARK}{uuid.uuid4().hex[:12]}"
        self._membership: Membership | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beaten = time.monotonic()

    async def join(self) -> None:
        """Become a member, until `leave`.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name is a member.
        """
        from headrace.client._membership import Membership, Role

        if self._worker in await self.workers():
            raise self._taken()
        role = Role(group=self._group, subscriptions={self._topic: "*"}, client_id=self.client_id)
        self._membership = Membership(self._client, role)
        await self._membership.heartbeat()
        self._beaten = time.monotonic()
        ids = [one for one in await self._ids() if self._name_in(one) == self._worker]
        if min(ids, default=self.client_id) < self.client_id:  # two began at once
            await self.leave()
            raise self._taken()
        self._beating = asyncio.create_task(self._beat(), name="connect-heartbeat")

    async def workers(self) -> set[str]:
        """Give the names of all workers that are alive."""
        return {self._name_in(one) for one in await self._ids()}

    def silent_for(self) -> float:
        """Give the seconds since brokers last took a sign of life of this worker."""
        return time.monotonic() - self._beaten

    async def changed(self) -> None:
        """Wait until a broker says that the members have changed."""
        assert self._membership is not None
        await self._membership.changed.wait()
        self._membership.changed.clear()

    async def leave(self) -> None:
        """Be a member no more."""
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        if self._membership is not None:
            with suppress(HeadraceError):  # the broker drops this member by itself
                await self._membership.leave()

    async def _ids(self) -> list[str]:
        from headrace.client import AsyncAdmin

        return await AsyncAdmin(self._client).group_members(self._group)

    def _name_in(self, client_id: str) -> str:
        return client_id.rpartition(_MARK)[0] or client_id

    def _taken(self) -> WorkerIdTakenError:
        return WorkerIdTakenError(
            f"a worker '{self._worker}' of the group '{self._group}' is alive",
            hint="give this one another worker_id; if that one was killed without a word, brokers"
            " need up to two minutes to notice",
        )

    async def _beat(self) -> None:
        assert self._membership is not None
        while True:
            await asyncio.sleep(_HEARTBEAT)
            try:
                await self._membership.heartbeat()
                self._beaten = time.monotonic()
            except HeadraceError as error:
                logger.warning("worker %s: a heartbeat failed: %s", self._worker, error)
