"""Log lines that an attacker can cause: the first ones of a kind, then how many more there were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Kind:
    began: float
    lines: int = 0
    left_out: int = 0


class QuietLog:
    """Writes at most a few lines of each format string per period.

    Parameters
    ----------
    log
        Where lines go.
    lines
        Lines of one kind per period.
    period
        Seconds.
    clock
        Tells seconds.

    Examples
    --------
    >>> quiet = QuietLog(logging.getLogger("headrace.example"), lines=1)
    >>> quiet.warning("no more %s", "tea"), quiet.warning("no more %s", "milk")
    (True, False)
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        lines: int = 5,
        period: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._log = log
        self._lines = lines
        self._period = period
        self._clock = clock or time.monotonic
        # The keys are format strings of this program, so there are few.
        self._kinds: dict[str, _Kind] = {}

    def warning(self, text: str, *values: object, error: BaseException | None = None) -> bool:
        """Write a line unless there were enough of its kind, and return whether it was written."""
        now = self._clock()
        kind = self._kinds.get(text)
        if kind is None or now - kind.began >= self._period:
            if kind is not None and kind.left_out:
                self._log.warning("%d more lines like the following were left out", kind.left_out)
            kind = self._kinds[text] = _Kind(now)
        if kind.lines >= self._lines:
            kind.left_out += 1
            return False
        kind.lines += 1
        self._log.warning(text, *values, exc_info=error)
        return True
