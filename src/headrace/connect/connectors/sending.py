"""Requests of sinks to web services, which are made until they are answered."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Event
from typing import Self

import httpx

from headrace.connect import Config, RetriableError, Secret, declare, key
from headrace.errors import ConnectorConfigError, SerializationError

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may answer better later."""

#: The server says that it is the records, not the way to it.
_OF_RECORDS = frozenset({400, 409, 410, 413, 415, 422})

logger = logging.getLogger(__name__)


SENDING_KEYS = declare(
    key("auth.token", Secret, "The bearer token that requests carry."),
    key("tls.verify", bool, "Whether the server's certificate is checked.", default=True),
    key("tls.ca", Path, "File of the certificates that may have signed it."),
    key(
        "request.timeout.ms",
        timedelta,
        "How long a connection and each answer may take.",
        default=timedelta(seconds=10),
    ),
    key(
        "retry.timeout.ms",
        timedelta,
        "How long a request is made again that the server cannot answer now.",
        default=timedelta(seconds=10),
    ),
    key(
        "retry.pause.ms",
        timedelta,
        "The first pause; each is twice the last one.",
        default=timedelta(milliseconds=200),
        importance="low",
    ),
    key(
        "retry.pause.max.ms",
        timedelta,
        "The longest pause, unless the server asks for a longer one (Retry-After).",
        default=timedelta(seconds=10),
        importance="low",
    ),
)


def client(config: Config, headers: Mapping[str, str]) -> httpx.Client:
    """Make a client by these keys."""
    verify: bool | str = config["tls.verify"]
    if verify and config["tls.ca"]:
        verify = str(config["tls.ca"])
    token = config["auth.token"]
    bearer = {"authorization": f"Bearer {token.reveal()}"} if token else {}
    return httpx.Client(
        headers={**headers, **bearer},
        timeout=config["request.timeout.ms"].total_seconds(),
        verify=verify,
        trust_env=False,
    )


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

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read a config."""
        return cls(
            config["retry.pause.ms"].total_seconds(),
            config["retry.pause.max.ms"].total_seconds(),
            config["retry.timeout.ms"].total_seconds(),
        )


class Pauses:
    """The pauses between the tries of one thing, which grow until the budget is used up.

    Parameters
    ----------
    stopping
        Ends them.
    """

    def __init__(self, retries: Retries, stopping: Event) -> None:
        self._longest = retries.longest
        self._next = retries.pause
        self._until = time.monotonic() + retries.budget
        self._stopping = stopping

    def wait(self, what: str, failure: str, asked: float | None = None) -> None:
        """Wait for the next try.

        Parameters
        ----------
        what, failure
            What was tried, and what came of it.
        asked
            The seconds that the server asks for.

        Raises
        ------
        RetriableError
            When the budget is used up, or the task is to stop.
        """
        wait = asked if asked is not None else random.uniform(self._next / 2, self._next)
        self._next = min(self._next * 2, self._longest)
        if time.monotonic() + wait > self._until or self._stopping.is_set():
            message = f"{what} does not succeed: {failure}"
            hint = "See why the server fails; retry.timeout.ms says how long it is tried."
            raise RetriableError(message, hint=hint)
        logger.info("%s again in %.1f s: %s", what, wait, failure)
        self._stopping.wait(wait)


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

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Make a request until a 2xx answers it; give that answer.

        Raises
        ------
        RefusedError
            When the server does not take the records.
        RetriableError
            When the budget is used up, or the task is to stop.
        ConnectorConfigError
            When the server refuses whatever is sent.
        """
        pauses = Pauses(self._retries, self._stopping)
        while True:
            answer = self._once(url, body, headers)
            if isinstance(answer, httpx.Response):
                return answer
            pauses.wait(f"{self._method} {url}", *answer)

    def _once(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> httpx.Response | tuple[str, float | None]:
        """Make it once; give why it should be made again, and when the server wants it."""
        try:
            answer = self._client.request(self._method, url, content=body, headers=dict(headers))
        except httpx.TransportError as error:
            return f"{type(error).__name__}: {error}", None
        if answer.is_success:
            return answer
        said = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:200]}"
        if answer.status_code in PASSING:
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
