"""The lease of the coordinator: the broker's lock on the log's queue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.runtime.commit.lease import Lease

__all__ = ["CoordinatorLease"]

#: Brokers give a lock to others after 60 s without a word; this side trusts it half as long.
_RENEWAL, _TRUSTED = 10.0, 30.0
#: Who has not got it asks again after so long.
_AGAIN = 1.0


class CoordinatorLease:
    """One worker's claim to be the coordinator.

    It saves work and keeps no promise: of two assignments on the same one, the first in the log
    holds, whoever made it.

    Parameters
    ----------
    client
        Connection to the cluster.
    group
        Name of the cluster of workers.
    topic
        Topic of its log.
    owner
        Names this worker, differently for each of its lives.
    """

    def __init__(self, client: AsyncClient, group: str, topic: str, owner: str) -> None:
        self._name_servers = ";".join(client.name_servers)
        self._settings = client.settings
        self._names = (group, topic, owner)
        self._client: Client | None = None
        self._lease: Lease | None = None
        self._asked = self._granted = float("-inf")

    async def held(self) -> bool:
        """Tell whether this worker is the coordinator now; take or renew the lease if it is time.

        Raises
        ------
        HeadraceError
            The broker cannot be asked.
        """
        now = time.monotonic()
        if now - self._asked >= (_AGAIN if self._granted == float("-inf") else _RENEWAL):
            granted = await asyncio.to_thread(self._acquire)
            # A failure to ask leaves the time as it was, so that the next turn asks again.
            self._asked = now
            self._granted = now if granted else float("-inf")
        return time.monotonic() - self._granted < _TRUSTED

    async def release(self) -> None:
        """Let another worker be the coordinator."""
        await asyncio.to_thread(self._release)

    def _acquire(self) -> bool:
        from headrace.client import Client
        from headrace.runtime.commit.lease import Lease

        if self._lease is None:
            self._client = Client(self._name_servers, self._settings)
            self._lease = Lease(self._client, *self._names)
        return self._lease.acquire()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        if self._client is not None:
            self._client.close()
            self._client = None
