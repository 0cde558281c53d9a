"""One client's connection: bytes to requests, answers to bytes, within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from headrace.broker.requests import Request
from headrace.errors import ProtocolError
from headrace.protocol.frames import Buffer, Command, FrameBuffer, encode
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from headrace.broker.settings import Limits


# What all connections of a broker hold together.
#
# No I/O: connections report, and who must wait or go is asked for.

#: So many connections may wait for room for a frame; each may have sent a piece of it already.
_MOST_WAITING = 256


class Waiting(Protocol):
    """A connection as the ledger knows it."""

    @property
    def unsent(self) -> int:
        """Bytes that its client has not taken."""

    def regulate(self) -> None:
        """Check again whether the connection may be read."""

    def cut_off(self, why: str) -> None:
        """End it at once."""


class ConnectionLedger:
    """Sums over all connections, and the queues that form when one is too high.

    Parameters
    ----------
    limits
        Bounds of the sums.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        #: Bytes of requests that are worked on.
        self.held = 0
        #: Bytes of frames that have not come whole, by connection.
        self._receiving: dict[Waiting, int] = {}
        self._received = 0
        #: Connections that are not read because of a sum, first come, first served.
        self.waiting: dict[Waiting, int] = {}
        #: Connections whose clients do not take their answers, the one that began first in front.
        self._clogged: dict[Waiting, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether the requests that are worked on are too many bytes."""
        return self.held > self.limits.max_held_in_all

    def receive(self, connection: Waiting, size: int) -> bool:
        """Reserve room for a frame that has begun; return False if it has to wait, or to go."""
        if self._received and self._received + size > self.limits.max_receiving_in_all:
            if len(self.waiting) >= _MOST_WAITING:
                connection.cut_off("too many large frames are under way")
            else:
                self.waiting[connection] = size
            return False
        self._receiving[connection] = size
        self._received += size
        return True

    def received(self, connection: Waiting) -> None:
        """Free the room of a frame that came whole, or never will."""
        size = self._receiving.pop(connection, 0)
        self._received -= size
        if size:
            self.wake()

    def wait(self, connection: Waiting) -> None:
        """Note a connection that waits for requests to be done."""
        self.waiting.setdefault(connection, 0)

    def wake(self) -> None:
        """Resume waiting connections as far as there is room."""
        for connection, size in list(self.waiting.items()):
            if self.is_full:
                return
            if size:
                if self._received and self._received + size > self.limits.max_receiving_in_all:
                    return
                self._receiving[connection] = size
                self._received += size
            del self.waiting[connection]
            connection.regulate()

    def clogged(self, connection: Waiting) -> None:
        """Note a connection whose client does not take its answers, and make room if need be."""
        self._clogged[connection] = None
        if len(self._clogged) * self.limits.max_unsent > self.limits.max_unsent_in_all:
            self.relieve()

    def flowing(self, connection: Waiting) -> None:
        """Note that a client takes its answers again."""
        self._clogged.pop(connection, None)

    def relieve(self) -> None:
        """Cut off the clients that have not taken their answers for longest."""
        unsent = sum(connection.unsent for connection in self._clogged)
        for connection in list(self._clogged):
            if unsent <= self.limits.max_unsent_in_all:
                return
            unsent -= connection.unsent
            connection.cut_off("it does not take its answers, and too many bytes wait to be sent")

    def gone(self, connection: Waiting) -> None:
        """Forget a connection."""
        self.waiting.pop(connection, None)
        self._clogged.pop(connection, None)
        self.received(connection)


logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

_SEND_BUFFER = 4 * 1024 * 1024
#: What goes to the transport at a time when much is to be sent.
_PORTION = 1024 * 1024
#: Frames below this size count no room: a connection costs as much by itself.
_SMALL = 16 * 1024
#: More pieces than this that a client does not take are not kept for it.
_MOST_PIECES = 65_536

Dispatch = Callable[[Request], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a connection belongs to."""

    #: Takes each request.
    dispatch: Dispatch
    #: Told when a connection is established, and when it is gone.
    opened: Callable[[Connection], None]
    closed: Callable[[Connection], None]
    #: Takes each answer to a request of the broker's own, with the connection's number.
    answered: Callable[[int, Command], None]
    #: What all connections hold together.
    ledger: ConnectionLedger


class Connection(asyncio.Protocol):
    """A connection that takes requests and sends what handlers give it.

    Everything sent in one round of the loop goes out in one write.  What a client does not take
    stays here, mostly as views of the log, and its next requests wait.

    Parameters
    ----------
    number
        Number of the connection.
    hooks
        What it belongs to.
    """

    def __init__(self, number: int, hooks: Hooks) -> None:
        self.number = number
        self.address = ("", 0)
        #: Whether it was ever established.
        self.stood = False
        #: Bytes for the client that the transport has not got yet.
        self._waiting_to_go = 0
        self._dispatch = hooks.dispatch
        self._hooks = hooks
        self._ledger = hooks.ledger
        self._limits = limits = hooks.ledger.limits
        self._frames = FrameBuffer(limits.max_frame, limits.max_header, limits.max_fields)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._receiving = False
        #: Requests that came and wait until the connection is read again.
        self._backlog: Iterator[Command] | None = None
        self._backlog_bytes = 0
        self._held = 0
        self._in_flight = 0
        #: Size of a large frame that has begun, and since when.
        self._partial = 0
        self._began: float | None = None
        self._started = 0
        self._clogged = False
        self._paused = False
        self._ending = False
        #: Bytes that the transport has got so far.
        self._given = 0
        self._active = True
        self._quiet_since = self._loop.time()
        self._progress = (0, self._quiet_since)

    @property
    def limits(self) -> Limits:
        """Bounds on what it may ask for."""
        return self._limits

    @property
    def unsent(self) -> int:
        """Memory that is held because the client does not read.

        Answers that the transport has not got yet do not count: they are views of the log.
        """
        transport = self._transport
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        return buffered + self._backlog_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        # asyncio sets this on sockets that name their protocol only, which accepted ones do not.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(self._limits.max_unsent)
        self.stood = True
        self._hooks.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: called by the loop."""
        if exc is not None:
            logger.info("connection %d from %s was lost: %s", self.number, self.address, exc)
        self._transport = None
        self._out = []
        self._backlog = None
        self._ledger.gone(self)
        self._hooks.closed(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes: called by the loop."""
        self._active = True
        commands = self._frames.commands(data)
        if self._backlog is not None:
            # TLS hands over what it has read even after it was asked to pause.
            self._backlog = _chained(self._backlog, commands)
            self._backlog_bytes += len(data)
            return
        self._take(commands, len(data))

    def _take(self, commands: Iterator[Command], size: int) -> None:
        """Dispatch requests until there are none left or the connection must pause."""
        dispatch = self._dispatch
        self._receiving = True
        try:
            for command in commands:
                if command.is_response:
                    self._hooks.answered(self.number, command)
                else:
                    dispatch(Request(command, self))
                if self._paused:
                    self._backlog, self._backlog_bytes = commands, size
                    break
        except ProtocolError as error:
            self._refuse(str(error))
        finally:
            self._receiving = False
        self._flush()
        frames = self._frames
        if self._backlog is None:
            if frames.pending != self._partial:
                self._note_partial(frames.pending)
            elif self._partial and frames.started != self._started:
                self._began = self._loop.time()
            self._started = frames.started

    def _refuse(self, why: str) -> None:
        _quiet.warning("closing the connection from %s:%d: %s", *self.address, why)
        self.close()

    def _note_partial(self, pending: int) -> None:
        """Note that a frame began or ended: a large one needs room, and each must end in time."""
        if self._partial >= _SMALL:
            self._ledger.received(self)
        self._partial = pending
        self._began = self._loop.time() if pending else None
        if pending >= _SMALL and not self._ledger.receive(self, pending):
            self.regulate()

    def send(self, command: Command) -> None:
        """Send a command at the end of this round of the loop."""
        if self._transport is None:
            return
        out = self._out
        if not out and not self._receiving:
            self._loop.call_soon(self._flush)
        pieces = encode(command)
        out += pieces
        # The frame's length is what its first four bytes say.
        self._waiting_to_go += int.from_bytes(pieces[0][:4]) + 4
        if self._waiting_to_go > _PORTION:
            self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or not self._out:
            return
        if self._clogged:
            if len(self._out) > _MOST_PIECES:
                self.cut_off("it does not take its answers")
            return
        if self._waiting_to_go > _PORTION:
            self._flush_portions(transport)
            return
        self._active = True
        self._given += self._waiting_to_go
        transport.writelines(self._out)
        self._out = []
        self._waiting_to_go = 0

    def _flush_portions(self, transport: asyncio.Transport) -> None:
        """Write to the transport as much as it takes; the rest stays here, as it is."""
        pieces = iter(self._out)
        rest: list[Buffer] = []
        while not self._clogged:
            portion, size = _next_portion(rest, pieces)
            if not portion:
                break
            self._active = True
            self._waiting_to_go -= size
            self._given += size
            # The transport calls pause_writing in here when it has enough.
            transport.writelines(portion)
        rest.extend(pieces)
        self._out = rest

    def close(self) -> None:
        """Close once everything sent has gone out."""
        self._flush()
        self._ending = True
        if self._transport is not None and not self._out:
            self._transport.close()
        self.regulate()

    def abort(self) -> None:
        """Close at once, whatever was not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def cut_off(self, why: str) -> None:
        """Close at once and say why in the log."""
        _quiet.warning("cutting off the client at %s:%d: %s", *self.address, why)
        self._out = []
        self._waiting_to_go = 0
        self.abort()

    def hold(self, size: int) -> None:
        """Count a request that is worked on; too many, or too many bytes, stop the reading."""
        self._held += size
        self._in_flight += 1
        ledger, limits = self._ledger, self._limits
        ledger.held += size
        if (
            self._in_flight > limits.max_in_flight
            or self._held > limits.max_held
            or ledger.held > limits.max_held_in_all
        ):
            self.regulate()

    def release(self, size: int) -> None:
        """Count a request as done."""
        self._held -= size
        self._in_flight -= 1
        ledger = self._ledger
        ledger.held -= size
        if self._paused:
            self.regulate()
        if ledger.waiting:
            ledger.wake()

    def pause_writing(self) -> None:
        """Leave the requests of a client that does not take its answers: called by the loop."""
        self._clogged = True
        self._progress = (self._taken(), self._loop.time())
        self._ledger.clogged(self)
        self.regulate()

    def resume_writing(self) -> None:
        """Go on: called by the loop."""
        self._clogged = False
        self._ledger.flowing(self)
        self._flush()
        if self._ending:
            self.close()
        self.regulate()

    def regulate(self) -> None:
        """Stop or resume reading, whichever is due."""
        transport, ledger, limits = self._transport, self._ledger, self._limits
        if transport is None or transport.is_closing():
            return
        if ledger.is_full and self._held:
            ledger.wait(self)
        paused = (
            self._clogged
            or self._ending
            or self._held > limits.max_held
            or self._in_flight > limits.max_in_flight
            or self in ledger.waiting
        )
        if paused == self._paused:
            return
        self._paused = paused
        if paused:
            transport.pause_reading()
        else:
            # Not at once: whoever releases is in the middle of something.
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        transport = self._transport
        if self._paused or transport is None or transport.is_closing():
            return
        backlog, size = self._backlog, self._backlog_bytes
        self._backlog, self._backlog_bytes = None, 0
        if self._began is not None:
            # The time that we did not read is not the client's.
            self._began = self._loop.time()
        if backlog is not None:
            self._take(backlog, size)
        self._resume_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is not None and not self._paused and not transport.is_closing():
            transport.resume_reading()

    def check(self, now: float) -> None:
        """End the connection if its client has let a time limit pass; called now and then."""
        limits, transport = self._limits, self._transport
        if transport is None:
            return
        if self._clogged or transport.is_closing():
            self._check_progress(now)
        elif self._active:
            self._active = False
            self._quiet_since = now
        elif now - self._quiet_since > limits.idle_timeout.total_seconds() and not self._in_flight:
            self.close()
        if (
            self._began is not None
            and not self._paused
            and now - self._began > limits.frame_timeout.total_seconds()
        ):
            self.cut_off(f"a frame of {self._partial} bytes did not end in time")

    def _taken(self) -> int:
        """Return the bytes that the client, or the system for it, has taken so far."""
        transport = self._transport
        return self._given - (0 if transport is None else transport.get_write_buffer_size())

    def _check_progress(self, now: float) -> None:
        taken = self._taken()
        before, since = self._progress
        if taken != before:
            self._progress = (taken, now)
        elif now - since > self._limits.stall_timeout.total_seconds():
            self.cut_off("it does not take its answers")


def _next_portion(rest: list[Buffer], pieces: Iterator[Buffer]) -> tuple[list[Buffer], int]:
    """Take pieces for one write, and leave in ``rest`` what is left of a long one."""
    portion: list[Buffer] = []
    size = 0
    while size < _PORTION:
        piece = rest.pop() if rest else next(pieces, None)
        if piece is None:
            break
        length = piece.nbytes if isinstance(piece, memoryview) else len(piece)
        if size + length > 2 * _PORTION:
            view = memoryview(piece)
            cut = _PORTION - size
            rest.append(view[cut:])
            piece, length = view[:cut], cut
        portion.append(piece)
        size += length
    return portion, size


def _chained(first: Iterator[Command], second: Iterator[Command]) -> Iterator[Command]:
    yield from first
    yield from second
