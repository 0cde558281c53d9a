"""One TCP connection to a server, shared by all requests to its address."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.client._tls import tls_context, tls_failure
from headrace.errors import ConnectionFailedError, ProtocolError, RequestTimeoutError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command, FrameBuffer, encode
from headrace.protocol.signing import sign

if TYPE_CHECKING:
    from headrace.client.settings import ClientSettings

__all__ = ["Connection", "ServerRequestHandler", "open_connection"]

ServerRequestHandler = Callable[[Command], Command | None]
"""Answers a request that the server sent; None: no answer is due."""

_LARGEST_OPAQUE = 0x7FFF_FFFF


class Connection(asyncio.Protocol):
    """Requests and their answers on one connection, matched by number.

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
        """Requests that wait for their answer."""
        return len(self._pending)

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a command and wait for its answer, of whatever code.

        Raises
        ------
        RequestTimeoutError
            If no answer came within ``timeout`` seconds.
        ConnectionFailedError
            If the connection was lost: whether the server handled the request is not known.
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
        """Close the connection; what waits for an answer fails."""
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
                    f"{self.address} did not answer request {_code_name(code)} "
                    f"within {timeout:g} s",
                    hint="the server may be overloaded or stopped; "
                    "ClientSettings.request_timeout sets how long is waited",
                )
            )

    def _lost(self, cause: Exception | None) -> ConnectionFailedError:
        why = f": {cause}" if cause is not None else ""
        hint = "is the server still running?"
        if not self.bytes_received and not self._tls:
            hint += " It closed without a word: perhaps it takes TLS only (set tls)."
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
    """Have the system end a connection whose other end takes nothing for so long.

    It would go on for a quarter of an hour, with longer and longer pauses: a network that was
    mended meanwhile is found late, in which case a new connection would have worked at once.
    """
    # Linux has this limit; a simulated network has no sockets.
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


async def open_connection(
    address: str, on_request: ServerRequestHandler, settings: ClientSettings
) -> Connection:
    """Connect to ``host:port``.

    Raises
    ------
    ConnectionFailedError
        If that did not work within the settings' ``connect_timeout``, or ``request_timeout`` where
        that is shorter.
    TlsError
        If the server cannot be trusted.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    loop = asyncio.get_running_loop()
    # Who has more patience tries again: by then the server may have another address.
    timeout = min(settings.connect_timeout, settings.request_timeout).total_seconds()
    context = tls_context(settings)
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(address, on_request, settings),
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
