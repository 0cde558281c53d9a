"""``elasticsearch-sink`` and ``opensearch-sink``: records as documents, each of them once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import orjson

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.elasticsearch.source import (
    CLUSTER_KEYS,
    cluster_client,
    cluster_problems,
    cluster_url,
)
from headrace.connect.connectors.http.sink import PASSING, Pauses, RefusedError, Retries, Sender
from headrace.connect.connectors.offsets import Progress
from headrace.connect.connectors.texts import as_json, as_text, place_of
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    import httpx


# ``_bulk`` requests: sent until each operation is done or refused.

_HEADERS = {"content-type": "application/x-ndjson"}
#: What an index that takes no writes says, until somebody frees disk or lifts the block.
_BLOCKED = "cluster_block_exception"

Report = Callable[[SinkRecord, BaseException], None]


class Bulk:
    """Makes requests of operations.

    Parameters
    ----------
    url
        Of ``_bulk``.
    report
        Hands over a record that is refused, with the reason.
    most_records, most_bytes
        Of one request.
    """

    def __init__(
        self,
        client: httpx.Client,
        url: str,
        retries: Retries,
        *,
        stopping: Event,
        report: Report,
        most_records: int = 1000,
        most_bytes: int = 5 << 20,
    ) -> None:
        self._sender = Sender(client, "POST", retries, stopping)
        self._url = url
        self._retries = retries
        self._stopping = stopping
        self._report = report
        self._most_records = most_records
        self._most_bytes = most_bytes

    def send(self, operations: Sequence[DocumentOperation]) -> None:
        """Have all operations done, in their order for each document.

        Raises
        ------
        RetriableError
            When the budget for tries is used up, or the task is to stop.
        ConnectorConfigError
            When the server refuses whatever is sent.
        """
        for part in self._parts(operations):
            pauses = Pauses(self._retries, self._stopping)
            left = part
            while left:
                left, failure = self._try(left)
                if left:
                    pauses.wait(f"POST {self._url} with {len(left)} operations", failure)

    def _parts(self, operations: Sequence[DocumentOperation]) -> Iterator[list[DocumentOperation]]:
        part: list[DocumentOperation] = []
        size = 0
        for one in operations:
            full = len(part) == self._most_records or size + len(one.lines) > self._most_bytes
            if part and full:
                yield part
                part, size = [], 0
            part.append(one)
            size += len(one.lines)
        if part:
            yield part

    def _try(self, operations: list[DocumentOperation]) -> tuple[list[DocumentOperation], str]:
        """Send operations once; give those to send again, and why."""
        if not operations:
            return [], ""
        try:
            body = b"".join([one.lines for one in operations])
            answer = self._sender.send(self._url, body, _HEADERS)
        except RefusedError as error:
            if len(operations) == 1:
                self._report(operations[0].record, error)
                return [], ""
            return self._try_halves(operations)
        found = msgspec.json.decode(answer.content)
        return self._unfinished(operations, found["items"]) if found["errors"] else ([], "")

    def _try_halves(
        self, operations: list[DocumentOperation]
    ) -> tuple[list[DocumentOperation], str]:
        """Find the one that is too large, which must not take the others with it."""
        middle = len(operations) // 2
        first, failure = self._try(operations[:middle])
        again = {one.document for one in first}
        held = [one for one in operations[middle:] if one.document in again]
        free = [one for one in operations[middle:] if one.document not in again]
        second, more = self._try(free)
        return [*first, *held, *second], failure or more

    def _unfinished(
        self, operations: list[DocumentOperation], items: list[dict[str, Any]]
    ) -> tuple[list[DocumentOperation], str]:
        left: list[DocumentOperation] = []
        failure = ""
        again: set[tuple[str, str]] = set()
        refused: list[tuple[DocumentOperation, BaseException]] = []
        for operation, item in zip(operations, items, strict=True):
            [(action, result)] = item.items()
            if operation.document in again:
                # Behind one that is sent again, so that the last one stays the last.
                left.append(operation)
            elif _passes(action, result):
                again.add(operation.document)
                left.append(operation)
                failure = failure or _said(result)
            elif (error := _refusal(action, result, operation)) is not None:
                refused.append((operation, error))
        for operation, error in refused:
            self._report(operation.record, error)
        return left, failure


def _passes(action: str, result: dict[str, Any]) -> bool:
    if result["status"] in PASSING or _kind(result) == _BLOCKED:
        return True
    return action == "update" and result["status"] == 409


def _refusal(
    action: str, result: dict[str, Any], operation: DocumentOperation
) -> BaseException | None:
    status = result["status"]
    if status < 300 or status == 409 or (action == "delete" and status == 404):
        # 409: the document is there already, in this version or a later one.
        return None
    index, document = operation.document
    message = f"Document {document} of index {index} was refused: {_said(result)}"
    if status in {401, 403, 404}:
        hint = "Check that the index exists or may be made, and what the user is allowed to do."
        raise ConnectorConfigError(message, hint=hint)
    hint = "Correct the record or the index's mapping, or let errors.tolerance=all pass it over."
    return RefusedError(message, hint=hint)


def _kind(result: dict[str, Any]) -> str:
    return str((result.get("error") or {}).get("type", ""))


def _said(result: dict[str, Any]) -> str:
    error = result.get("error") or {}
    cause = (error.get("caused_by") or {}).get("reason")
    because = f" ({cause})" if cause else ""
    return f"{result['status']} {error.get('type')}: {error.get('reason')}{because}"


# Lines of a ``_bulk`` request out of records: each record is one operation on one document.

_LONGEST_ID = 512
_TOMBSTONES = "tombstones=delete removes such documents, tombstones=ignore leaves such records out"


@dataclass(frozen=True, slots=True)
class DocumentOperation:
    """What a record does to a document."""

    record: SinkRecord
    #: Index and id.
    document: tuple[str, str]
    lines: bytes


@dataclass(frozen=True, slots=True)
class Operations:
    """Makes operations of records.

    Examples
    --------
    >>> from headrace.connect import Queue
    >>> record = SinkRecord(
    ...     topic="Orders", queue=Queue("Orders", "broker-a", 0), offset=7, value={"n": 1}
    ... )
    >>> print(Operations().of(record).lines.decode(), end="")
    {"index":{"_index":"orders","_id":"Orders+broker-a+0+7"}}
    {"n":1}
    """

    index: str = "{topic}"
    date_format: str = "%Y.%m.%d"
    #: ``index``, ``create`` or ``upsert``.
    write: str = "index"
    #: ``offset`` or ``key``.
    id: str = "offset"
    #: ``delete``, ``ignore`` or ``fail``.
    tombstones: str = "fail"
    #: Whether the offset is the document's version.
    versions: bool = False

    @classmethod
    def of_config(cls, config: Config) -> Operations:
        """Read a sink's config."""
        by_key = config["document.id"] == "key"
        return cls(
            index=config["index"],
            date_format=config["index.date.format"],
            write=config["write"],
            id=config["document.id"],
            tombstones=config["tombstones"],
            versions=by_key and config["write"] == "index" and config["version"] == "offset",
        )

    def of(self, record: SinkRecord) -> DocumentOperation | None:
        """Make the operation of a record; ``None`` where there is none.

        Raises
        ------
        SchemaError
            Where no document can be made of it.
        """
        if record.value is None and self.tombstones == "ignore":
            return None
        index, document = self._index(record), self._id(record)
        where: dict[str, Any] = {"_index": index, "_id": document}
        if self.versions:
            # Versions begin at 1 in some releases, and offsets at 0.
            where |= {"version": record.offset + 1, "version_type": "external"}
        return DocumentOperation(record, (index, document), self._lines(record, where))

    def _lines(self, record: SinkRecord, where: Mapping[str, Any]) -> bytes:
        value = record.value
        if value is None and self.tombstones == "delete":
            return orjson.dumps({"delete": where}) + b"\n"
        if not isinstance(value, Mapping):
            raise _no_document(record)
        document = as_json(value)
        if self.write == "upsert":
            document = b'{"doc":' + document + b',"doc_as_upsert":true}'
            return orjson.dumps({"update": {**where, "retry_on_conflict": 3}}) + _line(document)
        return orjson.dumps({self.write: where}) + _line(document)

    def _index(self, record: SinkRecord) -> str:
        name = self.index.replace("{topic}", record.topic)
        if "{date}" in name:
            name = name.replace("{date}", self._date(record))
        # Names of indices are in small letters; a topic's need not be.
        return name.lower()

    def _date(self, record: SinkRecord) -> str:
        if record.timestamp_ms is None:
            message = f"{place_of(record)} has no time, which the index {self.index} is named by."
            raise SchemaError(message, hint="Leave {date} out of the key index.")
        moment = dt.datetime.fromtimestamp(record.timestamp_ms / 1000, dt.UTC)
        return moment.strftime(self.date_format)

    def _id(self, record: SinkRecord) -> str:
        if self.id == "offset":
            queue = record.queue
            return f"{queue.topic}+{queue.broker}+{queue.queue_id}+{record.offset}"
        if record.key is None:
            message = f"{place_of(record)} has no key, which is the document's id."
            hint = "Give keys with the transform ValueToKey, or set document.id=offset."
            raise SchemaError(message, hint=hint)
        text = as_text(record.key)
        if not 0 < len(text) <= _LONGEST_ID:
            message = f"The key of {place_of(record)} has {len(text)} bytes as a document's id."
            raise SchemaError(message, hint=f"An id has 1 to {_LONGEST_ID} bytes.")
        return text.decode(errors="backslashreplace")


