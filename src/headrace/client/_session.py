"""What a client holds in one process: connections and what it learnt about the cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.client._connection import Connection, ServerRequestHandler, open_connection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.settings import ClientSettings
    from headrace.protocol.frames import Command
    from headrace.protocol.routes import BrokerData, TopicRoute

__all__ = ["Session"]

#: Bit of a command's flag: no answer is wanted.
_ONEWAY = 2

# Sessions of a parent process: to finalise one would close descriptors that its loop still polls.
_abandoned: list[Session] = []


class Session:
    """Connections by address, routes by topic, addresses by broker name.

    Caller: AsyncClient.
    """

    def __init__(self, settings: ClientSettings, on_request: ServerRequestHandler) -> None:
        self.requests = 0
        self.addresses: dict[str, str] = {}
        #: Brokers whose address must be asked for again, as the last connection to it failed.
        self.stale: set[str] = set()
        #: Route of each topic and the loop's time at which it was asked for.
        self.routes: dict[str, tuple[TopicRoute, float]] = {}
        self._settings = settings
        self._on_request = on_request
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._avoided: dict[str, int] = {}
        self._closed_sent = 0
        self._closed_received = 0

    @property
    def open_connections(self) -> int:
        return sum(not connection.closed for connection in self._connections.values())

    @property
    def pending(self) -> int:
        return sum(connection.pending for connection in self._connections.values())

    @property
    def bytes_sent(self) -> int:
        return self._closed_sent + sum(c.bytes_sent for c in self._connections.values())

    @property
    def bytes_received(self) -> int:
        return self._closed_received + sum(c.bytes_received for c in self._connections.values())

    async def request(self, address: str, command: Command, timeout: float) -> Command:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await self._connect(address)
        self.requests += 1
        return await connection.request(command, timeout)

    async def send_oneway(self, address: str, command: Command) -> None:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await self._connect(address)
        self.requests += 1
        command.flag |= _ONEWAY
        connection.send_oneway(command)

    def learn(self, brokers: Iterable[BrokerData]) -> None:
        """Remember the addresses of masters."""
        for broker in brokers:
            if broker.master is not None:
                self.addresses[broker.broker_name] = broker.master
                self.stale.discard(broker.broker_name)

    def by_preference(self, addresses: tuple[str, ...]) -> list[str]:
        """Sort addresses: those that failed least come first."""
        return sorted(addresses, key=lambda address: self._avoided.get(address, 0))

    def avoid(self, address: str) -> None:
        """Prefer the other addresses from now on."""
        self._avoided[address] = self._avoided.get(address, 0) + 1

    async def close(self) -> None:
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        # The transports drop their descriptors in the next round of the loop.
        await asyncio.sleep(0)

    def abandon(self) -> None:
        """Leave everything to the parent process, from which this one was forked."""
        _abandoned.append(self)

    async def _connect(self, address: str) -> Connection:
        # All requests that wait for one address share one attempt; a request that is cancelled
        # must not take the attempt of the others with it.
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        return await asyncio.shield(task)

    async def _open(self, address: str) -> Connection:
        return await open_connection(address, self._on_request, self._settings)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        old = self._connections.get(address)
        if old is not None:
            self._closed_sent += old.bytes_sent
            self._closed_received += old.bytes_received
        self._connections[address] = task.result()
