"""Messages that a loop takes from a push consumer, to be acknowledged one by one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.client.outcomes import ABANDONED, DEAD_LETTER, Outcome, Retry
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from headrace.protocol.messages import StoredMessage

__all__ = ["Delivery"]

_log = logging.getLogger("headrace.client")


class Delivery:
    """One message, and what becomes of it: use it as a context, or call one of its methods.

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
        """Say that the message is processed."""
        self._settle(None)

    def retry(self, delay: timedelta | None = None, *, level: int = 0) -> None:
        """Have the message come again: see ``Retry``."""
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
            _log.warning("a message was settled twice or too late: %s", self.message.offset_id)
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
        _log.error(
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
