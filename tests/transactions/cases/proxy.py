"""A way to the broker that loses requests and answers, holds them back, doubles them, or is cut.

A job is given the address of this proxy.  Routes that pass through it are rewritten, so that
clients never learn the broker's own address.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from headrace.protocol.frames import Command, FrameBuffer

__all__ = ["Proxy", "Trick", "running_proxy"]

Trick = Literal["drop request", "drop answer", "delay request", "double request"]

_LENGTH = struct.Struct(">I")
_READ = 1 << 18


@dataclass
class _Plan:
    """What happens to one request."""

    matches: Callable[[Command], bool]
    #: Number of the matching request, from 1, and how many from there on; None: all.
    first: int
    count: int | None
    trick: Trick
    #: Set when it has happened.
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Stands between the clients and one broker with its name server.

    Parameters
    ----------
    target
        Address of the broker, or of the name server.
    behind
        Proxies of the brokers that a name server tells of.
    """

    def __init__(self, target: str, behind: Sequence[Proxy] = ()) -> None:
        self._target = target
        host, _, port = target.rpartition(":")
        self._place = (host, int(port))
        self._listener = _same_width(len(port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: What clients are given: the way in, where that is another proxy.
        self.entrance = self.address
        self._rewritten = {target: self.address} | {
            proxy._target: proxy.address for proxy in behind
        }
        self._plan: _Plan | None = None
        self._flows = threading.Event()
        self._flows.set()
        #: Whom a cut is about, by the ports of a connection; and who of them has been asked about.
        self._is_cut: Callable[[int, int], bool] = _anybody
        self._cut_ports: dict[int, bool] = {}
        #: The way to the name server, where that is another proxy.
        self.front: Proxy | None = None
        self._held: list[bytes] = []
        #: Matching requests that clients sent.
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def plan(
        self,
        matches: Callable[[Command], bool],
        number: int,
        trick: Trick,
        count: int | None = 1,
    ) -> _Plan:
        """Choose what happens to a request, or to some from it on; the plan's event is set then."""
        self._plan = _Plan(matches, number, count, trick)
        self.seen.clear()
        return self._plan

    def refuse(self, matches: Callable[[Command], bool], count: int | None) -> threading.Event:
        """Drop the next requests of a kind, or all; the event is set with the first of them."""
        self._plan = _Plan(matches, 1, count, "drop request")
        self.seen.clear()
        return self._plan.done

    def relent(self) -> None:
        """Let everything through."""
        self._plan = None

    def cut(self, whose: Callable[[int, int], bool] | None = None) -> None:
        """Let nothing through, and end no connection; nobody is told.

        Parameters
        ----------
        whose
            Tells by the port of a client, and the one here, whether it is cut off; all are by default.
        """
        self._is_cut, self._cut_ports = whose or _anybody, {}
        self._flows.clear()
        if self.front is not None:
            self.front.cut(whose)

    def mend(self) -> None:
        """Let through what comes, and what has come meanwhile."""
        self._flows.set()
        if self.front is not None:
            self.front.mend()

    def deliver_late(self) -> list[Command]:
        """Send what was held back to the broker, over a connection of its own; give the answers."""
        answers: list[Command] = []
        for frame in self._held:
            with socket.create_connection(self._place, timeout=10) as broker:
                broker.sendall(frame)
                buffer = FrameBuffer()
                while not (found := list(buffer.feed(broker.recv(_READ)))):
                    pass
                answers += found
        return answers

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError):
                broker = socket.create_connection(self._place, timeout=10)
                broker.settimeout(None)
                self._sockets += (client, broker)
                self._start(self._requests, client, broker)
                self._start(self._answers, broker, client)
                continue
            client.close()

    def close(self) -> None:
        """End every connection."""
        self._flows.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, run: Callable[..., None], *sockets: socket.socket) -> None:
        thread = threading.Thread(target=run, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            port = client.getpeername()[1]
            for frame in _frames(client):
                self._await_flow(port)
                trick = self._trick(frame)
                if trick == "drop request":
                    _end(client, broker)
                elif trick == "delay request":
                    self._held.append(frame)
                    _end(client, broker)
                elif trick == "drop answer":
                    self._send_and_forget(frame)
                    _end(client, broker)
                elif trick == "double request":
                    self._send_and_forget(frame)
                    broker.sendall(frame)
                else:
                    broker.sendall(frame)
        _end(client, broker)

    def _await_flow(self, port: int) -> None:
        if self._flows.is_set():
            return
        if port not in self._cut_ports:
            self._cut_ports[port] = self._is_cut(port, self._listener.getsockname()[1])
        if self._cut_ports[port]:
            self._flows.wait()

    def _send_and_forget(self, frame: bytes) -> None:
        """Let the broker do what is asked, and let nobody hear of it."""
        with socket.create_connection(self._place, timeout=10) as other:
            other.sendall(frame)
            buffer = FrameBuffer()
            while not list(buffer.feed(other.recv(_READ))):
                pass

    def _trick(self, frame: bytes) -> Trick | None:
        plan = self._plan
        if plan is None:
            return None
        (command,) = FrameBuffer().feed(frame)
        if not plan.matches(command):
            return None
        with self._lock:
            self.seen["requests"] += 1
            place = self.seen["requests"] - plan.first
            if place < 0 or (plan.count is not None and place >= plan.count):
                return None
        plan.done.set()
        return plan.trick

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            port = client.getpeername()[1]
            for frame in _frames(broker):
                self._await_flow(port)
                client.sendall(_rewritten(frame, self._rewritten))
        _end(client, broker)


def _anybody(_theirs: int, _ours: int) -> bool:
    return True


def _rewritten(frame: bytes, addresses: Mapping[str, str]) -> bytes:
    for theirs, ours in addresses.items():
        frame = frame.replace(theirs.encode(), ours.encode())
    return frame


@contextmanager
def running_proxy(target: str, broker: str = "") -> Iterator[Proxy]:
    """A proxy for the time of a test.

    Parameters
    ----------
    target
        Address that clients would be given.
    broker
        Address of the broker, where ``target`` is a name server of its own.
    """
    with ExitStack() as opened:
        proxy = opened.enter_context(_serving(Proxy(broker or target)))
        if broker:
            proxy.front = opened.enter_context(_serving(Proxy(target, [proxy])))
            proxy.entrance = proxy.front.address
        yield proxy


@contextmanager
def _serving(proxy: Proxy) -> Iterator[Proxy]:
    server = threading.Thread(target=proxy.serve, daemon=True)
    server.start()
    try:
        yield proxy
    finally:
        proxy.close()
        server.join(5)


def _same_width(digits: int) -> socket.socket:
    """Listen on a port with as many digits: an address in an answer is replaced in place."""
    for _ in range(100):
        listener = socket.create_server(("127.0.0.1", 0))
        if len(str(listener.getsockname()[1])) == digits:
            return listener
        listener.close()
    raise AssertionError(f"no free port with {digits} digits")


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Cut a stream into frames, each with its length in front."""
    data = bytearray()
    while True:
        while len(data) >= _LENGTH.size:
            size = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            if len(data) < size:
                break
            yield bytes(data[:size])
            del data[:size]
        more = source.recv(_READ)
        if not more:
            return
        data += more


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
