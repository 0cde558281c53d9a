"""Messages that a loop takes from a push consumer, to be acknowledged one by one."""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import ConfigurationError
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.protocol.messages import StoredMessage


# Answers that say what becomes of a message that a listener has seen.

#: How long each delay level waits, from level 1 on, as brokers have them by default.
DELAY_LEVELS = (
    *(timedelta(seconds=seconds) for seconds in (1, 5, 10, 30)),
    *(timedelta(minutes=minutes) for minutes in (*range(1, 11), 20, 30)),
    *(timedelta(hours=hours) for hours in (1, 2)),
)


@dataclass(frozen=True, slots=True)
class Retry:
    """A listener's answer: deliver the message again later.

    Parameters
    ----------
    delay
        How long to wait; any time is possible.  None uses the broker's ladder, which waits longer
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
                f"a retry after {self.delay} at level {self.level} is not possible",
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
    """Return the delay level that waits exactly so long; None if none does.

    >>> delay_level_of(timedelta(seconds=5)), delay_level_of(timedelta(seconds=6))
    (2, None)
    """
    return DELAY_LEVELS.index(delay) + 1 if delay in DELAY_LEVELS else None


logger = logging.getLogger(__name__)


class Delivery:
    """A message to acknowledge or give back: use it as a context, or call one of its methods.

    As a context it is acknowledged at the end of the block; an exception there is logged with its
    line, and the message comes again later.  All methods may be called from any thread.

    Examples
    --------
    >>> async def read(consumer: AsyncPushConsumer) -> None:
    ...     async for delivery in consumer:
    ...         async with delivery as message:
    ...             print(message.body)
    """

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[Outcome] = self._loop.create_future()

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self._settle(None)

    def retry(self, delay: timedelta | None = None, *, level: int = 0) -> None:
        """Ask for another delivery of the message: see ``Retry``."""
        self._settle(Retry(delay, level))

    def dead_letter(self) -> None:
        """Put the message into the group's dead-letter topic."""
        self._settle(DEAD_LETTER)

    async def settled(self) -> Outcome:
        """Wait until somebody says what becomes of the message.  Caller: AsyncPushConsumer."""
        return await self._settled

    def abandon(self) -> None:
        """Leave the message to the next member.  Caller: AsyncPushConsumer."""
        self._settle_now(ABANDONED)

    def _settle(self, outcome: Outcome) -> None:
        self._loop.call_soon_threadsafe(self._settle_now, outcome)

    def _settle_now(self, outcome: Outcome) -> None:
        if self._settled.done():
            # Its time was over, or its queue went to another member: it comes again.
            logger.warning("a message was settled twice or too late: %s", self.message.offset_id)
        else:
            self._settled.set_result(outcome)

    def __enter__(self) -> StoredMessage:
        return self.message

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self.ack()
            return False
        self.retry()
        if not isinstance(error, Exception):
            return False
        line = user_line(error, type(self).__exit__)
        logger.error(
            "processing a message of topic %r failed: %s: %s%s",
            self.message.topic, type(error).__name__, error,
            "" if line is None else f"\n  at {line}", exc_info=error,
        )  # fmt: skip
        return True

    async def __aenter__(self) -> StoredMessage:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self.__exit__(kind, error, trace)
