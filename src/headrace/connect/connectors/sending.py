"""Requests that are made until they are answered."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event

import httpx

from headrace.connect import RetriableError
from headrace.errors import ConnectorConfigError, SerializationError

__all__ = ["RefusedError", "Retries", "Sender", "retry_after"]

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
#: The server says that it is the records, not the way to it.
_OF_RECORDS = frozenset({400, 409, 410, 413, 415, 422})

logger = logging.getLogger(__name__)


class RefusedError(SerializationError):
    """The server does not take these records."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How long a request is made again."""

    #: Seconds of the first pause; each pause is twice the last one.
    pause: float
    #: Seconds of the longest pause.
    longest: float
    #: Seconds in all.
    budget: float


class Sender:
    """Makes requests, and makes them again while that may help.

    Parameters
    ----------
    stopping
        Ends the pauses.
    """

    def __init__(
        self, client: httpx.Client, method: str, retries: Retries, stopping: Event
    ) -> None:
        self._client = client
        self._method = method
        self._retries = retries
        self._stopping = stopping

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Make a request until a 2xx answers it.

        Raises
        ------
        RefusedError
            When the server does not take the records.
        RetriableError
            When the budget is used up, or the task is to stop.
        ConnectorConfigError
            When the server refuses whatever is sent.
        """
        until = time.monotonic() + self._retries.budget
        pause = self._retries.pause
        while True:
            failure, asked = self._once(url, body, headers)
            if failure is None:
                return
            wait = asked if asked is not None else random.uniform(pause / 2, pause)
            pause = min(pause * 2, self._retries.longest)
            if time.monotonic() + wait > until or self._stopping.is_set():
                message = f"{self._method} {url} does not succeed: {failure}"
                hint = "See why the server fails; retry.timeout.ms says how long it is tried."
                raise RetriableError(message, hint=hint)
            logger.info("%s %s again in %.1f s: %s", self._method, url, wait, failure)
            self._stopping.wait(wait)

    def _once(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[str | None, float | None]:
        """Make it once; give why it should be made again, and when the server wants it."""
        try:
            answer = self._client.request(self._method, url, content=body, headers=dict(headers))
        except httpx.TransportError as error:
            return f"{type(error).__name__}: {error}", None
        if answer.is_success:
            return None, None
        said = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:200]}"
        if answer.status_code in _PASSING:
            return said, retry_after(answer.headers.get("retry-after"))
        message = f"{self._method} {url} was answered {said}"
        if answer.status_code in _OF_RECORDS:
            raise RefusedError(
                message, hint="Correct the records, or let errors.tolerance=all pass them over."
            )
        hint = "Correct url, method, headers or auth.token: the server refuses whatever is sent."
        raise ConnectorConfigError(message, hint=hint)


def retry_after(text: str | None) -> float | None:
    """Read the header: seconds, or a date.

    >>> retry_after("2"), retry_after(None), retry_after("soon")
    (2.0, None, None)
    """
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
