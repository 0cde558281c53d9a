"""Connections in memory: bytes that are late, lost with their connection, or there too late.

In TCP nothing is lost or doubled by itself: a connection breaks, or what was sent arrives later
than its sender waits, who connects anew and asks again while the first is still under way.  Where
machines are cut off from each other, everything between them waits, in its order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.threads import SimulatedLoop

Trouble = Literal["lost", "answer lost", "answer late", "late", "held up", "none"]
TROUBLES: tuple[Trouble, ...] = ("lost", "answer lost", "answer late", "late", "held up")

#: Longer than clients wait for an answer, shorter than they go on trying, s.
_LATE = (0.6, 3.0)
_WAY = (0.0001, 0.002)
#: When bytes are sent again that did not arrive, after there is a way, s.
_RESENT = (0.0, 0.5)
#: For how long a process that stood still may send what it had begun before, s.
_STALE = 0.1


@dataclass(frozen=True)
class Cut:
    """What keeps bytes from the processes of one side to those of the other for a while."""

    one: Callable[[Process], bool]
    other: Callable[[Process], bool]
    until: float
    #: Whether bytes from the other side arrive all the same.
    one_way: bool

    def bars(self, sender: Process, receiver: Process) -> bool:
        """Tell whether bytes wait."""
        if self.one(sender) and self.other(receiver):
            return True
        return not self.one_way and self.other(sender) and self.one(receiver)


class Network:
    """All connections of a world.

    Parameters
    ----------
    world
        Where they are.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        #: Writes of a thousand, by clients, that meet with trouble, and with which.
        self.trouble = 0
        self.troubles: Sequence[Trouble] = TROUBLES
        #: Only those of one kind of process; None: of all.
        self.whose: str | None = None
        #: Whether what arrives now was held up on its way.
        self.is_late = False
        self.cuts: list[Cut] = []
        #: Whether bytes wait that arrive before their connection is taken up; else they are lost,
        #: and their sender asks again.
        self.is_patient = False
        self._ports: dict[int, tuple[SimulatedLoop | DirectLoop, Callable[[], Any]]] = {}
        world.connect = self.connect

    def listen(self, port: int, loop: SimulatedLoop | DirectLoop, make: Callable[[], Any]) -> None:
        """Take connections to a port; ``make`` makes the protocol of each."""
        self._ports[port] = loop, make
        loop.process.on_death.append(lambda: self.close(port, loop))

    def close(self, port: int, loop: SimulatedLoop | DirectLoop) -> None:
        """Take no more connections to a port."""
        if port in self._ports and self._ports[port][0] is loop:
            del self._ports[port]

    def heals(self, sender: Process, receiver: Process) -> float:
        """Tell until when bytes on their way from one process to another wait; 0: they arrive."""
        self.cuts = [cut for cut in self.cuts if cut.until > self.world.now]
        return max((cut.until for cut in self.cuts if cut.bars(sender, receiver)), default=0.0)

    async def connect(
        self, loop: SimulatedLoop | DirectLoop, host: str, port: int, protocol: Any
    ) -> Transport:
        """Connect a process to a port.

        Raises
        ------
        ConnectionRefusedError
            Nobody listens there.
        """
        del host
        while True:
            there = self._ports.get(port)
            if there is None:
                raise ConnectionRefusedError(111, "refused")
            ways = (loop.process, there[0].process), (there[0].process, loop.process)
            heals = max(self.heals(*way) for way in ways)
            if not heals:
                break
            await asyncio.sleep(heals - self.world.now + self.world.chance.uniform(*_RESENT))
        other_loop, make = there
        near = Transport(self, loop, protocol, is_client=True)
        far = Transport(self, other_loop, None, is_client=False)
        near.other, far.other = far, near

        def accept() -> None:
            far.protocol = make()
            far.protocol.connection_made(far)
            far.resume_reading()

        self.world.after(
            self.world.chance.uniform(*_WAY), lambda: other_loop.call_soon_threadsafe(accept)
        )
        for end in (near, far):
            end.loop.process.on_death.append(end.break_off)
        return near

    def choose(self, process: Process) -> Trouble:
        """Choose what happens to what a client writes."""
        chance = self.world.chance
        if self.whose is not None and process.kind != self.whose:
            return "none"
        if chance.randrange(1000) >= self.trouble:
            return "none"
        return chance.choice(self.troubles)


