"""What a driver and its supervisor tell each other: words, over a socket that ends with either.

The end of the socket is the end of the other side, however it came: the supervisor needs no look
at processes to know that its driver died, and a driver whose supervisor is gone stops in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from enum import StrEnum

__all__ = ["Channel", "Word"]

#: A driver that does not stop in order after its supervisor died ends all the same, s.
_STOP_PATIENCE = 30.0


class Word(StrEnum):
    """One message."""

    #: Driver: the broker of the data folder is needed.  Supervisor: it runs.
    BROKER = "broker"
    #: A standby is warm.
    READY = "ready"
    #: A process has become the job's driver.
    DRIVING = "driving"
    #: It has made its first commit.
    COMMITTED = "committed"
    #: A driver ends because another one, elsewhere, has taken the job over.
    FENCED = "fenced"
    #: Supervisor: it runs no driver, so the lease must tell when there is none.
    ALONE = "alone"
    #: Supervisor: take over now, the driver is dead.
    GO = "go"


class Channel:
    """A driver's end.

    Parameters
    ----------
    number
        The descriptor that the supervisor left open.
    """

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        # Whatever this process starts must not keep the socket open after its death.
        self._socket.set_inheritable(False)
        #: Set when the job is to be taken over.
        self.go = threading.Event()
        #: Set while the supervisor runs no driver that it could see dying.
        self.alone = threading.Event()
        self._broker = threading.Event()
        self._events = {Word.GO: self.go, Word.ALONE: self.alone, Word.BROKER: self._broker}
        threading.Thread(target=self._listen, name="headrace-channel", daemon=True).start()

    def tell(self, word: Word) -> None:
        """Tell the supervisor something; one that is gone hears nothing."""
        with contextlib.suppress(OSError):
            self._socket.sendall(f"{word}\n".encode())

    def await_broker(self) -> None:
        """Let the supervisor start the broker of the data folder, unless one runs."""
        self.tell(Word.BROKER)
        self._broker.wait()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile() as lines:
            for line in lines:
                self._events[Word(line.strip())].set()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_STOP_PATIENCE)
        os._exit(1)
