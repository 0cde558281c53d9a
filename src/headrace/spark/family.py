"""The reaper, which ends a driver's Java and Python workers however the driver ends.

Java ends after its driver, but only when its present work is done, and workers end when they next
hear from Java.  So the reaper, a process of its own, waits for the end of the driver and kills what
is left some seconds later.  It finds these processes by a mark in their environment, or in Java's
command line.  It imports nothing of ours, so it starts in milliseconds and takes 8 MB.

Only Linux can reliably notify a process of another one's end; elsewhere there is no reaper.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

#: The environment variable that marks all processes of a driver.
MARK = "HEADRACE_FAMILY"

#: Seconds that marked processes have to end by themselves, and those until the reaper gives up.
_GRACE, _PATIENCE = 3.0, 60.0
_LOOK = 0.1

_lock = threading.Lock()
#: The mark and the reaper of this process, by its id: a fork is another driver.
_marks: dict[int, str] = {}
_reapers: dict[int, subprocess.Popen[bytes]] = {}


def family_mark() -> str:
    """Return the mark of the processes that this process starts for its jobs."""
    return _marks.setdefault(os.getpid(), uuid.uuid4().hex)


def start_reaper() -> None:
    """Start a reaper, which ends marked processes after this one, unless one is running."""
    if not hasattr(os, "pidfd_open"):
        return
    pid = os.getpid()
    with _lock:
        reaper = _reapers.get(pid)
        if reaper is None or reaper.poll() is not None:
            _reapers[pid] = subprocess.Popen(
                [sys.executable, "-IS", __file__, str(pid), family_mark()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A signal to the driver's group, such as Ctrl-C in a terminal, must not end it.
                start_new_session=True,
            )


def _reap(driver: int, mark: bytes) -> None:
    _await_end(driver)
    ended = time.monotonic()
    while (pids := _marked(mark)) and (lasted := time.monotonic() - ended) < _PATIENCE:
        if lasted > _GRACE:
            for pid in pids:
                _kill(pid, mark)
        time.sleep(_LOOK)


def _await_end(driver: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(driver)
        if os.getppid() == driver:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll()


def _marked(mark: bytes) -> list[int]:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())  # noqa: PTH208
    return [pid for pid in pids if pid != os.getpid() and _carries(pid, mark)]


def _carries(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        folder = Path("/proc", str(pid))
        return mark in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
    return False


def _kill(pid: int, mark: bytes) -> None:
    """Kill a process, unless another one has its number by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _carries(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


if __name__ == "__main__":
    _reap(int(sys.argv[1]), sys.argv[2].encode())
