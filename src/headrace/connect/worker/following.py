"""Reading the log: the view that it adds up to, and what became of one's own requests."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, Self

from headrace.connect.log import (
    Applied,
    ClusterView,
    CompactedRecord,
    Log,
    Outcome,
    Record,
    Rejected,
    fold,
)
from headrace.errors import (
    ConnectConflictError,
    ConnectorExistsError,
    ConnectorNotFoundError,
    ConnectRequestError,
    MessageTooLargeError,
    WorkerStoppingError,
)
from headrace.watched import watched_task

logger = logging.getLogger(__name__)

_OUTCOMES = 4096


class LogFollower:
    """Folds the log into a view, and tells what became of records that were appended here.

    Parameters
    ----------
    log
        The log.
    heard
        Called with each record that comes and holds, before whoever appended it goes on; the view
        is new already.
    """

    def __init__(self, log: Log, heard: Callable[[Record | CompactedRecord], None]) -> None:
        self._log = log
        self._heard = heard
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Why the log is lost; None while it is read.
        self.lost: BaseException | None = None
        #: The sum of what was read.
        self.view = ClusterView()

    async def replay(self) -> Self:
        """Read the log to its end."""
        async for position, record in self._log.read(0):
            self.view, _ = fold(self.view, record, position)
        return self

    def start(self) -> None:
        """Go on reading, for as long as the worker lives."""
        self._task = watched_task(self._follow(), name="connect-follower", on_failure=self._lose)

    async def append(self, record: Record) -> Outcome:
        """Append a record, and read up to it; give what became of it.

        Raises
        ------
        WorkerStoppingError
            The log cannot be read any more.
        """
        position = await self._log.append(record)
        while self.view.position < position and self.lost is None:
            await self._moved.wait()
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
        async for position, record in self._log.follow(self.view.position + 1):
            self.view, outcome = fold(self.view, record, position)
            if isinstance(outcome, Applied):
                self._heard(record)
            self._outcomes[position] = outcome
            while len(self._outcomes) > _OUTCOMES:
                self._outcomes.popitem(last=False)
            self._move()

    def _lose(self, error: BaseException) -> None:
        self.lost = error
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


# Requests that go into the log, and what became of them in words of errors.


class LogAppender(Protocol):
    """Who puts records into the log: the worker."""

    async def append(self, record: Record) -> Outcome:
        """Put a record into the log; give what became of it."""


def new_request() -> str:
    """Name a request, so that its record is known again and counts once."""
    return uuid.uuid4().hex


async def decide(appender: LogAppender, record: Record) -> None:
    """Put a request into the log; return when it holds.

    Raises
    ------
    ConnectorNotFoundError, ConnectorExistsError, ConnectConflictError
        Something stands against it.
    ConnectRequestError
        It is too large.
    """
    try:
        outcome = await appender.append(record)
    except MessageTooLargeError as error:
        raise ConnectRequestError(error.message, hint=error.hint) from None
    if not isinstance(outcome, Rejected) or outcome.reason == "duplicate":
        return
    if outcome.reason == "missing":
        raise ConnectorNotFoundError(outcome.message)
    if outcome.reason == "exists":
        raise ConnectorExistsError(outcome.message)
    raise ConnectConflictError(outcome.message)
