"""What the end of a driver means, and how often it is started again: no processes here."""

from __future__ import annotations

import signal
from enum import Enum, auto

__all__ = ["Ending", "Restarts", "ending", "told"]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class Ending(Enum):
    """Why a process ended."""

    DONE = auto()
    #: It said why, and would say so again.
    FAILED = auto()
    #: It was killed, or fell over: another one goes on.
    CRASHED = auto()


def ending(status: int) -> Ending:
    """Tell what a return code means; those below zero are signals.

    >>> [ending(status).name for status in (0, 1, 2, -9)]
    ['DONE', 'FAILED', 'FAILED', 'CRASHED']
    """
    if status == 0:
        return Ending.DONE
    return Ending.CRASHED if status < 0 else Ending.FAILED


def told(status: int) -> str:
    """Say how a process ended.

    >>> told(-9), told(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class Restarts:
    """How often something was started again in vain, and how long to wait before the next time.

    The first time is at once: most crashes are of a machine that was short of memory, or of a
    person who wanted to see what happens.

    Parameters
    ----------
    most
        Restarts in a row without progress; None: no bound.

    Examples
    --------
    >>> restarts = Restarts(most=3)
    >>> restarts.pause(), restarts.pause(), restarts.pause(), restarts.pause()
    (0.0, 1.0, 2.0, None)
    >>> restarts.progressed()
    >>> restarts.pause()
    0.0
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.in_a_row = 0

    def pause(self) -> float | None:
        """Count a restart and give the seconds to wait before it; None: no more of them."""
        self.in_a_row += 1
        if self.most is not None and self.in_a_row > self.most:
            return None
        if self.in_a_row == 1:
            return 0.0
        return min(_FIRST_PAUSE * 2.0 ** min(self.in_a_row - 2, 10), _LONGEST_PAUSE)

    def progressed(self) -> None:
        """Forget the restarts: the last one did good."""
        self.in_a_row = 0
