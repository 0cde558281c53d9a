"""A gate between connectors and what they reach: it lets through, refuses, or swallows."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Literal, Self

__all__ = ["Gate", "Way"]

Way = Literal["open", "refuses", "silent", "slow"]
#: Bytes per turn, and the pause behind each, s, of a way that is slow.
_PIECE, _SLOW = 16384, 0.2


class Gate:
    """A port of 127.0.0.1 that leads to another one.

    ``refuses`` ends all connections and takes no new ones, as a server that is down; ``silent``
    takes and keeps them, and passes nothing on, as a network that loses everything; what was sent
    meanwhile arrives when it is open again.

    Parameters
    ----------
    port
        Where it leads; it may be set later.
    """

    def __init__(self, port: int = 0) -> None:
        self.target = port
        self._way: Way = "open"
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = self._accept_in_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.set("refuses")

    def set(self, way: Way) -> None:
        """Change what happens to connections."""
        before, self._way = self._way, way
        if way == "silent":
            self._may_pass.clear()
        else:
            self._may_pass.set()
        if way == "refuses" and before != "refuses":
            # To close it does not wake who waits for connections.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._accepting.join()
            self.cut()
        elif before == "refuses" and way != "refuses":
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accepting = self._accept_in_thread()

    def cut(self) -> None:
        """End all connections; new ones may come."""
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept_in_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._accept, args=[self._listener], daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=[client], daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target), 10) as server,
        ):
            with self._lock:
                self._ends |= {client, server}
            back = threading.Thread(target=self._pass, args=[server, client], daemon=True)
            back.start()
            self._pass(client, server)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        source.settimeout(None)
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                self._may_pass.wait()
                if self._way == "slow":
                    time.sleep(_SLOW)
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends -= {source, target}
