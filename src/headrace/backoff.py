"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import math
import random

#: Doublings beyond which there is no pause that anybody waits for.
_MOST_DOUBLINGS = 64
#: A generator of its own: what a user's code has seeded stays as it is.
_chance = random.Random()


def jitter() -> float:
    """Return a number from 0 to 1 by which a pause is cut, so that those who failed together part.

    >>> Backoff(1.0).next(jitter()) >= 0.5
    True
    """
    return _chance.random()


class Backoff:
    """The pauses between tries of one thing: each is twice as long as the one before.

    Parameters
    ----------
    first
        Seconds of the first pause.
    longest
        Seconds that no pause goes beyond.

    Examples
    --------
    >>> backoff = Backoff(0.5, 3.0)
    >>> [backoff.next() for _ in range(5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    >>> backoff.reset()
    >>> backoff.next()
    0.5
    """

    def __init__(self, first: float, longest: float = math.inf) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self, chance: float = 1.0) -> float:
        """Count a failure, and return the seconds to wait after it; ``chance`` as in `after`."""
        self._failures += 1
        return self.after(self._failures, chance)

    def reset(self) -> None:
        """Forget the failures: the last try succeeded."""
        self._failures = 0

    def after(self, failures: int, chance: float = 1.0) -> float:
        """Return the seconds to wait after so many failures in a row.

        Parameters
        ----------
        failures
            From 1 on.
        chance
            A number from 0 to 1 that cuts the pause by up to a half, so that those who failed
            together do not come back together.

        Examples
        --------
        >>> Backoff(0.5, 3.0).after(5000), Backoff(0.5).after(3, chance=0.0)
        (3.0, 1.0)
        """
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return min(self._first * 2.0**doublings, self._longest) * (0.5 + chance / 2)
