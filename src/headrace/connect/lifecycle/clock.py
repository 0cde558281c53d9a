"""The clock that leases are measured by."""

from __future__ import annotations

import time

__all__ = ["boot_time"]


def boot_time() -> float:
    """Give the seconds since the machine was started.

    All processes of a machine read the same, and the time for which it slept counts, as it does
    for the other machines.

    Examples
    --------
    >>> before = boot_time()
    >>> boot_time() >= before
    True
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
