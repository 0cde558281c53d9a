"""Queues that followers read from the beginning: nothing of them is compacted meanwhile.

A follower that has got a value, and not the delete behind it, would keep the value for ever if
the delete went now.  No I/O: what to pause is asked for, time is given.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

__all__ = ["Lease", "RebuildLeases"]

Key = tuple[str, int, int]
"""Topic, queue id and birth."""


class Lease(Enum):
    """What became of a session."""

    #: The queue stays as it is until the session ends.
    GRANTED = "granted"
    #: The queue is being compacted: try again soon.
    BUSY = "busy"
    #: The session is over, the queue may have been compacted since: begin again.
    LOST = "lost"


class RebuildLeases:
    """Who reads which queue.

    Parameters
    ----------
    expiry
        Seconds after which a session that asks for nothing is over.
    pause
        Keeps a queue from being compacted; False while it is being compacted just now.
    resume
        Lets a queue be compacted again.

    Examples
    --------
    >>> leases = RebuildLeases(60, lambda key: True, lambda key: print("again", key))
    >>> leases.touch(("t", 0, 0), "s1", first=True, now=0)
    <Lease.GRANTED: 'granted'>
    >>> leases.end(("t", 0, 0), "s1")
    again ('t', 0, 0)
    """

    def __init__(
        self, expiry: float, pause: Callable[[Key], bool], resume: Callable[[Key], None]
    ) -> None:
        self._expiry = expiry
        self._pause = pause
        self._resume = resume
        #: Until when, by queue and session.
        self._queues: dict[Key, dict[str, float]] = {}

    def touch(self, key: Key, session: str, *, first: bool, now: float) -> Lease:
        """Begin a session, or go on with it."""
        sessions = self._queues.get(key)
        if first:
            if sessions is None and not self._pause(key):
                return Lease.BUSY
            sessions = self._queues.setdefault(key, {})
        elif sessions is None or session not in sessions:
            return Lease.LOST
        sessions[session] = now + self._expiry
        return Lease.GRANTED

    def end(self, key: Key, session: str) -> None:
        """End a session."""
        sessions = self._queues.get(key)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._queues[key]
                self._resume(key)

    def expire(self, *, now: float) -> None:
        """End the sessions that nobody goes on with."""
        for key, sessions in list(self._queues.items()):
            for session in [one for one, until in sessions.items() if until <= now]:
                self.end(key, session)
