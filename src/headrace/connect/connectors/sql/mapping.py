"""How a record becomes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from headrace.connect import Config, Schema, SchemaError, SinkRecord
from headrace.connect.connectors.sql.changes import Change
from headrace.connect.connectors.sql.layouts import (
    Column,
    TableName,
    inferred_schema,
    table_name,
)
from headrace.connect.schema import INT32, INT64, STRING, Type

__all__ = ["COORDINATES", "MappingOptions", "RowMapper"]

#: Columns of a key that says where a record stands.
COORDINATES = ("__connect_topic", "__connect_broker", "__connect_queue", "__connect_offset")
_COORDINATE_TYPES = (STRING, STRING, INT32, INT64)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """What decides how records become rows."""

    table: str = "${topic}"
    pk_mode: str = "none"
    pk_fields: tuple[str, ...] = ()
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    delete: bool = False

    @classmethod
    def of(cls, config: Config) -> MappingOptions:
        """Read them from a sink's config."""
        mode = config["pk.mode"]
        return cls(
            table=config["table.name.format"],
            pk_mode="coordinates" if mode == "kafka" else mode,
            pk_fields=tuple(config["pk.fields"]),
            include=frozenset(config["fields.include"]),
            exclude=frozenset(config["fields.exclude"]),
            delete=config["delete.enabled"],
        )


@dataclass(slots=True)
class RowMapper:
    """Turns records into changes of rows.

    Raises
    ------
    SchemaError
        By :meth:`change`, for a record that cannot be a row.
    """

    options: MappingOptions
    _tables: dict[str, TableName] = field(default_factory=dict)
    #: What to take out of a value with these fields, for a key with those columns.
    _shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], _Shape] = field(default_factory=dict)

    def change(self, record: SinkRecord) -> Change:
        """Say what a record does to which row."""
        topic = record.topic
        table = self._tables.get(topic)
        if table is None:
            table = self._tables[topic] = table_name(self.options.table, topic)
        if record.value is None:
            return self._delete(table, record)
        value = _fields(record.value, record, "value")
        keys, key = self._key(record, value)
        shape = self._shape(keys, tuple(value))
        return Change(table, keys, shape.columns, key + shape.values(value), False, record)  # noqa: FBT003

    def columns(self, change: Change) -> list[Column]:
        """Say what columns a change writes to, as far as the record tells their types."""
        record = change.record
        value = _by_field(record.value_schema)
        key = self._key_schemas(record, change, value)
        found = []
        for name, cell in zip(change.columns, change.row, strict=True):
            is_key = name in change.keys
            schema = (key if is_key else value).get(name) or inferred_schema(cell)
            if schema is not None:
                found.append(Column(name, schema.as_required() if is_key else schema, is_key))
        return found

    def _delete(self, table: TableName, record: SinkRecord) -> Change:
        if not self.options.delete:
            raise SchemaError(
                f"{_place(record)} has no value, which would delete a row.",
                hint="Set delete.enabled=true, or drop such records with the transform Filter.",
            )
        keys, key = self._record_key(record)
        return Change(table, keys, keys, key, True, record)  # noqa: FBT003

    def _key(self, record: SinkRecord, value: Mapping[str, Any]) -> tuple[tuple[str, ...], Row]:
        mode = self.options.pk_mode
        if mode == "none":
            return (), ()
        if mode == "record_key":
            return self._record_key(record)
        if mode == "coordinates":
            queue = record.queue
            names = self.options.pk_fields or COORDINATES
            return names, (queue.topic, queue.broker, queue.queue_id, record.offset)
        names = self.options.pk_fields
        return names, _picked(names, value, record, "value")

    def _record_key(self, record: SinkRecord) -> tuple[tuple[str, ...], Row]:
        names, key = self.options.pk_fields, record.key
        if key is None:
            raise SchemaError(
                f"{_place(record)} has no key, and pk.mode=record_key takes the row's key from it.",
                hint="Set keys where the records are made, or use the transform ValueToKey.",
            )
        if isinstance(key, Mapping):
            names = names or tuple(key)
            return names, _picked(names, key, record, "key")
        if len(names) != 1:
            raise SchemaError(
                f"{_place(record)} has the single value {key!r:.100} for a key, and pk.fields names"
                f" {len(names)} columns.",
                hint="Set pk.fields to the one column that takes the key.",
            )
        return names, (key,)

    def _shape(self, keys: tuple[str, ...], fields: tuple[str, ...]) -> _Shape:
        found = self._shapes.get((keys, fields))
        if found is None:
            include, exclude = self.options.include, self.options.exclude
            others = tuple(
                name
                for name in fields
                if name not in keys and (not include or name in include) and name not in exclude
            )
            found = self._shapes[keys, fields] = _Shape(keys + others, _taker(others))
        return found

    def _key_schemas(
        self, record: SinkRecord, change: Change, value: Mapping[str, Schema]
    ) -> Mapping[str, Schema]:
        if self.options.pk_mode == "coordinates":
            return dict(zip(change.keys, _COORDINATE_TYPES, strict=True))
        if self.options.pk_mode == "record_value":
            return value
        schema = record.key_schema
        if schema is not None and schema.type is not Type.STRUCT and len(change.keys) == 1:
            return {change.keys[0]: schema}
        return _by_field(schema)


@dataclass(frozen=True, slots=True)
class _Shape:
    columns: tuple[str, ...]
    values: Callable[[Mapping[str, Any]], Row]


def _taker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Row]:
    if not names:
        return lambda _: ()
    if len(names) == 1:
        name = names[0]
        return lambda value: (value[name],)
    return itemgetter(*names)


def _by_field(schema: Schema | None) -> Mapping[str, Schema]:
    if schema is None or schema.type is not Type.STRUCT:
        return {}
    return {one.name: one.schema for one in schema.fields}


def _fields(value: Any, record: SinkRecord, part: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise SchemaError(
        f"{_place(record)}: its {part} is {type(value).__name__} {value!r:.100}, and a row needs"
        " named fields.",
        hint="Choose a converter that gives structs or maps, or use the transform HoistField.",
    )


def _picked(names: Iterable[str], values: Mapping[str, Any], record: SinkRecord, part: str) -> Row:
    found = tuple(values.get(name) for name in names)
    for name, one in zip(names, found, strict=True):
        if one is None:
            raise SchemaError(
                f"{_place(record)}: field {name!r} of its {part}, which pk.fields names, is"
                " missing or null.",
                hint=f"The {part} has the fields {', '.join(map(str, values)) or 'none'}.",
            )
        if isinstance(one, dict | list):
            raise SchemaError(
                f"{_place(record)}: field {name!r} of its {part} is a {type(one).__name__}, which"
                " cannot be part of a primary key.",
                hint="Name another field in pk.fields.",
            )
    return found


def _place(record: SinkRecord) -> str:
    queue = record.queue
    return f"Record {record.offset} of queue {queue.queue_id} of topic {queue.topic}"
