"""What Linux offers to find processes, to end them, and to prove that they are gone.

A process is never ended by its number alone: numbers are used again.  A descriptor of a process
(pidfd) stands for one process for ever, and becomes readable when that process has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from headrace.backoff import Backoff
from headrace.errors import ConfigurationError

# Free memory between what is in use, filled before a process forks.
#
# The library that hands memory out gives such holes away first.  They lie on pages that all forks
# share, so each of them would get a copy of a page for a few bytes: 3 MB in a task's host.

#: Bytes of the largest and of the smallest pieces that holes are filled with.
_LARGEST, _SMALLEST = 1 << 16, 24
_SMALLER = 0.8
#: No more than this is taken.
_MOST = 64 << 20


def fill_holes() -> None:
    """Take all free memory below the end of the heap, and never give it back.

    It does nothing where the C library is another one than glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    # Small pieces that were given back are put together first.
    libc.malloc_trim(0)
    size, taken = _LARGEST, 0
    while size >= _SMALLEST and taken < _MOST:
        end = libc.sbrk(0)
        # The heap grows when no hole of this size is left.
        while libc.malloc(size) and libc.sbrk(0) == end and taken < _MOST:
            taken += size
        size = int(size * _SMALLER)


#: The kernel's flag of a process that is on its way out.
_EXITING = 0x4
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
#: A kernel may be built without these lists; then all processes are gone through.
_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def require_linux() -> None:
    """Refuse to go on where processes cannot be ended for certain.

    Raises
    ------
    ConfigurationError
        The system is not Linux 5.3 or newer.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise ConfigurationError(
            "a Connect worker needs Linux 5.3 or newer: no other system can prove that the"
            f" process of a plugin is gone; this is {sys.platform}",
            hint="run the worker in a container",
        )


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs: none can escape by a double fork."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """End by SIGKILL when the parent ends; at once when it has ended already."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def overwrite_mark(name: str, text: str) -> None:
    """Change a variable in the very memory that ``/proc`` shows, and that forks inherit.

    ``os.environ`` puts a new value elsewhere, where no other process can read it.  The new text
    is as long as the old one.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(name.encode())
    assert len(os.environ[name]) == len(text)
    ctypes.memmove(address, text.encode(), len(text))
    os.environ[name] = text


def children(pid: int) -> list[int]:
    """Find the children of a process, of all its threads."""
    found: list[int] = []
    if not _LISTS_CHILDREN:
        return [one for one in _pids() if _parent(one) == pid]
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            with contextlib.suppress(OSError):
                text = Path(thread.path, "children").read_bytes()
                found += map(int, text.split())
    return found


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.glob("[0-9]*"))


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Find children, their children and so on; the nearest come first.

    >>> import subprocess
    >>> child = subprocess.Popen(["sleep", "10"])
    >>> child.pid in descendants(os.getpid())
    True
    >>> child.kill(), child.wait()
    (None, -9)
    """
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [child for parent in level for child in children(parent)]
    return found


def end_descendants(statuses: dict[int, int], patience: float) -> bool:
    """End everything that descends from this process, which adopts orphans; tell whether it did.

    The kernel is the proof: it says that this process has no child any more (ECHILD), and what a
    child left behind would have become a child.

    Parameters
    ----------
    statuses
        Gets the exit status of each direct child.
    patience
        Seconds after which it gives up, as where a process waits for a disk that is gone.
    """
    deadline = time.monotonic() + patience
    backoff = Backoff(0.001, 0.05)
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap(statuses):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(backoff.next())


def reap(statuses: dict[int, int]) -> bool:
    """Take leave of the children that have ended; tell whether there are others."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        statuses[pid] = status


def marked(mark: str) -> Iterator[int]:
    """Find all processes, but this one, that began with ``mark`` among their variables."""
    return (pid for pid in _pids() if pid != os.getpid() and carries(pid, mark))


def _variables(pid: int) -> list[bytes]:
    """Return what a process began with; nothing of one that has ended, or is somebody else's."""
    with contextlib.suppress(OSError):
        if found := Path(f"/proc/{pid}/environ").read_bytes():
            return found.split(b"\0")
        # The main thread may have ended before the others.
        with os.scandir(f"/proc/{pid}/task") as threads:
            for thread in threads:
                if found := Path(thread.path, "environ").read_bytes():
                    return found.split(b"\0")
    return []


