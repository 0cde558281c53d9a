"""Requests that go into the log, and what became of them in words of errors."""

from __future__ import annotations

import uuid
from typing import Protocol

from headrace.connect.log import Outcome, Record, Rejected
from headrace.errors import (
    ConnectConflictError,
    ConnectorExistsError,
    ConnectorNotFoundError,
    ConnectRequestError,
    MessageTooLargeError,
)


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
