"""Which workers of a cluster are alive: members of a consumer group, as brokers know them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, WorkerIdTakenError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Membership

__all__ = ["Members"]

logger = logging.getLogger(__name__)

#: Seconds between two signs of life.
_HEARTBEAT = 2.0
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
        self.client_id = self._new_id()
        self._membership: Membership | None = None
        self._joined = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        #: Told of the error that has ended the heartbeats.
        self.on_failure: OnFailure = lambda _error: None

    async def join(self) -> None:
        """Become a member, until `leave`.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name is a member.
        """
        from headrace.client import MemberRole, Membership

        if self._worker in await self.workers():
            raise self._taken()
        topics = {self._topic: "*"}
        role = MemberRole(group=self._group, subscriptions=topics, client_id=self.client_id)
        self._membership = Membership(self._client, role)
        await self._membership.heartbeat()
        ids = [one for one in await self._ids() if self._name_in(one) == self._worker]
        if min(ids, default=self.client_id) < self.client_id:  # two began at once
            await self.leave()
            raise self._taken()
        self._joined.set()
        self._beating = watched_task(self._beat(), name="connect-heartbeat", on_failure=self._fail)

    async def workers(self) -> set[str]:
        """Give the names of all workers that are alive."""
        return {self._name_in(one) for one in await self._ids()}

    async def join_again(self) -> None:
        """Leave, and become a member anew by another id.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name has become a member meanwhile.
        """
        await self.leave()
        self.client_id = self._new_id()
        await self.join()

    async def changed(self) -> None:
        """Wait until a broker says that the members have changed."""
        await self._joined.wait()
        assert self._membership is not None
        changed = self._membership.changed
        await changed.wait()
        changed.clear()

    async def leave(self) -> None:
        """Be a member no more."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        if self._membership is not None:
            with suppress(HeadraceError):  # the broker drops this member by itself
                await self._membership.leave()
            # Who waits for changes of this membership waits for those of the next one.
            self._joined.clear()
            self._membership.changed.set()
            self._membership = None

    async def _ids(self) -> list[str]:
        from headrace.client import AsyncAdmin

        return await AsyncAdmin(self._client).group_members(self._group)

    def _new_id(self) -> str:
        return f"{self._worker}{_MARK}{uuid.uuid4().hex[:12]}"

    def _name_in(self, client_id: str) -> str:
        return client_id.rpartition(_MARK)[0] or client_id

    def _taken(self) -> WorkerIdTakenError:
        return WorkerIdTakenError(
            f"a worker '{self._worker}' of the group '{self._group}' is alive",
            hint="give this one another worker_id; if that one was killed without a word, brokers"
            " need up to two minutes to notice",
        )

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)

    async def _beat(self) -> None:
        assert self._membership is not None
        while True:
            await asyncio.sleep(_HEARTBEAT)
            try:
                await self._membership.heartbeat()
            except HeadraceError as error:
                logger.warning("worker %s: a heartbeat failed: %s", self._worker, error)
