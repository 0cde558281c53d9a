"""Reading the log: the view that it adds up to, and what became of one's own records."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Self

from headrace.connect.log import Applied, ClusterView, Kept, Log, Outcome, Record, Rejected, fold
from headrace.errors import WorkerStoppingError

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

_OUTCOMES = 4096


class Follower:
    """Folds the log into a view, and tells what became of records that were appended here.

    Parameters
    ----------
    log
        The log.
    heard
        Called with each record that comes and holds, before whoever appended it goes on; the view
        is new already.
    """

    def __init__(self, log: Log, heard: Callable[[Record | Kept], None]) -> None:
        self._log = log
        self._heard = heard
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()
        self._folded = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        #: Why the log is lost; None while it is read.
        self.lost: Exception | None = None
        #: The sum of what was read.
        self.view = ClusterView()

    async def replay(self) -> Self:
        """Read the log to its end."""
        async for position, record in self._log.read(0):
            self.view, _ = fold(self.view, record, position)
        return self

    def start(self) -> None:
        """Go on reading, for as long as the worker lives."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="connect-log")

    async def append(self, record: Record) -> Outcome:
        """Append a record, and read up to it; give what became of it.

        Raises
        ------
        WorkerStoppingError
            The log cannot be read any more.
        """
        position = await self._log.append(record)
        async with self._folded:
            await self._folded.wait_for(
                lambda: self.view.position >= position or self.lost is not None
            )
        outcome = self._outcomes.pop(position, None)
        if outcome is None:
            raise WorkerStoppingError("the log of Connect cannot be read any more") from self.lost
        if isinstance(outcome, Rejected):
            logger.debug("record %d is void: %s", position, outcome.message)
        return outcome

    async def stop(self) -> None:
        """End reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self) -> None:
        try:
            async for position, record in self._log.follow(self.view.position + 1):
                self.view, outcome = fold(self.view, record, position)
                if isinstance(outcome, Applied):
                    self._heard(record)
                await self._announce(position, outcome)
        except Exception as error:
            logger.exception("the log of Connect cannot be read any more")
            self.lost = error
            await self._announce(None, None)

    async def _announce(self, position: int | None, outcome: Outcome | None) -> None:
        async with self._folded:
            if position is not None and outcome is not None:
                self._outcomes[position] = outcome
                while len(self._outcomes) > _OUTCOMES:
                    self._outcomes.popitem(last=False)
            self._folded.notify_all()
