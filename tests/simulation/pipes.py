"""Sockets between processes of one machine: in memory, in order, broken off by a death."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from tests.simulation.world import Process, SimulatedThread, World, this_thread

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulation.threads import SimulatedLoop

__all__ = ["Listener", "Pipes", "SimulatedSocket"]


class _End:
    """One end of a pair: what has come, and who waits for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.other: _End = self
        self.parts: deque[bytes] = deque()
        #: Descriptors of it, in whatever processes; without any it is closed.
        self.handles = 0
        self.waiting: list[SimulatedThread] = []
        #: Called when something has come, or the other end is closed.
        self.on_news: Callable[[], None] = lambda: None

    @property
    def is_deserted(self) -> bool:
        """Whether nothing will ever come again."""
        return not self.other.handles

    def news(self) -> None:
        for thread in self.waiting:
            self._world.wake(thread)
        self.waiting.clear()
        self.on_news()


class SimulatedSocket:
    """A descriptor of one end; the process that has it closes it when it dies."""

    def __init__(self, pipes: Pipes, end: _End, process: Process) -> None:
        self._pipes = pipes
        self._world = pipes.world
        self.end = end
        self._closed = False
        self._timeout: float | None = None
        self._number = next(pipes.numbers)
        end.handles += 1
        pipes.open[self._number] = self
        process.on_death.append(self._close)
        if process.dead:
            self._close()

    def given_to(self, process: Process) -> SimulatedSocket:
        """Give another process a descriptor of the same end."""
        return SimulatedSocket(self._pipes, self.end, process)

    def fileno(self) -> int:
        return self._number

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0.0

    def sendall(self, data: Any) -> None:
        self.send(data)
        self._world.pause()

    def send(self, data: Any) -> int:
        self._world.check()
        end = self.end
        if self._closed or end.is_deserted:
            raise BrokenPipeError(32, "broken pipe")
        sent = bytes(data)
        if sent:
            end.other.parts.append(sent)
            end.other.news()
        return len(sent)

    def sendmsg(self, parts: Iterable[Any]) -> int:
        return self.send(b"".join(parts))

    def recv(self, size: int) -> bytes:
        parts = self.end.parts
        self._wait()
        if not parts:
            return b""
        part = parts.popleft()
        if len(part) > size:
            parts.appendleft(part[size:])
        return part[:size]

    def recv_into(self, buffer: Any) -> int:
        found = self.recv(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _wait(self) -> None:
        world, end = self._world, self.end
        world.check()
        deadline = None if self._timeout is None else world.now + self._timeout
        while not end.parts:
            if self._closed:
                raise OSError(9, "bad descriptor")
            if end.is_deserted:
                return
            rest = None if deadline is None else deadline - world.now
            if rest is not None and rest <= 0:
                raise TimeoutError("timed out") if self._timeout else BlockingIOError(11, "again")
            me = this_thread()
            assert me is not None
            end.waiting.append(me)
            world.block(rest)

    def makefile(self, _mode: str) -> Lines:
        return Lines(self)

    def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._pipes.open[self._number]
        self.end.handles -= 1
        if not self.end.handles:
            self.end.other.news()
            self.end.news()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lines:
    """What comes by a socket, line by line."""

    def __init__(self, socket: SimulatedSocket) -> None:
        self._socket = socket
        self._rest = b""

    def readline(self) -> bytes:
        while b"\n" not in self._rest:
            part = self._socket.recv(1 << 16)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the socket stays."""


class Listener:
    """Takes connections at a path."""

    def __init__(self, pipes: Pipes, path: str) -> None:
        self._pipes = pipes
        self._path = path
        self.process = pipes.process()
        self._came: deque[SimulatedSocket] = deque()
        self._waiting: list[SimulatedThread] = []
        self._closed = False
        pipes.listeners[path] = self
        self.process.on_death.append(self.close)

    def come(self, client: SimulatedSocket) -> None:
        self._came.append(client)
        self._wake()

    def accept(self) -> tuple[SimulatedSocket, str]:
        found = self.take()
        assert found is not None
        return found, ""

    def take(self, seconds: float | None = None) -> SimulatedSocket | None:
        """Wait for the next connection; None: there is none in time."""
        world = self._pipes.world
        deadline = None if seconds is None else world.now + seconds
        while not self._came:
            if self._closed:
                raise OSError(9, "bad descriptor")
            rest = None if deadline is None else deadline - world.now
            if rest is not None and rest <= 0:
                return None
            me = this_thread()
            assert me is not None
            self._waiting.append(me)
            world.block(rest)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._came.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pipes.listeners.pop(self._path, None)
            for client in self._came:
                client.close()
            self._wake()

    def _wake(self) -> None:
        for thread in self._waiting:
            self._pipes.world.wake(thread)
        self._waiting.clear()


class Pipes:
    """All sockets of a world that are no network."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = itertools.count(1_000_000)
        #: Descriptors that are open, by their numbers.
        self.open: dict[int, SimulatedSocket] = {}
        self.listeners: dict[str, Listener] = {}

    def process(self) -> Process:
        """Give the process that asks."""
        me = this_thread()
        assert me is not None
        return me.process

    def pair(self, *_: object) -> tuple[SimulatedSocket, SimulatedSocket]:
        """Make two ends, both of the process that asks."""
        return self._pair(self.process(), self.process())

    def _pair(self, one: Process, other: Process) -> tuple[SimulatedSocket, SimulatedSocket]:
        near, far = _End(self.world), _End(self.world)
        near.other, far.other = far, near
        return SimulatedSocket(self, near, one), SimulatedSocket(self, far, other)

    def listen(self, path: Path) -> Listener:
        """Listen at a path."""
        return Listener(self, str(path))

    def connect(self, path: Path, timeout: float) -> SimulatedSocket:
        """Connect to whoever listens at a path.

        Raises
        ------
        ConnectionRefusedError
            Nobody does.
        """
        self.world.pause()
        there = self.listeners.get(str(path))
        if there is None:
            raise ConnectionRefusedError(111, "refused")
        near, far = self._pair(self.process(), there.process)
        near.settimeout(timeout)
        there.come(far)
        return near

    async def connected(
        self, loop: SimulatedLoop, factory: Callable[[], Any], sock: SimulatedSocket
    ) -> tuple[PipeTransport, Any]:
        """Have a loop serve a socket."""
        protocol = factory()
        transport = PipeTransport(loop, sock, protocol)
        protocol.connection_made(transport)
        transport.begin()
        return transport, protocol


class PipeTransport(asyncio.Transport):
    """A socket that a loop looks after."""

    def __init__(self, loop: SimulatedLoop, socket: SimulatedSocket, protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        self._socket = socket
        self._protocol = protocol
        self._closing = False
        self._lost = False

    def begin(self) -> None:
        """Hear of what comes from now on."""
        self._socket.end.on_news = self._soon
        self._soon()

    def _soon(self) -> None:
        if not self._loop.process.dead:
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        end = self._socket.end
        while end.parts and not self._closing:
            self._protocol.data_received(end.parts.popleft())
        if end.is_deserted and not self._closing:
            self._protocol.eof_received()
            self.close()

    def write(self, data: Any) -> None:
        if not self._closing:
            try:
                self._socket.send(data)
            except OSError:
                self.close()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._socket.close()
        self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def pause_reading(self) -> None:
        """Do nothing: memory has room."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: memory has room."""

    def get_write_buffer_size(self) -> int:
        return 0
