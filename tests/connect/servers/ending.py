"""Servers of tests end with the tests, also when those are killed."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def dies_with_parent() -> None:
    """Ask the kernel to end this process when the thread that started it ends."""
    # SIGINT ends PostgreSQL and its sessions at once, and Java too.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