def _line(document: bytes) -> bytes:
    return b"\n" + document + b"\n"


def _no_document(record: SinkRecord) -> SchemaError:
    kind = type(record.value).__name__
    if record.value is None:
        message = f"{place_of(record)} has no value."
        return SchemaError(
            message, hint=f"The key tombstones says what becomes of it: {_TOMBSTONES}."
        )
    return SchemaError(
        f"{place_of(record)} has a value of the type {kind}, and a document has fields.",
        hint="Set value.converter to JsonConverter, or name the value with the transform HoistField.",
    )


class ElasticsearchSinkTask(SinkTask):
    """Sends records as they are put; returns when each is a document or was reported."""

    def start(self, config: Config) -> None:
        """Make a client."""
        self._operations = Operations.of_config(config)
        self._client = cluster_client(config)
        pipeline = config["pipeline"]
        self._client.params = {"pipeline": pipeline} if pipeline else {}
        self._bulk = Bulk(
            self._client,
            cluster_url(config, "_bulk"),
            Retries.of(config),
            stopping=self.context.stopping,
            report=self.context.report,
            most_records=config["request.max.records"],
            most_bytes=config["request.max.bytes"],
        )
        self._progress = Progress({})

    def open(self, queues: Collection[Queue]) -> None:
        """Begin anew: what was sent before may be asked for again, and is the same document."""
        del queues
        self._progress = Progress({})

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Have the records made documents."""
        fresh = self._progress.fresh(records)
        operations: list[DocumentOperation] = []
        for record in fresh:
            try:
                operation = self._operations.of(record)
            except (SchemaError, TypeError) as error:
                self.context.report(record, error)
            else:
                operations += [operation] if operation else []
        self._bulk.send(operations)
        self._progress.take(fresh)

    def stop(self) -> None:
        """Close the connections."""
        if made := getattr(self, "_client", None):
            made.close()


class ElasticsearchSinkConnector(SinkConnector):
    """Writes records as documents of Elasticsearch or OpenSearch."""

    version = "1.0"
    task = ElasticsearchSinkTask
    config: ClassVar[ConfigDeclaration] = CLUSTER_KEYS | declare(
        key(
            "index",
            str,
            "The index, alias or data stream; {topic} and {date} are filled in, and all is in "
            "small letters.",
            default="{topic}",
        ),
        key(
            "index.date.format",
            str,
            "What {date} is: the record's time in UTC, as strftime writes it.",
            default="%Y.%m.%d",
        ),
        key(
            "write",
            str,
            "What a record does: index puts the document in the place of an earlier one, "
            "create keeps the earlier one, upsert sets the fields that it has.",
            default="index",
            valid=one_of("index", "create", "upsert"),
        ),
        key(
            "document.id",
            str,
            "What the document's id is: the record's place (topic, queue and offset), which "
            "makes a document of each record, or its key.",
            default="offset",
            valid=one_of("offset", "key"),
        ),
        key(
            "version",
            str,
            "With document.id=key and write=index: offset gives documents the offset as their "
            "version, so that no earlier record ever takes a later one's place; none does not.",
            default="offset",
            valid=one_of("offset", "none"),
        ),
        key(
            "tombstones",
            str,
            "What a record without a value does: delete removes its key's document, ignore "
            "leaves it out, fail takes it for a bad record.",
            default="fail",
            valid=one_of("delete", "ignore", "fail"),
        ),
        key("pipeline", str, "The ingest pipeline that documents pass."),
        key(
            "request.max.records",
            int,
            "Most records of a request.",
            default=1000,
            valid=between(1, 100_000),
        ),
        key(
            "request.max.bytes",
            Size,
            "Most bytes of a request, unless one record has more.",
            default=5 << 20,
            valid=at_least(1),
        ),
    )

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if config["tombstones"] == "delete" and config["document.id"] != "key":
            message = "tombstones=delete needs document.id=key: a deletion names what it deletes."
            yield ConfigProblem("tombstones", message)
        yield from cluster_problems(config)