class Transport(asyncio.Transport):
    """One end of a connection."""

    other: Transport

    def __init__(
        self, network: Network, loop: SimulatedLoop | DirectLoop, protocol: Any, *, is_client: bool
    ) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self._network = network
        self._world = network.world
        self._is_client = is_client
        self._closed = False
        #: Whether the other end has heard, or will, that this one is gone.
        self._said = False
        #: When what was written last arrives: nothing overtakes it.
        self._arrives = 0.0
        #: What is on its way, in order: since when, and what it does when it arrives.
        self._under_way: deque[tuple[float, Callable[[bool], None]]] = deque()
        #: Whether the next answer breaks the connection instead of arriving.
        self._swallows = False
        self._late = 0.0
        self._paused = False
        self._waiting: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return ("127.0.0.1", 40_000)
        return _Socket() if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: memory has room."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self._closed or self.loop.process.dead:
            return
        data = b"".join(list_of_data)
        network, chance = self._network, self._world.chance
        if self._swallows:
            self.other.break_off()
            self.break_off()
            return
        late, self._late = self._late, 0.0
        if self._is_client and (trouble := network.choose(self.loop.process)) != "none":
            self._world.tell(f"{self.loop.process.name}: {trouble}")
            if trouble == "lost":
                self.break_off()
                self.other.break_off()
                return
            if trouble in ("late", "held up"):
                late = chance.uniform(*_LATE)
                if trouble == "held up":
                    # Its sender asks again by another connection, and may be there first.
                    self._world.after(chance.uniform(0.0, 0.5), self.break_off)
            elif trouble == "answer late":
                self.other._late = chance.uniform(*_LATE)
            else:
                self.other._swallows = True
        at = max(self._world.now + late + chance.uniform(*_WAY), self._arrives + 1e-7)
        self._arrives = at
        # A process that stood still has decided before, and sends only now.
        is_late = at - self._world.now > 0.1 or self._world.now - self.loop.process.woke < _STALE
        self._send(at, lambda held: self._deliver(data, is_late or held))

    def _send(self, at: float, arrive: Callable[[bool], None]) -> None:
        self._under_way.append((self._world.now, arrive))
        self._world.at(at, self._arrive)

    def _arrive(self) -> None:
        """Have the next of what is on its way arrive, or wait until there is a way again."""
        world = self._world
        if heals := self._network.heals(self.loop.process, self.other.loop.process):
            world.at(heals + world.chance.uniform(*_RESENT), self._arrive)
            return
        since, arrive = self._under_way.popleft()
        arrive(world.now - since > 0.1)

    def _deliver(self, data: bytes, is_late: bool) -> None:
        """Hand bytes to the other end's process; what has left a dead one arrives, too."""
        other = self.other
        if not other._closed and not other.loop.process.dead:
            self._network.is_late = is_late
            other.loop.call_soon_threadsafe(other._receive, data)
            self._network.is_late = False

    def _receive(self, data: bytes) -> None:
        is_early = self.protocol is None
        if self._closed or (is_early and not self._network.is_patient):
            return
        if self._paused or is_early:
            self._waiting.append(data)
        else:
            self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self.loop.call_soon(self._receive, data)

    def is_reading(self) -> bool:
        return not self._paused

    def break_off(self) -> None:
        """Lose the connection: this end hears of it soon, the other when all has arrived."""
        self._say()
        self._lose(ConnectionResetError(104, "reset"))

    def close(self) -> None:
        self._say()
        self._lose(None)

    abort = close

    def is_closing(self) -> bool:
        return self._closed

    def _lose(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        if not self.loop.process.dead and self.protocol is not None:
            self.loop.call_soon_threadsafe(self.protocol.connection_lost, error)

    def _say(self) -> None:
        if self._said:
            return
        self._said = True
        at = max(self._world.now + self._world.chance.uniform(*_WAY), self._arrives + 1e-7)
        self._send(at, lambda _: self.other._hear())

    def _hear(self) -> None:
        self._said = True
        self._lose(None)


class _Socket:
    """Takes what is set on a socket."""

    def setsockopt(self, *_: int) -> None:
        """Do nothing."""


class DirectLoop:
    """Calls at once: stands in for the loop of somebody who is not of this product.

    Parameters
    ----------
    world, name
        Where it is, and what it is called in the story.
    """

    def __init__(self, world: World, name: str) -> None:
        self.process = Process(world, name, "apart", 0)

    def call_soon_threadsafe(self, run: Callable[..., object], *given: object) -> None:
        """Make a call."""
        run(*given)

    call_soon = call_soon_threadsafe

    def restart(self) -> None:
        """Break all connections, and take none for the time being."""
        broken, self.process.on_death = self.process.on_death, []
        for each in broken:
            each()
