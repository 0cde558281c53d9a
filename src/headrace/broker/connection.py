"""One client's connection: bytes to requests, answers to bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from headrace.broker.requests import Request
from headrace.errors import ProtocolError
from headrace.protocol.frames import Buffer, Command, FrameBuffer, encode

__all__ = ["Connection"]

_log = logging.getLogger(__name__)

_SEND_BUFFER = 4 * 1024 * 1024
_MOST_HELD = 64 * 1024 * 1024

Dispatch = Callable[[Request], None]


class Connection(asyncio.Protocol):
    """A connection that takes requests and sends what handlers give it.

    Everything sent in one round of the loop goes out in one write.

    Parameters
    ----------
    number
        Number of the connection.
    dispatch
        Takes each request.
    closed
        Told when the connection is gone.
    """

    def __init__(
        self, number: int, dispatch: Dispatch, closed: Callable[[Connection], None]
    ) -> None:
        self.number = number
        self.address = ("", 0)
        self._dispatch = dispatch
        self._closed = closed
        self._frames = FrameBuffer()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._receiving = False
        self._held = 0
        self._clogged = False
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        # asyncio sets this on sockets that name their protocol only, which accepted ones do not.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: called by the loop."""
        if exc is not None:
            _log.info("connection %d from %s was lost: %s", self.number, self.address, exc)
        self._transport = None
        self._out = []
        self._closed(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes: called by the loop."""
        try:
            commands = self._frames.feed(data)
        except ProtocolError as error:
            _log.warning("closing connection %d from %s: %s", self.number, self.address, error)
            self.close()
            return
        self._receiving = True
        for command in commands:
            if not command.is_response:
                self._dispatch(Request(command, self))
        self._receiving = False
        self._flush()

    def send(self, command: Command) -> None:
        """Send a command at the end of this round of the loop."""
        if self._transport is None:
            return
        if not self._out and not self._receiving:
            self._loop.call_soon(self._flush)
        self._out += encode(command)

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.writelines(self._out)
        self._out = []

    def close(self) -> None:
        """Close once everything sent has gone out."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever was not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def hold(self, size: int) -> None:
        """Count bytes that wait for the disk; too many stop the reading."""
        self._held += size
        self._regulate()

    def release(self, size: int) -> None:
        """Count bytes as done."""
        self._held -= size
        self._regulate()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not take its answers: called by the loop."""
        self._clogged = True
        self._regulate()

    def resume_writing(self) -> None:
        """Read again: called by the loop."""
        self._clogged = False
        self._regulate()

    def _regulate(self) -> None:
        paused = self._clogged or self._held > _MOST_HELD
        if paused == self._paused or self._transport is None or self._transport.is_closing():
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
