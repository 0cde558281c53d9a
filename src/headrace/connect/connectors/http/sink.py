"""``http-sink``: records as requests to a web service."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar
from urllib.parse import quote

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SinkConnector,
    SinkRecord,
    SinkTask,
    between,
    declare,
    key,
    matching,
    one_of,
)
from headrace.connect.connectors.sending import (
    SENDING_KEYS,
    RefusedError,
    Retries,
    Sender,
    client,
)
from headrace.connect.connectors.texts import as_json, as_text

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
        #: Behind the last record of each queue that the server has taken.
        self._sent: dict[Queue, int] = {}
        self._sender = Sender(
            self._client, config["method"], Retries.of(config), self.context.stopping
        )

    def open(self, queues: Collection[Queue]) -> None:
        """Begin anew: what was sent before may be asked for again."""
        del queues
        self._sent.clear()

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Send the records; return when the server has taken all of them.

        After an error the same records come again: those that were taken are left out.
        """
        left = [one for one in records if one.offset >= self._sent.get(one.queue, 0)]
        for batch in self._batches(left):
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
        self._sent[batch[-1].queue] = batch[-1].offset + 1

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
    """Sends records to a web service; see docs/connect-connectors.md."""

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
