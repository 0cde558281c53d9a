"""One TCP connection to a server, shared by all requests to its address."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.client.settings import ClientSettings, read_certificates
from headrace.errors import (
    ConnectionFailedError,
    HeadraceError,
    ProtocolError,
    RequestTimeoutError,
    TlsError,
)
from headrace.protocol.frames import Command, FrameBuffer, encode, request_name, sign

if TYPE_CHECKING:
    from headrace.protocol.routes import BrokerData, TopicRoute


# TLS as a client sees it: the context, and what its failures mean.

_WRONG_PEER = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """Make the TLS context that the settings ask for; None means plain connections.

    Raises
    ------
    SettingsError
        If the file of certificates is missing or holds none.
    """
    if not settings.tls:
        return None
    return _context(settings.tls_ca, settings.tls_ca_data, verify=settings.tls_verify)


@cache
def _context(ca: Path | None, data: str | None, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=data if ca is None else read_certificates(ca))
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_failure(address: str, error: OSError) -> HeadraceError:
    """Return an error that says what a failed handshake means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            hint="give the file with its certificate as tls_ca (HEADRACE_TLS_CA), connect to a"
            " name that the certificate holds, or set tls_verify=False where nobody can listen in",
        )
    if isinstance(error, ssl.SSLError) and error.reason in _WRONG_PEER:
        return TlsError(
            f"what listens at {address} does not speak TLS", hint="leave tls out, or check the port"
        )
    return ConnectionFailedError(
        f"{address} closed the connection during the TLS handshake: {error}",
        hint="does it take TLS? A broker without a certificate does not: leave tls out, or start it"
        " with `headrace broker --tls`",
    )


ServerRequestHandler = Callable[[Command], Command | None]
"""A function that answers a request of the server; None means that no answer is due."""

_LARGEST_OPAQUE = 0x7FFF_FFFF