def carries(pid: int, mark: str) -> bool | None:
    """Return whether a process began with ``mark`` among its variables; None: it shows none.

    So does one that is about to end.
    """
    variables = _variables(pid)
    return mark.encode() in variables if variables else None


def ending() -> list[int]:
    """Find all processes that are on their way out: killed, and not gone yet."""
    return [pid for pid in _pids() if _is_ending(pid)]


def _is_ending(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and bool(int(fields[6]) & _EXITING)


def has_ended(handle: int, patience: float = 0.0) -> bool:
    """Return whether the process of a descriptor has ended, or does so in time.

    >>> has_ended(os.pidfd_open(os.getpid()))
    False
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(patience * 1000))


def resident_bytes(pid: int) -> int:
    """Memory that a process holds alone or shares with its forks; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE


def proportional_bytes(pid: int) -> int:
    """Memory of a process, where what several share counts for each in part (PSS).

    >>> proportional_bytes(os.getpid()) > 0
    True
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return 0
    line = next((one for one in text.splitlines() if one.startswith(b"Pss:")), b"Pss: 0 kB")
    return int(line.split()[1]) * 1024


# Processes that carry one mark: found, held by their descriptors, ended, and proven gone.


class Family:
    """All processes that began with a mark among their variables.

    Whoever is about to end shows no variables any more, and cannot be found by its mark: who wants
    to wait for the end of a family looks at it before.

    Parameters
    ----------
    mark
        ``NAME=value``, as it stands among the variables.

    Examples
    --------
    >>> import subprocess
    >>> child = subprocess.Popen(["sleep", "10"], env=os.environ | {"MARK": "mine"})
    >>> with Family("MARK=mine") as family:
    ...     family.look()
    ...     family.have_ended(0.0), family.end(3.0), child.wait()
    (False, [], -9)
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._handles: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)

    def look(self) -> None:
        """Take in all that carry the mark now."""
        for pid in marked(self._mark):
            known = self._handles.get(pid)
            if known is None or has_ended(known):
                self._take(pid)

    def _take(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            if carries(pid, self._mark) is False:  # its number went to another one meanwhile
                os.close(handle)
                return
            if pid in self._handles:
                os.close(self._handles[pid])
            self._handles[pid] = handle

    def have_ended(self, patience: float) -> bool:
        """Return whether all that were taken in have ended, or do so in so many seconds."""
        deadline = time.monotonic() + patience
        return all(
            has_ended(handle, max(0.0, deadline - time.monotonic()))
            for handle in self._handles.values()
        )

    def end(self, patience: float) -> list[int]:
        """Kill them all, and what they start meanwhile; give those that are not proven gone."""
        deadline = time.monotonic() + patience
        while True:
            self.look()
            self._kill()
            if not self.have_ended(deadline - time.monotonic()):
                return [pid for pid, handle in self._handles.items() if not has_ended(handle)]
            late = list(marked(self._mark))
            if not late or time.monotonic() > deadline:
                return late

    def _kill(self) -> None:
        for pid, handle in self._handles.items():
            # Where its number went to another process, the descriptor still means the one that was.
            if carries(pid, self._mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)


def end_marked(mark: str, patience: float = 3.0) -> tuple[int, list[int]]:
    """End all processes that carry a mark, what they start meanwhile, and who ends already.

    Returns
    -------
    ended, left
        How many are proven gone, and those that are not.
    """
    deadline = time.monotonic() + patience
    with Family(mark) as family:
        left = family.end(patience)
        ended = len(family) - len(left)
    # Whoever was killed a moment ago shows no mark any more, and is not gone yet.
    left += [pid for pid in ending() if not _ends(pid, deadline)]
    return ended, left


def _ends(pid: int, deadline: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return has_ended(handle, max(0.0, deadline - time.monotonic()))
    finally:
        os.close(handle)
