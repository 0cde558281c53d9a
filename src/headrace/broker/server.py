"""The broker on its port: one listening socket, one store, one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace._setting import settings_of
from headrace.broker.access import Door, Guard
from headrace.broker.core import Core, Handler
from headrace.broker.handlers import HANDLERS
from headrace.broker.handlers.jobs import restore_jobs
from headrace.broker.naming.announcing import Announcer
from headrace.broker.network.connection import Connection, ConnectionLedger, Hooks
from headrace.broker.network.listener import Admission, Listener, server_context
from headrace.broker.replication.follower import FollowerTask
from headrace.broker.replication.promotion import begin_replication
from headrace.broker.replication.replicas import Role
from headrace.broker.settings import BrokerSettings
from headrace.errors import HeadraceError, SettingsError, StoreError
from headrace.private import is_loopback
from headrace.protocol.codes import ResponseCode
from headrace.protocol.frames import Command
from headrace.store import MessageStore, StoreSettings, StoreStatistics
from headrace.store.settings import KeepingSettings
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.broker.requests import Request
    from headrace.broker.waiting import Queue
    from headrace.protocol.replication import ReplicationInfo


# From a request to its handler, and from what the handler returns to an answer.


class Dispatcher:
    """Calls the handler of each request.

    Parameters
    ----------
    core
        What handlers work on.
    handlers
        Handlers by request code.
    """

    def __init__(self, core: Core, handlers: Mapping[int, Handler]) -> None:
        self._core = core
        self._handlers = handlers
        #: Requests taken so far.
        self.count = 0
        #: Set when the broker stops: clients go elsewhere or try again.
        self.closing = False

    def __call__(self, request: Request) -> None:
        """Handle a request; whatever goes wrong becomes its answer."""
        self.count += 1
        handler = self._handlers.get(request.command.code)
        if handler is None:
            # The leading blank is RocketMQ's, and tools look for the text.
            remark = f" request type {request.command.code} not supported"
            request.answer(request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        if self.closing:
            remark = "the broker is stopping"
            request.answer(request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
            return
        try:
            gate = self._core.replication.gate
            outcome = (gate and gate(request)) or handler(self._core, request)
        except Exception as error:  # noqa: BLE001  (the client is told, whatever it is)
            outcome = self._core.refusals.of(request, error)
        if isinstance(outcome, Command):
            request.answer(outcome)
        elif outcome is not None:
            # Counted from now on: the task itself begins later.
            size = len(request.command.payload)
            request.peer.hold(size)
            self._core.work.start_task(self._answer_later(request, outcome, size))

    async def _answer_later(self, request: Request, outcome: Awaitable[Command], size: int) -> None:
        try:
            answer = await outcome
        except Exception as error:  # noqa: BLE001  (the client is told, whatever it is)
            answer = self._core.refusals.of(request, error)
        finally:
            request.peer.release(size)
        request.answer(answer)


logger = logging.getLogger(__name__)

_ANY_HOST = "0.0.0.0"  # noqa: S104  (told apart, not listened on)
_LOOK_AROUND = 5.0
_WATCH = 1.0
#: So long a client may take to fetch its last answers when the broker stops.
_LAST_ANSWERS = 2.0


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What a broker holds and has done since it started."""

    connections: int
    #: Requests taken.
    requests: int
    #: Requests that wait for a message.
    waiting: int
    #: Requests that were refused, by the names of their codes.
    refused: dict[str, int]
    topics: int
    #: Consumer groups that were seen or have offsets.
    groups: int
    jobs: int
    #: Half messages whose producers have not said what becomes of them.
    open_transactions: int
    #: This broker's part in replication, and how far its followers are.
    replication: ReplicationInfo
    store: StoreStatistics


