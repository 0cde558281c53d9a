"""``http-source``: requests that others make, as webhooks do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Header,
    Secret,
    Size,
    SourceConnector,
    SourceRecord,
    SourceTask,
    at_least,
    between,
    declare,
    key,
    matching,
    one_of,
)
from headrace.connect.connectors.http._inbox import Arrival, Inbox
from headrace.connect.connectors.http._journal import Journal
from headrace.connect.connectors.http._journaled import JournaledInbox
from headrace.connect.connectors.http._server import Rules, Server

__all__ = ["HttpSourceConnector", "HttpSourceTask"]

_PARTITION = {"http": "requests"}


class HttpSourceTask(SourceTask):
    """Answers each request once its records are committed, or in the journal."""

    def start(self, config: Config) -> None:
        """Listen."""
        self._config = config
        committed = self.context.offsets.get(_PARTITION) or {}
        self._inbox = _inbox(config, int(committed.get("number", 0)))
        cert, private = config["tls.cert"], config["tls.key"]
        self._server = Server(
            self._inbox,
            _rules(config),
            config["host"],
            config["port"],
            (cert, private) if cert and private else None,
        )
        self.context.logger.info("taking requests on port %d", self._server.port)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def poll(self) -> Sequence[SourceRecord]:
        """Give what has arrived."""
        for failure in (self._inbox.failure, self._server.failure):
            if failure is not None:
                raise failure
        arrivals = self._inbox.take(self._config["batch.max.records"], 0.5)
        return [record for arrival in arrivals for record in self._records(arrival)]

    def commit(self) -> None:
        """Answer the requests whose records are committed."""
        committed = self.context.offsets.get(_PARTITION)
        if committed is not None:
            self._inbox.commit(int(committed["number"]))

    def healthy(self) -> bool:
        """Whether it still listens."""
        return self._server.alive

    def stop(self) -> None:
        """Ask clients to send again what is not committed."""
        if inbox := getattr(self, "_inbox", None):
            inbox.close()
        if server := getattr(self, "_server", None):
            server.close()

    def _records(self, arrival: Arrival) -> Iterable[SourceRecord]:
        first = arrival.last - len(arrival.values) + 1
        headers = tuple(Header(name, value) for name, value in arrival.headers)
        for number, value in enumerate(arrival.values, first):
            yield SourceRecord(
                partition=_PARTITION,
                offset={"number": number},
                topic=self._config["topic"],
                key=arrival.key,
                value=value,
                headers=headers,
            )


def _inbox(config: Config, committed: int) -> Inbox:
    most = config["buffer.max.records"]
    if config["answer"] == "commit":
        return Inbox(committed, most)
    return JournaledInbox(Journal(config["journal.directory"], committed), most)


def _rules(config: Config) -> Rules:
    return Rules(
        path=config["path"],
        token=config["auth.token"],
        signature=config["signature.secret"],
        signature_header=config["signature.header"],
        most_bytes=config["body.max.bytes"],
        form=config["format"],
        split=config["split"],
        key_header=config["key.header"],
        headers=config["headers"],
        timeout=config["commit.timeout.ms"].total_seconds(),
    )


class HttpSourceConnector(SourceConnector):
    """Turns requests into records, and answers what is committed; see docs/connect-connectors.md."""

    version = "1.0"
    task = HttpSourceTask
    exactly_once = False
    config: ClassVar[ConfigDeclaration] = declare(
        key("topic", str, "The topic that the records go to.", required=True),
        key("port", int, "Where it listens.", required=True, valid=between(0, 65535)),
        key("host", str, "The address on which it listens.", default="127.0.0.1"),
        key(
            "path",
            str,
            "The path that takes records.",
            default="/",
            valid=matching("/.*", "a path that begins with /"),
        ),
        key("auth.token", Secret, "The bearer token that requests must carry."),
        key("signature.secret", Secret, "The secret with which senders sign bodies (HMAC-SHA256)."),
        key(
            "signature.header",
            str,
            "The header that has the signature in hex, with or without sha256= before it.",
            default="X-Hub-Signature-256",
        ),
        key("tls.cert", Path, "File of the certificate, for HTTPS."),
        key("tls.key", Path, "File of its key."),
        key(
            "format",
            str,
            "What bodies are.",
            default="json",
            valid=one_of("json", "text", "bytes"),
        ),
        key(
            "split",
            str,
            "Whether a body is one record, a line each, or an item of a JSON array each.",
            default="none",
            valid=one_of("none", "lines", "array"),
        ),
        key("key.header", str, "The header whose value becomes the key of the records."),
        key("headers", list, "Headers that the records carry on.", default=[]),
        key(
            "body.max.bytes",
            Size,
            "Bytes of the largest body; a larger one is refused (413).",
            default=1 << 20,
            valid=at_least(1),
        ),
        key(
            "buffer.max.records",
            int,
            "Records that may wait for their commit; more are refused for now (503).",
            default=10_000,
            valid=at_least(1),
        ),
        key(
            "answer",
            str,
            "When a request is answered: after the commit of its records, or as soon as they are "
            "synced to a journal on the worker's disk.",
            default="commit",
            valid=one_of("commit", "journal"),
        ),
        key("journal.directory", Path, "The folder of the journal, this connector's own."),
        key(
            "commit.timeout.ms",
            timedelta,
            "How long a request waits for its commit; then it is answered 503.",
            default=timedelta(seconds=30),
        ),
        key(
            "batch.max.records",
            int,
            "Most records of a poll.",
            default=2000,
            valid=at_least(1),
            importance="low",
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """One port has one task."""
        del max_tasks
        return [{}]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if (config["tls.cert"] is None) != (config["tls.key"] is None):
            yield ConfigProblem("tls.key", "HTTPS needs both tls.cert and tls.key.")
        if config["answer"] == "journal" and config["journal.directory"] is None:
            message = "answer=journal needs journal.directory."
            yield ConfigProblem("journal.directory", message)
        if config["split"] == "array" and config["format"] != "json":
            yield ConfigProblem("split", "split=array needs format=json.")
