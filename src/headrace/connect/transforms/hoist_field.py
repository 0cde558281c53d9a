"""HoistField: the whole becomes a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.schema import Field, Schema, Type
from headrace.connect.transforms._structure import SchemaCache
from headrace.connect.transforms.base import SidedTransform, both_sides

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class HoistField(SidedTransform):
    """Wraps the key or value: it becomes the one field of a struct, or of a map without schema.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = HoistFieldValue()
    >>> transform.configure(HoistField.config.parse({"field": "line"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value="hello")
    >>> transform.apply(record).value
    {'line': 'hello'}
    """

    config = declare(
        key("field", str, "The name of the one field.", required=True, valid=not_empty()),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._field: str = config["field"]
        self._schemas = SchemaCache(self._struct)

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Wrap the value."""
        del record
        return schema and self._schemas[schema], {self._field: value}

    def _struct(self, schema: Schema) -> Schema:
        return Schema(Type.STRUCT, fields=(Field(self._field, schema),))


HoistFieldKey, HoistFieldValue = both_sides(HoistField)
