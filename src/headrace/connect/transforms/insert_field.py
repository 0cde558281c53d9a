"""InsertField: adds fields with the topic, the queue, the offset, the time, or a fixed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.connect.config import Config, declare, key
from headrace.connect.records import SinkRecord, SourceRecord
from headrace.connect.schema import INT32, INT64, STRING, TIMESTAMP, TIMESTAMP_NAME, Field, Schema
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    field_values,
    need_map,
    need_struct,
    rebuilt,
)
from headrace.connect.transforms._times import datetime_of
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

_PURPOSE = "InsertField"
_AnyRecord = SourceRecord | SinkRecord
_SUFFIX = "With ! at its end it is required, with ? or nothing optional."


class _Insertion(NamedTuple):
    name: str
    schema: Schema
    value: Callable[[_AnyRecord], Any]


class InsertField(SidedTransform):
    """Adds fields that say where a record comes from.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = InsertFieldValue()
    >>> transform.configure(InsertField.config.parse({"topic.field": "from"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="orders", value={"id": 1})
    >>> transform.apply(record).value
    {'id': 1, 'from': 'orders'}
    """

    config = declare(
        key("topic.field", str, f"The field for the topic. {_SUFFIX}"),
        key("partition.field", str, f"The field for the number of the queue. {_SUFFIX}"),
        key("offset.field", str, f"The field for the offset, in sinks only. {_SUFFIX}"),
        key("timestamp.field", str, f"The field for the record's time. {_SUFFIX}"),
        key("static.field", str, f"The field for a text that never changes. {_SUFFIX}"),
        key("static.value", str, "That text."),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        text = config["static.value"]
        wanted: list[tuple[str, Schema, Callable[[_AnyRecord], Any]]] = [
            ("topic.field", STRING, lambda record: record.topic),
            ("partition.field", INT32, _queue),
            ("offset.field", INT64, _offset),
            ("timestamp.field", TIMESTAMP, lambda record: record.timestamp_ms),
            ("static.field", STRING, lambda _: text),
        ]
        self._insertions = [
            _insertion(config[name], schema, value)
            for name, schema, value in wanted
            if config[name] is not None
        ]
        if not self._insertions:
            raise ValueError("InsertField has no field to insert: set topic.field or another.")
        if config["static.field"] is not None and text is None:
            raise ValueError("static.field needs static.value.")
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._extended)

    def change(
        self, record: _AnyRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Add the fields."""
        if value is None:
            return schema, value
        if schema is None:
            # There is no field for what a record has not, and a time is a number as in JSON.
            values = {name: one for name, one in self._values(record).items() if one is not None}
            return None, dict(need_map(value, _PURPOSE)) | values
        struct = need_struct(schema, value, _PURPOSE)
        kept = field_values(struct, schema, replace_nulls=self._replace_nulls)
        extended = self._schemas[schema]
        return extended, kept | self._typed(self._values(record))

    def _extended(self, schema: Schema) -> Schema:
        added = tuple(Field(one.name, one.schema) for one in self._insertions)
        return rebuilt(schema, schema.fields + added)

    def _typed(self, values: dict[str, Any]) -> dict[str, Any]:
        for one in self._insertions:
            if one.schema.name == TIMESTAMP_NAME and values[one.name] is not None:
                values[one.name] = datetime_of(values[one.name])
        return values

    def _values(self, record: _AnyRecord) -> dict[str, Any]:
        values = {one.name: one.value(record) for one in self._insertions}
        for one in self._insertions:
            if values[one.name] is None and not one.schema.optional:
                raise TransformError(
                    f"The field {one.name} is required, and the record has no value for it.",
                    hint=f"Make it optional: write {one.name} without the !.",
                )
        return values


InsertFieldKey, InsertFieldValue = both_sides(InsertField)


def _insertion(name: str, schema: Schema, value: Callable[[_AnyRecord], Any]) -> _Insertion:
    if name.endswith("!"):
        return _Insertion(name[:-1], schema, value)
    return _Insertion(name.removesuffix("?"), schema.as_optional(), value)


def _queue(record: _AnyRecord) -> int | None:
    return record.queue.queue_id if isinstance(record, SinkRecord) else record.queue


def _offset(record: _AnyRecord) -> int:
    if not isinstance(record, SinkRecord):
        raise TransformError(
            "offset.field works in sinks only: a record has no offset before it is in its topic.",
            hint="Leave offset.field out.",
        )
    return record.offset
