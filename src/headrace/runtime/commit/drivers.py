"""Names of drivers: who opened an epoch, and whether that process is gone for certain."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["DriverName"]

_FORM = re.compile(
    r"(?P<host>[^:/@]*):(?P<pid>\d+)@(?P<boot>[^/]*)/(?P<space>[^/]*)/(?P<start>\d*)/(?P<mark>\w+)"
)
_PROC = Path("/proc")
#: Places of a process's threads and of its start in its line of numbers, behind the name.
_THREADS, _START = 17, 19


#: Drivers of this process that have ended.
_ended: set[DriverName] = set()


@dataclass(frozen=True, slots=True)
class DriverName:
    """Names one driver in one process, and nothing else ever.

    Examples
    --------
    >>> name = DriverName.here()
    >>> DriverName.parse(str(name)) == name
    True
    >>> name.is_dead()
    False
    """

    host: str
    pid: int
    #: Changes when the machine starts anew; empty where the system does not tell.
    boot: str
    #: The spaces that process id and start time are of: containers have their own.
    space: str
    #: When the process started, as the system counts: process ids are used again.
    start: str
    #: Tells drivers in one process apart.
    mark: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}@{self.boot}/{self.space}/{self.start}/{self.mark}"

    @classmethod
    def here(cls) -> Self:
        """Make a name for a driver in this process."""
        pid = os.getpid()
        try:
            start = _start_of(pid) or ""
        except OSError:
            start = ""
        mark = uuid.uuid4().hex[:8]
        return cls(_host(), pid, boot=_boot(), space=_space(), start=start, mark=mark)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a name back; None where it is none."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        host, pid, *others = found.groups()
        return cls(host, int(pid), *others)

    def end(self) -> None:
        """Note that this driver of this process tries nothing more, though its process lives on.

        >>> name = DriverName.here()
        >>> name.end()
        >>> DriverName.parse(str(name)).is_dead(), DriverName.here().is_dead()
        (True, False)
        """
        _ended.add(self)

    def is_dead(self) -> bool:
        """Tell whether it is gone, by itself or with its process; True only where that is proven.

        Only the machine on which it ran can prove it, in the same container.
        """
        if self in _ended:
            return True
        if not self.boot or not self.space or not self.start:
            return False
        # Copies of a virtual machine have one boot in common, so its name is looked at too.
        if (self.host, self.boot, self.space) != (_host(), _boot(), _space()):
            return False
        try:
            return _start_of(self.pid) != self.start
        except OSError:
            return False


def _host() -> str:
    return re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _space() -> str:
    """Name the spaces of process ids and of clocks; empty where ``/proc`` shows another space."""
    try:
        if (_PROC / "self").readlink().name != str(os.getpid()):
            return ""
        spaces = [str((_PROC / "self/ns/pid").stat().st_ino)]
        with contextlib.suppress(FileNotFoundError):
            # A start is told by the clock of the one who asks.
            spaces.append(str((_PROC / "self/ns/time").stat().st_ino))
    except OSError:
        return ""
    return "-".join(spaces)


def _start_of(pid: int) -> str | None:
    """Give when a process started; None where there is none, or only what is left of it.

    Raises
    ------
    OSError
        Nobody can tell: what another user runs may be hidden, descriptors may be used up.
    """
    if not _exists(pid):
        return None
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if _exists(pid):
            raise
        return None
    state, *numbers = line.rpartition(")")[2].split()
    # Of a process whose first thread has ended the others may go on.
    is_left = state in "ZX" and int(numbers[_THREADS - 1]) <= 1
    return None if is_left else numbers[_START - 1]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
