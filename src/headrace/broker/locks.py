"""Queue locks: which client of a group may consume a queue in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Lock:
    client: str
    expires: float


class QueueLocks:
    """Locks of queues by consumer groups, each ending unless its client renews it.

    Parameters
    ----------
    expiry
        Seconds for which a lock holds.
    most
        Most locks in all.

    Examples
    --------
    >>> locks = QueueLocks(60)
    >>> locks.acquire("g", "a", [("lines", 0)], now=0)
    [('lines', 0)]
    >>> locks.acquire("g", "b", [("lines", 0)], now=59)
    []
    >>> locks.acquire("g", "b", [("lines", 0)], now=60)
    [('lines', 0)]
    """

    def __init__(self, expiry: float, most: int = 1_000_000) -> None:
        self._expiry = expiry
        self._most = most
        self._locks: dict[tuple[str, tuple[str, int]], _Lock] = {}
        self._swept = float("-inf")

    def acquire(
        self, group: str, client: str, queues: Iterable[tuple[str, int]], *, now: float
    ) -> list[tuple[str, int]]:
        """Take or renew locks; return the queues that the client now holds."""
        granted = []
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None and not self._has_room(now):
                break
            if lock is None or lock.client == client or lock.expires <= now:
                self._locks[group, queue] = _Lock(client, now + self._expiry)
                granted.append(queue)
        return granted

    def _has_room(self, now: float) -> bool:
        if len(self._locks) >= self._most and now >= self._swept + 1:
            self._swept = now
            self._locks = {key: lock for key, lock in self._locks.items() if lock.expires > now}
        return len(self._locks) < self._most

    def release(self, group: str, client: str, queues: Iterable[tuple[str, int]]) -> None:
        """Give up locks; those of other clients stay."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client == client:
                del self._locks[group, queue]

    def holder(self, group: str, queue: tuple[str, int], *, now: float) -> str:
        """Name the client of a group that holds a queue; empty where none does."""
        lock = self._locks.get((group, queue))
        return "" if lock is None or lock.expires <= now else lock.client

    def holds_any(self, group: str, *, now: float) -> bool:
        """Tell whether any client of a group holds a lock: then the group consumes in order."""
        return any(name == group and lock.expires > now for (name, _), lock in self._locks.items())
