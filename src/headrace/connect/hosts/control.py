"""A host's end of the channel to its worker: one message of JSON per line, both ways.

======================  ==========================================================
the worker says         ``stop``, ``pause``, ``resume``, ``where``, ``level``, ``task_configs``; first
                        of all what is to run
the host says           ``born``, ``open``, ``started``, ``failed``, ``stopped``, ``stop_failed``,
                        ``reconfigure``, ``outside``, ``unhealthy``, ``healthy``, ``waits``,
                        ``topic``, ``counted``, ``answer``, ``task_configs``, ``left``
======================  ==========================================================

A host that several connectors share says ``open``, and then takes the other ends of their channels
as they come through this one, a descriptor with each byte; each is told what is to run, and says
``left`` last of all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from headrace.watched import OnFailure, end_process, watched_thread


class HostControl:
    r"""A host's end.

    Parameters
    ----------
    connected
        The socket to the worker.
    alone
        Whether the process ends with it.

    Examples
    --------
    >>> worker, host = socket.socketpair()
    >>> with worker, host:
    ...     HostControl(host).tell("stopped")
    ...     worker.recv(100)
    b'{"say":"stopped"}\n'
    """

    def __init__(self, connected: socket.socket, *, alone: bool = True) -> None:
        self.alone = alone
        self._socket = connected
        self._lines = connected.makefile("rb")
        self._sending = threading.Lock()

    def tell(self, word: str, **more: Any) -> None:
        """Tell the worker something; one that is gone hears nothing."""
        line = orjson.dumps({"say": word, **more}) + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def ask(self) -> dict[str, Any]:
        """Wait for the next message of the worker; end where there is no worker any more.

        Raises
        ------
        EOFError
            Nothing more comes, and others share the process.
        """
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            if not self.alone:
                raise EOFError
            os._exit(1)
        message: dict[str, Any] = orjson.loads(line)
        return message

    def follow(self, hear: Mapping[str, Callable[..., object]], on_failure: OnFailure) -> None:
        """Go on hearing in a thread of its own; each word has its answer, which must not wait.

        The end of what is heard is a ``stop``.
        """

        def listen() -> None:
            with contextlib.suppress(EOFError):
                while True:
                    message = self.ask()
                    hear[message.pop("do")](**message)
            self._lines.close()
            hear["stop"]()

        watched_thread(
            listen,
            name="headrace-control",
            on_failure=end_process if self.alone else on_failure,
        ).start()

    def close(self) -> None:
        """Say and hear nothing more."""
        with contextlib.suppress(OSError):
            # Whoever hears in another thread is woken by that, and not by the end of the descriptor.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
