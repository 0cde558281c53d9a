"""How long a process has given no sign of life: no processes and no clock here."""

from __future__ import annotations

__all__ = ["Silence"]

#: So many looks within the limit; what happens between two of them counts as at most two.
_LOOKS = 20
_LONGEST_PAUSE = 5.0


class Silence:
    """Measures the silence of a process that should say something every second.

    Only time in which its watcher looked counts: a machine that slept, or a watcher that was
    stopped itself, says nothing about the process.  Nothing counts before its first word, as
    nobody knows how long a program takes until it can speak.

    Parameters
    ----------
    limit
        Seconds of silence after which it is taken to hang.

    Examples
    --------
    >>> silence = Silence(10.0)
    >>> silence.pause
    0.5
    >>> silence.heard(now=100.0)
    >>> [silence.is_over(now=100.0 + second) for second in (0.5, 60.0)]
    [False, False]
    >>> any(silence.is_over(now=160.0 + look / 2) for look in range(30))
    True
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._looked: float | None = None
        self._lasted = 0.0

    @property
    def pause(self) -> float:
        """Seconds from one look to the next."""
        return min(self.limit / _LOOKS, _LONGEST_PAUSE)

    def heard(self, now: float) -> None:
        """Take note of a sign of life."""
        self._looked, self._lasted = now, 0.0

    def is_over(self, now: float) -> bool:
        """Look at the clock; tell whether the silence has lasted for longer than the limit."""
        if self._looked is None:
            return False
        self._lasted += min(now - self._looked, 2 * self.pause)
        self._looked = now
        return self._lasted > self.limit
