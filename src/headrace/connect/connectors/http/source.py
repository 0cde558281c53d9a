"""``http-source``: requests that others make, as webhooks do."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, ClassVar

import msgspec

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
from headrace.connect.connectors.http._server import Arrival, Inbox, Rules, Server, answer
from headrace.connect.connectors.offsets import sync_folder
from headrace.errors import StoreLockedError
from headrace.private import owners_folder
from headrace.watched import watched_thread

# Requests that were answered before they are committed, kept on disk until they are.

_HEAD = struct.Struct(">II")
_SEGMENT = 16 << 20
_ENDING = ".journal"

logger = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    last: int
    values: list[Any]
    key: str | None
    headers: list[tuple[str, str]]
    name: str | None


class Journal:
    """Files of requests in the order of their numbers.

    A file whose requests are all committed is removed.

    Parameters
    ----------
    folder
        Where the files are; nobody else may use it.
    committed
        Number of the last record that is committed.
    """

    def __init__(self, folder: Path, committed: int) -> None:
        owners_folder(folder)
        self._folder = folder
        self._guard = (folder / ".lock").open("ab")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._guard.close()
            message = f"The journal {folder} is used by another process."
            hint = "Give each connector a journal.directory of its own."
            raise StoreLockedError(message, hint=hint) from None
        self._lock = Lock()
        #: Files that are not removed yet, each with the number of its last record.
        self._files: dict[Path, int] = {}
        #: Requests that are not committed.
        self.recovered = [one for one in self._read() if one.last > committed]
        #: Number of the last record that was ever taken.
        self.last = max(committed, *self._files.values(), 0)
        self._file: BinaryIO | None = None
        self._path = folder
        self.trim(committed)

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Write requests; they are on disk when this returns."""
        with self._lock:
            file = self._opened(arrivals[0])
            file.write(b"".join(map(_framed, arrivals)))
            file.flush()
            os.fsync(file.fileno())
            self._files[self._path] = self.last = arrivals[-1].last

    def trim(self, committed: int) -> None:
        """Remove files of which everything is committed."""
        with self._lock:
            for path in [path for path, last in self._files.items() if last <= committed]:
                if self._file is not None and path == self._path:
                    self._file.close()
                    self._file = None
                del self._files[path]
                path.unlink()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._guard.close()

    def _opened(self, first: Arrival) -> BinaryIO:
        if self._file is not None and self._file.tell() >= _SEGMENT:
            self._file.close()
            self._file = None
        if self._file is None:
            self._path = self._folder / f"{first.last:019d}{_ENDING}"
            self._file = self._path.open("wb")
            sync_folder(self._folder)
        return self._file

    def _read(self) -> Iterator[Arrival]:
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            self._files[path] = 0
            for entry in _entries(path):
                self._files[path] = entry.last
                yield Arrival(
                    values=entry.values,
                    key=entry.key,
                    headers=tuple(entry.headers),
                    name=entry.name,
                    last=entry.last,
                    committed=True,
                )


def _framed(arrival: Arrival) -> bytes:
    entry = _Entry(
        arrival.last, list(arrival.values), arrival.key, list(arrival.headers), arrival.name
    )
    body = msgspec.msgpack.encode(entry)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _entries(path: Path) -> Iterator[_Entry]:
    content = path.read_bytes()
    at = 0
    while at < len(content):
        body = b""
        if at + _HEAD.size <= len(content):
            length, checksum = _HEAD.unpack_from(content, at)
            body = content[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                body = b""
        if not body:
            # The write that a crash cut off: its request was never answered.
            logger.warning("%s ends in the middle of a request, at byte %d", path, at)
            return
        yield msgspec.msgpack.decode(body, type=_Entry)
        at += _HEAD.size + len(body)


# An inbox that answers requests as soon as they are in its journal.


class JournaledInbox(Inbox):
    """Writes requests to a journal, all that have come meanwhile at once.

    Parameters
    ----------
    journal
        Where they are written; what it holds already is given first.
    most
        Records that may wait for their commit.
    """

    def __init__(self, journal: Journal, most: int) -> None:
        super().__init__(journal.last, most)
        self._journal = journal
        self._unwritten: list[Arrival] = []
        for arrival in journal.recovered:
            self._fresh.append(arrival)
            self._count(arrival)
        #: What is being written just now.
        self._writing: list[Arrival] = []
        self._writer = watched_thread(self._write_all, name="http-journal", on_failure=self._fail)
        self._writer.start()

    def commit(self, number: int) -> None:
        """Forget what is committed."""
        super().commit(number)
        self._journal.trim(number)

    def close(self) -> None:
        """Answer those whose requests are not written that they are not."""
        super().close()
        self._writer.join()
        for arrival in self._unwritten:
            answer(arrival, committed=False)
        self._journal.close()

    def _accept(self, arrival: Arrival) -> None:
        self._unwritten.append(arrival)

    def _write_all(self) -> None:
        while arrivals := self._next():
            self._journal.append(arrivals)
            with self._changed:
                for arrival in arrivals:
                    arrival.committed = True
                    self._fresh.append(arrival)
                    answer(arrival, committed=True)
                self._changed.notify_all()

    def _next(self) -> list[Arrival]:
        with self._changed:
            while not self._unwritten and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            self._writing, self._unwritten = self._unwritten, []
            return self._writing

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self._closed = True
            for arrival in self._writing:
                if not arrival.committed:
                    answer(arrival, committed=False)
            self._changed.notify_all()


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
        """Return what has arrived."""
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
    """Turns requests into records, and answers what is committed."""

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
