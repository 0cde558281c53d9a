"""What becomes of a message that a listener has seen."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta

from headrace.errors import ConfigurationError

__all__ = ["ABANDONED", "DEAD_LETTER", "DELAY_LEVELS", "Outcome", "Retry", "delay_level_of"]

#: How long each delay level waits, from level 1 on, as brokers have them by default.
DELAY_LEVELS = (
    *(timedelta(seconds=seconds) for seconds in (1, 5, 10, 30)),
    *(timedelta(minutes=minutes) for minutes in (*range(1, 11), 20, 30)),
    *(timedelta(hours=hours) for hours in (1, 2)),
)


@dataclass(frozen=True, slots=True)
class Retry:
    """A listener's answer: not now, bring the message again later.

    Parameters
    ----------
    delay
        How long to wait; any time is possible.  None: the broker's ladder, which waits longer
        each time, from 10 s to 2 h.
    level
        RocketMQ's delay level, 1 to 18, instead of a time.

    Examples
    --------
    >>> Retry(timedelta(seconds=5)).delay
    datetime.timedelta(seconds=5)
    """

    delay: timedelta | None = None
    level: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.level <= len(DELAY_LEVELS):
            raise ConfigurationError(
                f"there is no delay level {self.level}", hint="levels are 1 (1 s) to 18 (2 h)"
            )
        if self.delay is not None and (self.level or self.delay < timedelta(0)):
            raise ConfigurationError(
                f"a retry after {self.delay} at level {self.level} cannot be",
                hint="give a delay that is not negative, or a level",
            )


class _Word(enum.Enum):
    DEAD_LETTER = "dead letter"
    ABANDONED = "abandoned"

    def __repr__(self) -> str:
        return self.name


DEAD_LETTER = _Word.DEAD_LETTER
"""A listener's answer: put the message into the group's dead-letter topic at once."""

ABANDONED = _Word.ABANDONED
"""Nobody looked at the message: the next member reads it."""

Outcome = Retry | _Word | None
"""What a listener may answer: None means that the message is processed."""


def delay_level_of(delay: timedelta) -> int | None:
    """Find the delay level that waits exactly so long.

    >>> delay_level_of(timedelta(seconds=5)), delay_level_of(timedelta(seconds=6))
    (2, None)
    """
    return DELAY_LEVELS.index(delay) + 1 if delay in DELAY_LEVELS else None
