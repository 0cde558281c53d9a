"""A bound on the files that logs hold open for writing, over all queues."""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["OpenFiles", "Owner"]


class Owner(Protocol):
    """Who holds files open and can do without."""

    def rest(self) -> None:
        """Sync what is written and close the files; must not raise."""


class OpenFiles:
    """Knows who has files open, and asks the one that was idle longest to close them.

    Files are not closed right after a write: an error of the disk is told to a descriptor that
    was open when the bytes were written, so they stay open until they are synced.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._owners: dict[Owner, None] = {}

    def use(self, owner: Owner) -> None:
        """Take note of a write. Caller: holds no lock of its own."""
        with self._lock:
            self._owners.pop(owner, None)
            self._owners[owner] = None
            idle = None
            if len(self._owners) > self._limit:
                idle = next(iter(self._owners))
                del self._owners[idle]
        if idle is not None:
            idle.rest()

    def drop(self, owner: Owner) -> None:
        """Take note that an owner has closed its files."""
        with self._lock:
            self._owners.pop(owner, None)

    def __len__(self) -> int:
        return len(self._owners)
