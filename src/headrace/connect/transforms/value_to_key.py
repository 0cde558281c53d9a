"""ValueToKey: a new key out of fields of the value."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.schema import Field, Schema, Type
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    field_value,
    need_map,
    need_struct,
)
from headrace.connect.transforms.base import Record, Transform
from headrace.errors import TransformError

_PURPOSE = "ValueToKey"


class ValueToKey(Transform):
    """Makes the key a struct, or a map, of these fields of the value.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = ValueToKey()
    >>> transform.configure(ValueToKey.config.parse({"fields": "id"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"id": 1, "b": 2})
    >>> transform.apply(record).key
    {'id': 1}
    """

    config = declare(
        key("fields", list[str], "The fields of the key.", required=True, valid=not_empty()),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._fields: list[str] = config["fields"]
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._key_schema)

    def apply(self, record: Record) -> Record:
        """Set the key."""
        schema = record.value_schema
        if schema is None:
            mapped = need_map(record.value, _PURPOSE)
            made = {name: mapped.get(name) for name in self._fields}
            return record.replace(key_schema=None, key=made)
        struct = need_struct(schema, record.value, _PURPOSE)
        key_schema = self._schemas[schema]
        values = {
            name: field_value(struct, schema.by_name[name], replace_nulls=self._replace_nulls)
            for name in self._fields
        }
        return record.replace(key_schema=key_schema, key=values)

    def _key_schema(self, schema: Schema) -> Schema:
        for name in self._fields:
            if name not in schema.by_name:
                raise TransformError(
                    f"The value has no field {name} for the key.",
                    hint=f"It has: {', '.join(schema.by_name) or 'none'}.",
                )
        fields = (Field(name, schema.by_name[name].schema) for name in self._fields)
        return Schema(Type.STRUCT, fields=tuple(fields))
