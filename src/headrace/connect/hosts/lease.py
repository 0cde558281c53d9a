"""Until when hosts may live: one number in memory that a worker shares with all its keepers."""

from __future__ import annotations

import math
import mmap
import os
import struct
from typing import Self

from headrace.connect.lifecycle import boot_time

__all__ = ["SharedLease"]

_NUMBER = struct.Struct("d")


class SharedLease:
    """A time after which keepers end their hosts, whatever has become of their worker.

    The worker moves it on while it may run what it runs.  One that was stopped, or that hangs,
    does not, and so what it has started ends all the same.

    Parameters
    ----------
    descriptor
        Of the memory; it is this object's own from then on.

    Examples
    --------
    >>> lease = SharedLease.make()
    >>> lease.left()
    inf
    >>> lease.extend(boot_time() + 60)
    >>> 59 < lease.left() <= 60
    True
    >>> lease.close()
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _NUMBER.size)

    @classmethod
    def make(cls) -> Self:
        """Make one that never ends."""
        descriptor = os.memfd_create("headrace-lease")
        os.ftruncate(descriptor, _NUMBER.size)
        lease = cls(descriptor)
        lease.extend(math.inf)
        return lease

    def extend(self, until: float) -> None:
        """Let hosts live until then, by the clock of `boot_time`."""
        _NUMBER.pack_into(self._memory, 0, until)

    def left(self) -> float:
        """Give the seconds that are left; none where there are none."""
        until: float = _NUMBER.unpack_from(self._memory, 0)[0]
        return max(0.0, until - boot_time())

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.descriptor)
