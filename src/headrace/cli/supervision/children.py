"""The processes of a supervisor: drivers, and what they leave behind when they are killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.cli.supervision.channel import Word
from headrace.cli.supervision.silence import Silence

__all__ = ["Child", "adopting_orphans", "children_of", "is_stopped", "kill_left_behind"]

_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0
#: What a process may take to show where its threads are, s.
_LAST_WORDS = 0.5


class Child:
    """A driver, or one that stands by, in a process group of its own.

    Ctrl-C in a terminal goes to the group of the supervisor, which passes it on.

    Parameters
    ----------
    command
        What runs the job; it is given ``--channel`` besides.
    environment
        Variables that it has besides those of this process.
    again
        Whether it goes on with what another one began.
    limit
        Seconds of silence after which it is taken to hang.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        again: bool = False,
        limit: float = 60.0,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*command, *(["--again"] if again else []), "--channel", str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                process_group=0,
                env=os.environ | environment,
            )
        self.again = again
        #: Readable when there is something to hear.
        self.socket = ours
        #: What it has said.
        self.said: set[Word] = set()
        #: What it was told.
        self.told: set[Word] = set()
        self.silence = Silence(limit)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def hear(self) -> list[Word] | None:
        """Give what it said since; None: it has ended."""
        try:
            received = self.socket.recv(4096)
        except OSError:
            received = b""
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        words = [Word(line.decode()) for line in lines]
        self.said.update(words)
        self.silence.heard(time.monotonic())
        return words

    def tell(self, word: Word) -> None:
        """Tell it something; one that is gone hears nothing."""
        self.told.add(word)
        with contextlib.suppress(OSError):
            self.socket.sendall(f"{word}\n".encode())

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def shoot(self) -> None:
        """Kill it, after it has shown where its threads are, if it still can."""
        self.silence.heard(time.monotonic())
        self.signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; give the return code."""
        self.socket.close()
        return self._process.wait()


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Be the parent of all descendants that lose theirs, where the system can do that."""
    adopt = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    adopt(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        adopt(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still (SIGSTOP); never where there is no ``/proc``.

    >>> is_stopped(os.getpid())
    False
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def kill_left_behind(group: int, known: Collection[int]) -> int:
    """Kill what a driver that died has left: Java, Python workers; give their number.

    They would end by themselves, some seconds later, and hold the local state until then.

    Parameters
    ----------
    group
        The driver's process group.
    known
        Processes that are not its.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    killed: set[int] = set()
    deadline = time.monotonic() + _PATIENCE
    # Those that are killed leave orphans in their turn.
    while orphans := children_of(os.getpid()) - set(known):
        if time.monotonic() > deadline:
            break
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)
        killed |= orphans
    return len(killed)


def children_of(parent: int) -> set[int]:
    """Find the children of a process; none where there is no ``/proc``.

    >>> children_of(os.getpid()) >= set()
    True
    """
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.add(int(stat.parent.name))
    return found
