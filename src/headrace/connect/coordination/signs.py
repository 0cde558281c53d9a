"""Which members of a cluster give signs of life, judged by one that gives them, too."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping

__all__ = ["SignsOfLife"]

#: Between two signs of its own that come back, a worker counts at most this part of the time-out:
#: what was on the way while it stood still, or nobody could write, is no silence of the others.
_SHARE = 1 / 3


class SignsOfLife:
    """Tells which members are silent, from the signs of life of all in the order of their queue.

    Only one of its own that has come back proves that the others could have been heard.  So time
    passes here from one of those to the next, and not while this worker stands still, or a broker
    is away.

    Parameters
    ----------
    own
        Id of the member that listens.
    timeout
        Seconds of silence after which a member counts as gone.
    clock
        Gives the time in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> signs = SignsOfLife("me", timeout=6.0, clock=lambda: now)
    >>> signs.gone({"me", "other"})
    set()
    >>> for now in (2.0, 4.0, 6.0, 8.0):
    ...     signs.hear("me")
    >>> signs.gone({"me", "other"})
    {'other'}
    >>> signs.hear("other")
    >>> signs.gone({"me", "other"})
    set()
    """

    def __init__(
        self, own: str, *, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.own = own
        self._timeout, self._clock = timeout, clock
        #: Seconds for which the others could have been heard.
        self._watched = 0.0
        self._own_heard = clock()
        #: Of each member, what had been watched when it was known to be alive last, and the time.
        self._alive: dict[str, tuple[float, float]] = {}
        self._listed = False

    def hear(self, member: str) -> None:
        """Note a sign of life."""
        now = self._clock()
        if member == self.own:
            self._watched += min(now - self._own_heard, self._timeout * _SHARE)
            self._own_heard = now
        self._alive[member] = self._watched, now

    def gone(self, members: Collection[str], lost: Mapping[str, float] | None = None) -> set[str]:
        """Tell which members have given no sign for too long; who is none is forgotten.

        Parameters
        ----------
        members
            Those that brokers know; who is new among them counts as heard of now.
        lost
            Those that all count as lost, and since when: they have to be heard of after that.
        """
        # How long those have been silent that were there before this one, it does not know.
        known = self._clock() if self._listed else -math.inf
        self._listed = True
        self._alive = {one: self._alive.get(one, (self._watched, known)) for one in members}
        return {one for one in members if one != self.own and self._is_gone(one, lost or {})}

    def _is_gone(self, member: str, lost: Mapping[str, float]) -> bool:
        watched, heard = self._alive[member]
        return self._watched - watched >= self._timeout or heard < lost.get(member, -math.inf)
