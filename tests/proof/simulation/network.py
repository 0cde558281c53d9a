"""Connections in memory: requests and answers that are late, lost, or handled twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.protocol.frames import Command, FrameBuffer, encode
from tests.proof.simulation.world import Process, World

Handle = Callable[[Command, Callable[[Command], None]], None]
"""Takes a request, and what sends the answer."""

Trouble = Literal["lost", "answer lost", "answer late", "held up", "none"]
_TROUBLES: tuple[Trouble, ...] = ("lost", "answer lost", "answer late", "held up")

#: Longer than clients wait for an answer, shorter than they go on trying.
_LATE = (0.6, 3.0)


@dataclass
class Network:
    """All connections to the brokers of a cluster.

    In TCP nothing is lost or doubled by itself: a connection breaks, or an answer takes longer
    than its client waits, and the client asks again while the first request is still under way.
    """

    world: World
    #: What handles requests, by the broker's port.
    handles: Mapping[int, Handle]
    #: Requests of a thousand that meet with trouble.
    trouble: int = 0
    #: Ports of brokers that do not run.
    down: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._open: dict[int, list[Transport]] = defaultdict(list)

    def connect(self, process: Process, host: str, port: int, protocol: Any) -> Transport:
        """Connect a process.

        Raises
        ------
        ConnectionRefusedError
            The broker is down.
        """
        if port in self.down or process.dead:
            raise ConnectionRefusedError(111, "refused")
        transport = Transport(self, process, protocol, port)
        self._open[port].append(transport)
        process.on_death.append(transport.abort)
        return transport

    def restart(self, port: int, seconds: float) -> None:
        """Break all connections to a broker, and let nobody in for a while."""
        self.down.add(port)
        for transport in self._open.pop(port, []):
            transport.break_off()
        self.world.at(self.world.now + seconds, lambda: self.down.discard(port))

    def choose(self) -> Trouble:
        """Choose what happens to a request."""
        chance = self.world.chance
        if chance.randrange(1000) >= self.trouble:
            return "none"
        return chance.choice(_TROUBLES)


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, protocol: Any, port: int) -> None:
        super().__init__()
        self._network = network
        self._world = network.world
        self._process = process
        self._protocol = protocol
        self._port = port
        self._frames = FrameBuffer()
        self._closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: memory has room."""

    def writelines(self, list_of_data: Any) -> None:
        if self._closed:
            return
        for command in self._frames.feed(b"".join(list_of_data)):
            self._send(command)

    def _send(self, command: Command) -> None:
        trouble = self._network.choose()
        chance = self._world.chance
        delay = chance.uniform(0.0001, 0.002)
        if trouble != "none":
            self._world.tell(f"{self._process.name}: request {command.code} {trouble}")
        if trouble == "lost":
            self._later(delay, self.break_off)
            return
        if trouble == "held up":
            delay = chance.uniform(*_LATE)
        self._world.at(self._world.now + delay, lambda: self._arrived(command, trouble))

    def _arrived(self, command: Command, trouble: Trouble) -> None:
        # What has reached the broker is handled, also when its sender is gone by now.
        if self._port in self._network.down:
            return
        chance = self._world.chance

        def answer(reply: Command) -> None:
            if trouble == "answer lost":
                self.break_off()
                return
            late = chance.uniform(*_LATE) if trouble == "answer late" else 0.0
            data = b"".join(encode(reply))
            self._later(late + chance.uniform(0.0001, 0.002), lambda: self._receive(data))

        self._network.handles[self._port](command, answer)

    def _receive(self, data: bytes) -> None:
        if not self._closed:
            self._protocol.data_received(data)

    def _later(self, delay: float, run: Callable[[], None]) -> None:
        self._world.at(self._world.now + delay, run, self._process)

    def break_off(self) -> None:
        """Lose the connection; the process hears of it when it runs next."""
        if not self._closed:
            self._closed = True
            self._later(0.0, lambda: self._protocol.connection_lost(ConnectionResetError(104)))

    def abort(self) -> None:
        self._closed = True

    close = abort

    def is_closing(self) -> bool:
        return self._closed