class BrokerServer:
    """Name server and broker on one port, in this event loop.

    Parameters
    ----------
    data
        Folder for everything that the broker keeps; made when it does not exist.
    port
        Port to listen on; 0 picks a free one.
    settings
        How the broker behaves.

    Raises
    ------
    SettingsError
        When the address cannot be listened on.
    StoreLockedError
        When another process uses the folder.

    Examples
    --------
    >>> import asyncio, tempfile
    >>> async def main() -> str:
    ...     async with BrokerServer(Path(tempfile.mkdtemp())) as broker:
    ...         return broker.address
    >>> asyncio.run(main()).rpartition(":")[0]
    '127.0.0.1'
    """

    def __init__(self, data: Path, port: int = 0, settings: BrokerSettings | None = None) -> None:
        self._data = data
        self._port = port
        self._settings = settings or BrokerSettings()
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._core: Core | None = None
        self._announcers: list[Announcer] = []
        self._dispatch: Dispatcher | None = None
        self._listener: Listener | None = None
        self._hooks: Hooks | None = None
        self._reopening: asyncio.Task[None] | None = None
        #: The error that has ended a part of the broker, and the broker with it.
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port`` as clients are told it."""
        return self._running().address

    def statistics(self) -> BrokerStatistics:
        """Return what the broker holds and has done."""
        core = self._running()
        assert self._dispatch is not None
        groups = {group.name for group in core.clients.groups()} | set(core.offsets.groups())
        return BrokerStatistics(
            connections=len(self._connections),
            requests=self._dispatch.count,
            waiting=len(core.polls),
            refused=dict(core.refusals.counts),
            topics=len(list(core.topics)),
            groups=len(groups),
            jobs=len(list(core.jobs.items())),
            open_transactions=core.half_messages.open_count(),
            replication=core.replication.info(),
            store=core.store.statistics(),
        )

    def _running(self) -> Core:
        if self._core is None:
            raise RuntimeError("the broker does not run; use it in an async with block")
        return self._core

    async def start(self) -> None:
        """Open the store, find out where everything stands, and take connections."""
        settings = self._settings
        if settings.acl is None and not is_loopback(settings.host):
            if not settings.allow_anyone:
                raise SettingsError(
                    f"whoever reaches {settings.host} could do everything: there are no accounts",
                    hint="name a file of accounts (--acl, see docs/guides/operate/security.md),"
                    " or listen on 127.0.0.1; --allow-anyone takes the risk",
                )
            logger.warning("everybody who reaches %s may do everything", settings.host)
        listener = self._listen()
        try:
            await self._open(listener)
        except BaseException:
            listener.close()
            raise

    def _listen(self) -> socket.socket:
        host = self._settings.host
        listener = socket.socket(socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, self._port))
        except OSError as error:
            listener.close()
            why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
            message = f"the broker cannot listen on {host}:{self._port}: {why}"
            hint = "Choose another port (--port), or stop what uses this one."
            raise SettingsError(message, hint=hint) from error
        return listener

    async def _open(self, listener: socket.socket) -> None:
        guard = None if self._settings.acl is None else Guard(self._settings.acl)
        tls = await asyncio.to_thread(server_context, self._settings, self._data)
        host, port = self._advertised(listener)
        store = await asyncio.to_thread(
            MessageStore.open, self._data / "store", self._store_settings(), self._arrived
        )
        store.store_host = (host, port)
        try:
            core = Core(self._data, store, self._settings, host, port, on_failure=self._fail)
            await begin_replication(core.replication)
            if core.replication.role is Role.FOLLOWER:
                core.follower = FollowerTask(core.replication, core.tables, self._reopen)
            await asyncio.to_thread(core.compact_all)
            restore_jobs(core)
            core.half_messages.restore()
        except BaseException:
            store.close()
            raise
        self._core = core
        self._announcers = [
            Announcer(core.tables, core.replication, address)
            for address in self._settings.name_servers
        ]
        self._dispatch = Dispatcher(core, HANDLERS)
        ledger = ConnectionLedger(self._settings.limits)
        dispatch: Callable[[Request], None] = self._dispatch
        if guard is not None:
            dispatch = Door(guard, self._dispatch, core.refusals, core.work)
        self._hooks = Hooks(
            dispatch, self._connected, self._disconnected, core.client_requests.answered, ledger
        )
        gate = Admission(self._settings.limits, self._settings.tls_mode, tls)
        self._listener = Listener(listener, self._connection, gate)
        self._listener.start()
        core.sample_rates()
        core.work.keep("broker-connections", self._watch_connections(ledger))
        if guard is not None:
            core.work.keep("broker-rules", _watch_rules(guard))
        core.work.keep("broker-saving", self._save_now_and_then())
        for announcer in self._announcers:
            announcer.start()
        core.work.keep("broker-delays", core.delays.run())
        core.work.keep("broker-half-messages", core.half_messages.run())
        core.work.keep("broker-expiry", self._look_around_now_and_then())
        if core.follower is not None:
            core.follower.start()

    def _advertised(self, listener: socket.socket) -> tuple[str, int]:
        port = int(listener.getsockname()[1])
        name = self._settings.advertised_host or self._settings.host
        if name == _ANY_HOST:
            name = socket.gethostname()
        try:
            return socket.gethostbyname(name), port
        except OSError as error:
            message = f"clients cannot be told to use the host {name!r}: {error}"
            hint = "Name one that clients reach (--advertised-host)."
            raise SettingsError(message, hint=hint) from error

    def _store_settings(self) -> StoreSettings:
        names = [field.name for field in settings_of(KeepingSettings)]
        return StoreSettings(**{name: getattr(self._settings, name) for name in names})

    def _arrived(self, queues: Collection[Queue]) -> None:
        # Caller: the store's writer, maybe before the core exists.
        if self._core is not None:
            self._core.arrived(queues)

    def _connection(self) -> Connection:
        assert self._hooks is not None
        return Connection(next(self._numbers), self._hooks)

    def _connected(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._deserted.clear()
        self._running().peers[connection.number] = connection

    def _disconnected(self, connection: Connection) -> None:
        core = self._running()
        assert self._listener is not None
        self._listener.left(connection.address[0])
        del self._connections[connection.number]
        if not self._connections:
            self._deserted.set()
        del core.peers[connection.number]
        core.polls.abandon(connection.number)
        core.client_requests.gone(connection.number)
        core.replication.disconnected(connection.number)
        core.names.registry.disconnect(connection.number)
        core.notify(core.clients.disconnect(connection.number))

    async def _watch_connections(self, ledger: ConnectionLedger) -> None:
        core = self._running()
        pause = min(_WATCH, ledger.limits.shortest_timeout.total_seconds() / 4)
        while True:
            await asyncio.sleep(pause)
            now = core.loop.time()
            for connection in list(self._connections.values()):
                connection.check(now)
            ledger.relieve()

    async def _save_now_and_then(self) -> None:
        core = self._running()
        while True:
            await asyncio.sleep(self._settings.save_interval.total_seconds())
            try:
                await core.tables.save(offsets=True)
            except StoreError as error:
                logger.error("consumer offsets or groups could not be saved: %s", error)

    async def _look_around_now_and_then(self) -> None:
        core = self._running()
        while True:
            await asyncio.sleep(_LOOK_AROUND)
            core.sample_rates()
            core.replication.look_around()
            core.notify(core.clients.expire(now=core.loop.time()))
            core.names.registry.expire(now=core.loop.time())

    def _reopen(self, change: Callable[[], None]) -> None:
        """Stop, change the closed store, and start again on the same port."""
        self._port = self._running().port
        self._reopening = watched_task(
            self._stop_and_start(change), name="broker-reopening", on_failure=self._fail
        )

    async def _stop_and_start(self, change: Callable[[], None]) -> None:
        await self._stop()
        await asyncio.to_thread(change)
        while True:
            try:
                await self.start()
            except HeadraceError as error:
                logger.error("the broker does not start again: %s", error)
                await asyncio.sleep(_LOOK_AROUND)
            else:
                return

    def _fail(self, error: BaseException) -> None:
        """End, as a part has ended with an error, without which there is no broker."""
        if self._failure is None:
            self._failure = error
            self._failed.set()
            self._ending = asyncio.get_running_loop().create_task(self._stop())

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Wait until an event is set, or a part of the broker has ended with an error."""
        waits = [asyncio.ensure_future(each.wait()) for each in (stop, self._failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def stop(self) -> None:
        """Finish what was taken, save everything, and release the port and the folder.

        Raises
        ------
        BaseException
            What has ended a part of the broker, and the broker with it.
        """
        if self._reopening is not None:
            if self._core is None:
                self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        if self._ending is not None:
            await self._ending
        await self._stop()
        if self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        core, dispatch = self._core, self._dispatch
        if core is None or dispatch is None or self._listener is None:
            return
        self._listener.close()
        dispatch.closing = True
        await asyncio.gather(*(announcer.close() for announcer in self._announcers))
        await core.close()
        # Answers that the store gave while it closed go out before the connections end.
        await asyncio.sleep(0)
        for connection in list(self._connections.values()):
            connection.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), _LAST_ANSWERS)
        for connection in list(self._connections.values()):
            connection.abort()
        await self._deserted.wait()
        self._core = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


async def _watch_rules(guard: Guard) -> None:
    while True:
        await asyncio.sleep(_WATCH)
        guard.refresh()
