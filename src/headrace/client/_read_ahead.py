"""Reading a range of offsets with pulls sent ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.client.results import PullResult, PullStatus
from headrace.errors import OffsetExpiredError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from datetime import timedelta

__all__ = ["ReadAhead"]

#: Answers that may be on their way at once, in bytes.
_BYTES_AHEAD = 16 * 1024 * 1024
#: Pause before a queue is asked again for messages that it must soon show, in seconds.
_PAUSE = 0.005


class ReadAhead:
    """Pulls under way, one behind the other.

    Where a pull starts is guessed: as far behind the one before as the last answer reached.

    Parameters
    ----------
    pull
        Pulls at an offset.
    ahead
        Most pulls under way.
    patience
        How long messages that the queue does not show yet are waited for: RocketMQ confirms a
        message some milliseconds before it can be pulled.
    """

    def __init__(
        self,
        pull: Callable[[int], Coroutine[Any, Any, PullResult]],
        ahead: int,
        patience: timedelta,
    ) -> None:
        #: Pulls whose guess was wrong.
        self.wasted = 0
        self._pull = pull
        self._ahead = ahead
        self._patience = patience.total_seconds()
        self._sent: deque[tuple[int, asyncio.Task[PullResult]]] = deque()

    async def results(self, begin: int, end: int) -> AsyncGenerator[PullResult, None]:
        """Give the answers that hold the messages from ``begin`` up to ``end``, in order.

        Raises
        ------
        OffsetExpiredError
            If the queue does not hold them.
        """
        at, step, window = begin, 0, 0
        try:
            while at < end:
                self._send(at, step, window, end)
                result = await self._sent.popleft()[1]
                if result.status is not PullStatus.FOUND:
                    at = await self._past_gap(result, at, end)
                    continue
                at, step = result.next_offset, result.next_offset - at
                window = min(self._ahead, _BYTES_AHEAD // len(result.block))
                yield result
        finally:
            for _, task in self._sent:
                task.cancel()

    def _send(self, at: int, step: int, window: int, end: int) -> None:
        sent = self._sent
        while sent and sent[0][0] != at:
            sent.popleft()[1].cancel()
            self.wasted += 1
        if not sent:
            sent.append((at, asyncio.ensure_future(self._pull(at))))
        while step and len(sent) <= window and sent[-1][0] + step < end:
            guess = sent[-1][0] + step
            sent.append((guess, asyncio.ensure_future(self._pull(guess))))

    async def _past_gap(self, result: PullResult, at: int, end: int) -> int:
        if result.status is PullStatus.NO_MATCH and result.next_offset > at:
            return result.next_offset
        deadline = asyncio.get_running_loop().time() + self._patience
        # A RocketMQ that has just made a compacted topic names -1 as its first offset.
        while result.min_offset <= at and (result.max_offset < end or result.min_offset < 0):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_PAUSE)
            result = await self._pull(at)
            if result.status is PullStatus.FOUND:
                # It is there now; what follows it is asked for anew.
                return at
        raise _expired(result, at, end)


def _expired(result: PullResult, offset: int, end: int) -> OffsetExpiredError:
    return OffsetExpiredError(
        f"queue {result.queue} was to be read from {offset} to {end}, "
        f"but holds {result.min_offset} to {result.max_offset}",
        hint="what is missing was deleted by the broker's retention, or the topic was made anew: "
        "start from the first offset it holds, or restore the topic",
    )
