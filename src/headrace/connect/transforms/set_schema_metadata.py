"""SetSchemaMetadata: another name or version for the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key
from headrace.connect.schema import Schema, Type
from headrace.connect.transforms._structure import REPLACE_NULLS, SchemaCache, field_values
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class SetSchemaMetadata(SidedTransform):
    """Sets the name of the schema of the key or value, its version, or both.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> from headrace.connect.schema import STRING, struct
    >>> transform = SetSchemaMetadataValue()
    >>> transform.configure(SetSchemaMetadata.config.parse({"schema.name": "user"}))
    >>> schema = struct({"name": STRING})
    >>> value = {"name": "Ann"}
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value=value, value_schema=schema)
    >>> transform.apply(record).value_schema
    struct user {name: string}
    """

    config = declare(
        key("schema.name", str, "The name.", importance="high"),
        key("schema.version", int, "The version.", importance="high"),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        wanted = {"name": config["schema.name"], "version": config["schema.version"]}
        self._changes = {name: one for name, one in wanted.items() if one is not None}
        if not self._changes:
            raise ValueError("SetSchemaMetadata has nothing to set: give a name or a version.")
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(lambda schema: schema.changed(**self._changes))

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Change the schema."""
        del record
        if schema is None:
            if value is None:
                return None, None
            raise TransformError(
                f"The {self.side} has no schema that could get a name or a version.",
                hint="Use a converter that gives schemas, such as JsonConverter with "
                "schemas.enable=true.",
            )
        if schema.type is Type.STRUCT and value is not None:
            value = field_values(value, schema, replace_nulls=self._replace_nulls)
        return self._schemas[schema], value


SetSchemaMetadataKey, SetSchemaMetadataValue = both_sides(SetSchemaMetadata)