class BrokerConnection(asyncio.Protocol):
    """A connection that matches requests with their answers by number.

    Answers may arrive in any order; a request of the server goes to ``on_request``.
    """

    def __init__(
        self, address: str, on_request: ServerRequestHandler, settings: ClientSettings
    ) -> None:
        self.address = address
        self._credentials = settings.credentials
        self._tls = settings.tls
        self._silence = settings.request_timeout.total_seconds()
        self.closed = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._on_request = on_request
        self._frames = FrameBuffer(settings.max_frame_size)
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None

    @property
    def pending(self) -> int:
        """The number of requests that wait for their answers."""
        return len(self._pending)

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a command and return its answer, whatever its code.

        Raises
        ------
        RequestTimeoutError
            If no answer came within ``timeout`` seconds.
        ConnectionFailedError
            If the connection was lost; the server may have handled the request or not.
        """
        if self._writable is not None:
            await self._writable
        opaque = self._opaque = self._opaque + 1 if self._opaque < _LARGEST_OPAQUE else 1
        command.opaque = opaque
        if self._credentials is not None:
            sign(command, self._credentials)
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._write(command)
        self._pending[opaque] = answer
        expiry = self._loop.call_later(timeout, self._expire, opaque, command.code, timeout)
        try:
            return await answer
        finally:
            expiry.cancel()
            self._pending.pop(opaque, None)

    def send_oneway(self, command: Command) -> None:
        """Send a command that is not answered."""
        self._opaque = self._opaque + 1 if self._opaque < _LARGEST_OPAQUE else 1
        command.opaque = self._opaque
        if self._credentials is not None:
            sign(command, self._credentials)
        self._write(command)

    def close(self) -> None:
        """Close the connection; requests that wait for an answer fail."""
        self._fail(ConnectionFailedError(f"connection to {self.address} was closed by this client"))

    def _write(self, command: Command) -> None:
        if self._transport is None or self.closed:
            raise self._lost(None)
        buffers = encode(command)
        self.bytes_sent += sum(len(buffer) for buffer in buffers)
        self._transport.writelines(buffers)

    def _expire(self, opaque: int, code: int, timeout: float) -> None:
        answer = self._pending.pop(opaque, None)
        if answer is not None and not answer.done():
            answer.set_exception(
                RequestTimeoutError(
                    f"{self.address} did not answer {request_name(code)} within {timeout:g} s",
                    hint="the server may be overloaded or stopped; "
                    "ClientSettings.request_timeout sets how long the client waits",
                )
            )

    def _lost(self, cause: Exception | None) -> ConnectionFailedError:
        why = f": {cause}" if cause is not None else ""
        hint = "is the server still running?"
        if not self.bytes_received and not self._tls:
            hint += " It closed the connection without a word: perhaps it takes only TLS (set tls)."
        return ConnectionFailedError(f"connection to {self.address} was lost{why}", hint=hint)

    def _fail(self, error: Exception) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(error)
        self.resume_writing()

    # The rest is called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        _limit_silence(transport.get_extra_info("socket"), self._silence)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self._fail(self._lost(exc))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        try:
            commands = self._frames.feed(data)
        except ProtocolError as error:
            self._fail(error)
            return
        for command in commands:
            if command.is_response:
                answer = self._pending.pop(command.opaque, None)
                if answer is not None and not answer.done():
                    answer.set_result(command)
            else:
                self._serve(command)

    def _serve(self, command: Command) -> None:
        reply = self._on_request(command)
        if reply is not None and not command.is_oneway and not self.closed:
            self._write(reply)


def _limit_silence(connected: Any, seconds: float) -> None:
    """Make the system end a connection whose other end takes nothing for ``seconds``.

    Otherwise it retries for a quarter of an hour, with longer and longer pauses, and notices late
    that the network works again; a new connection would work at once.
    """
    # Not every system has this limit, and a simulated network has no sockets.
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


async def open_connection(
    address: str, on_request: ServerRequestHandler, settings: ClientSettings
) -> BrokerConnection:
    """Connect to ``host:port``.

    Raises
    ------
    ConnectionFailedError
        If there is no connection within the shorter one of the settings' ``connect_timeout`` and
        ``request_timeout``.
    TlsError
        If the server cannot be trusted.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    loop = asyncio.get_running_loop()
    # A more patient caller tries again: by then the server may have another address.
    timeout = min(settings.connect_timeout, settings.request_timeout).total_seconds()
    context = tls_context(settings)
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: BrokerConnection(address, on_request, settings),
                host,
                int(port),
                ssl=context,
                server_hostname=None if context is None else host,
            )
    except TimeoutError as error:
        raise _unreachable(address, f"no answer within {timeout:g} s") from error
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
        if context is None:
            raise _unreachable(address, error.strerror or str(error)) from error
        raise tls_failure(address, error) from error
    except OSError as error:
        # asyncio's own text only says that a call failed; numbers below 0 are not the system's.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise _unreachable(address, why) from error
    return connection


def _unreachable(address: str, why: str) -> ConnectionFailedError:
    _, _, port = address.rpartition(":")
    return ConnectionFailedError(
        f"cannot connect to {address}: {why}",
        hint=f"start a broker with `headrace broker --port {port}`, "
        "or name a running one with --namesrv HOST:PORT",
    )


# What a client holds in one process: connections, and what it has learnt about the cluster.

#: Bit of a command's flag: no answer is wanted.
_ONEWAY = 2

# Sessions of a parent process: finalising one would close descriptors that its loop still polls.
_abandoned: list[Session] = []


class Session:
    """Holds connections by address, routes by topic, and addresses by broker name.

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
        self._connections: dict[str, BrokerConnection] = {}
        self._connecting: dict[str, asyncio.Task[BrokerConnection]] = {}
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
        """Sort addresses so that those that failed least come first."""
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

    async def _connect(self, address: str) -> BrokerConnection:
        # All requests that wait for one address share one attempt; a request that is cancelled
        # must not take the attempt of the others with it.
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        return await asyncio.shield(task)

    async def _open(self, address: str) -> BrokerConnection:
        return await open_connection(address, self._on_request, self._settings)

    def _connected(self, address: str, task: asyncio.Task[BrokerConnection]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        old = self._connections.get(address)
        if old is not None:
            self._closed_sent += old.bytes_sent
            self._closed_received += old.bytes_received
        self._connections[address] = task.result()
