"""``http-sink``: records as requests to a web service."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import ClassVar, Self
from urllib.parse import quote

import httpx

from headrace.backoff import Backoff, jitter
from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    RetriableError,
    Secret,
    SinkConnector,
    SinkRecord,
    SinkTask,
    between,
    declare,
    key,
    matching,
    one_of,
)
from headrace.connect.connectors.offsets import Progress
from headrace.connect.connectors.texts import as_json, as_text
from headrace.errors import ConnectorConfigError, SerializationError

# Requests of sinks to web services, which are made until they are answered.

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
        self._backoff = Backoff(retries.pause, retries.longest)
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
        pause = self._backoff.next(jitter())
        wait = pause if asked is None else asked
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


_CONTENT = {
    "array": "application/json",
    "lines": "application/x-ndjson",
    "single": "application/json",
}


class HttpSinkTask(SinkTask):
    """Sends records as they are put; each request has records of one queue."""

    def start(self, config: Config) -> None:
        """Make a client."""
        self._config = config
        self._shape: str = config["body"]
        headers = {"content-type": _CONTENT[self._shape], **config.section("request.header.")}
        self._client = client(config, headers)
        self._progress = Progress({})
        self._sender = Sender(
            self._client, config["method"], Retries.of(config), self.context.stopping
        )

    def open(self, queues: Collection[Queue]) -> None:
        """Begin anew: what was sent before may be asked for again."""
        del queues
        self._progress = Progress({})

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Send the records; return when the server has taken all of them.

        After an error the same records come again: those that were taken are left out.
        """
        for batch in self._batches(self._progress.fresh(records)):
            self._send(batch)

    def stop(self) -> None:
        """Close the connections."""
        if made := getattr(self, "_client", None):
            made.close()

    def _batches(self, records: Sequence[SinkRecord]) -> Iterator[Sequence[SinkRecord]]:
        most = 1 if self._shape == "single" else self._config["batch.max.records"]
        for _, of_queue in groupby(records, key=lambda record: (record.queue, record.topic)):
            some = list(of_queue)
            for start in range(0, len(some), most):
                yield some[start : start + most]

    def _send(self, batch: Sequence[SinkRecord]) -> None:
        try:
            self._sender.send(self._url(batch[0]), self._body(batch), self._headers(batch))
        except RefusedError as error:
            if len(batch) > 1:
                # One bad record must not take the others with it: find it by halves.
                middle = len(batch) // 2
                self._send(batch[:middle])
                self._send(batch[middle:])
                return
            self.context.report(batch[0], error)
        self._progress.take(batch)

    def _url(self, record: SinkRecord) -> str:
        url: str = self._config["url"]
        if "{" not in url:
            return url
        name = "" if record.key is None else as_text(record.key).decode()
        topic = quote(record.topic, safe="")
        return url.replace("{topic}", topic).replace("{key}", quote(name, safe=""))

    def _body(self, batch: Sequence[SinkRecord]) -> bytes:
        if self._shape == "single":
            return as_text(batch[0].value)
        values = [as_json(record.value) for record in batch]
        if self._shape == "lines":
            return b"".join([value + b"\n" for value in values])
        return b"[" + b",".join(values) + b"]"

    def _headers(self, batch: Sequence[SinkRecord]) -> dict[str, str]:
        queue, first, last = batch[0].queue, batch[0].offset, batch[-1].offset
        place = f"{queue.topic}/{queue.broker}/{queue.queue_id}"
        return {
            "idempotency-key": f"{self.context.connector}/{place}/{first}-{last}",
            "headrace-queue": place,
            "headrace-first-offset": str(first),
            "headrace-last-offset": str(last),
        }


class HttpSinkConnector(SinkConnector):
    """Sends records to a web service."""

    version = "1.0"
    task = HttpSinkTask
    config: ClassVar[ConfigDeclaration] = (
        declare(
            key(
                "url",
                str,
                "Where requests go; {topic} and, with body=single, {key} are filled in.",
                required=True,
                valid=matching("https?://.+", "a URL that begins with http:// or https://"),
            ),
            key("method", str, "The method.", default="POST", valid=one_of("POST", "PUT", "PATCH")),
            key(
                "body",
                str,
                "What a request holds: a JSON array of values, a line of JSON each, or one value.",
                default="array",
                valid=one_of("array", "lines", "single"),
            ),
            key(
                "batch.max.records",
                int,
                "Most records of a request.",
                default=500,
                valid=between(1, 100_000),
            ),
        )
        | SENDING_KEYS
    )

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if "{key}" in config["url"] and config["body"] != "single":
            yield ConfigProblem("url", "A {key} in url needs body=single.")
