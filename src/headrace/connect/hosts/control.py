"""A host's end of the channel to its worker: one message of JSON per line, both ways.

======================  ==========================================================
the worker says         ``stop``, ``pause``, ``resume``, ``where``, ``level``, ``task_configs``; first
                        of all what is to run
the host says           ``born``, ``started``, ``failed``, ``stopped``, ``stop_failed``,
                        ``reconfigure``, ``outside``, ``unhealthy``, ``healthy``, ``waits``,
                        ``topic``, ``counted``, ``answer``, ``task_configs``
======================  ==========================================================
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from headrace.watched import end_process, watched_thread

__all__ = ["Control"]


class Control:
    r"""A host's end.

    Parameters
    ----------
    connected
        The socket to the worker.

    Examples
    --------
    >>> worker, host = socket.socketpair()
    >>> with worker, host:
    ...     Control(host).tell("stopped")
    ...     worker.recv(100)
    b'{"say":"stopped"}\n'
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = connected.makefile("rb")
        self._sending = threading.Lock()

    def tell(self, word: str, **more: Any) -> None:
        """Tell the worker something; one that is gone hears nothing."""
        line = orjson.dumps({"say": word, **more}) + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def ask(self) -> dict[str, Any]:
        """Wait for the next message of the worker; end where there is no worker any more."""
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            os._exit(1)
        message: dict[str, Any] = orjson.loads(line)
        return message

    def follow(self, hear: Mapping[str, Callable[..., object]]) -> None:
        """Go on hearing in a thread of its own; each word has its answer, which must not wait."""

        def listen() -> None:
            while True:
                message = self.ask()
                hear[message.pop("do")](**message)

        watched_thread(listen, name="headrace-control", on_failure=end_process).start()
