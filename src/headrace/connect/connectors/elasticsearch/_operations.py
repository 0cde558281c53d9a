"""Lines of a ``_bulk`` request out of records: each record is one operation on one document."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.connect import Config, SchemaError, SinkRecord
from headrace.connect.connectors.texts import as_json, as_text

__all__ = ["Operation", "Operations"]

_LONGEST_ID = 512
_TOMBSTONES = "tombstones=delete removes such documents, tombstones=ignore leaves such records out"


@dataclass(frozen=True, slots=True)
class Operation:
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

    def of(self, record: SinkRecord) -> Operation | None:
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
        return Operation(record, (index, document), self._lines(record, where))

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
            message = f"{_named(record)} has no time, which the index {self.index} is named by."
            raise SchemaError(message, hint="Leave {date} out of the key index.")
        moment = dt.datetime.fromtimestamp(record.timestamp_ms / 1000, dt.UTC)
        return moment.strftime(self.date_format)

    def _id(self, record: SinkRecord) -> str:
        if self.id == "offset":
            queue = record.queue
            return f"{queue.topic}+{queue.broker}+{queue.queue_id}+{record.offset}"
        if record.key is None:
            message = f"{_named(record)} has no key, which is the document's id."
            hint = "Give keys with the transform ValueToKey, or set document.id=offset."
            raise SchemaError(message, hint=hint)
        text = as_text(record.key)
        if not 0 < len(text) <= _LONGEST_ID:
            message = f"The key of {_named(record)} has {len(text)} bytes as a document's id."
            raise SchemaError(message, hint=f"An id has 1 to {_LONGEST_ID} bytes.")
        return text.decode(errors="backslashreplace")


def _line(document: bytes) -> bytes:
    return b"\n" + document + b"\n"


def _named(record: SinkRecord) -> str:
    queue = record.queue
    return f"record {record.offset} of queue {queue.queue_id} of topic {queue.topic}"


def _no_document(record: SinkRecord) -> SchemaError:
    kind = type(record.value).__name__
    if record.value is None:
        message = f"{_named(record)} has no value."
        return SchemaError(
            message, hint=f"The key tombstones says what becomes of it: {_TOMBSTONES}."
        )
    return SchemaError(
        f"{_named(record)} has a value of the type {kind}, and a document has fields.",
        hint="Set value.converter to JsonConverter, or name the value with the transform HoistField.",
    )
