"""Flatten: structs within structs become fields of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key
from headrace.connect.schema import NO_DEFAULT, Field, Schema, Type
from headrace.connect.transforms._structure import (
    SchemaCache,
    field_value,
    need_map,
    need_struct,
    rebuilt,
)
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_PURPOSE = "Flatten"


class Flatten(SidedTransform):
    """Joins the names of nested fields; lists stay as they are.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = FlattenValue()
    >>> transform.configure(Flatten.config.parse({"delimiter": "_"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"a": {"b": 1}, "c": 2})
    >>> transform.apply(record).value
    {'a_b': 1, 'c': 2}
    """

    config = declare(
        key("delimiter", str, "What stands between the joined names.", default="."),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._delimiter: str = config["delimiter"]
        self._schemas = SchemaCache(self._flat)

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Flatten the value."""
        del record
        if value is None:
            return schema, value
        if schema is None:
            return None, dict(self._items(need_map(value, _PURPOSE), ""))
        struct = need_struct(schema, value, _PURPOSE)
        return self._schemas[schema], dict(self._values(struct, schema, ""))

    def _items(self, value: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, one in value.items():
            full = f"{prefix}{name}"
            if isinstance(one, dict):
                yield from self._items(one, full + self._delimiter)
            else:
                yield full, one

    def _values(
        self, value: dict[str, Any] | None, schema: Schema, prefix: str
    ) -> Iterator[tuple[str, Any]]:
        for field in schema.fields:
            one = None if value is None else field_value(value, field, replace_nulls=True)
            full = prefix + field.name
            if field.schema.type is Type.STRUCT:
                yield from self._values(one, field.schema, full + self._delimiter)
            else:
                yield full, one

    def _flat(self, schema: Schema) -> Schema:
        default = schema.default if isinstance(schema.default, dict) else None
        fields = self._fields(schema, "", default, optional=schema.optional)
        flat = rebuilt(schema, tuple(fields)).changed(optional=schema.optional)
        if default is None:
            return flat
        return flat.with_default(dict(self._values(default, schema, "")))

    def _fields(
        self, schema: Schema, prefix: str, default: dict[str, Any] | None, *, optional: bool
    ) -> Iterator[Field]:
        """Yield the fields; below an optional struct all are optional."""
        for field in schema.fields:
            one, full = field.schema, prefix + field.name
            if one.type is Type.MAP:
                raise TransformError(
                    f"Flatten cannot flatten the map {full} of a struct: its keys are not known.",
                    hint="Leave the field out with ReplaceField and exclude.",
                )
            inner = optional or one.optional
            own = one.default if one.default not in (NO_DEFAULT, None) else None
            fallback = own if default is None else default.get(field.name, own)
            if one.type is Type.STRUCT:
                yield from self._fields(one, full + self._delimiter, fallback, optional=inner)
            else:
                changes: dict[str, Any] = {} if fallback is None else {"default": fallback}
                yield Field(full, one.changed(optional=inner, **changes))


FlattenKey, FlattenValue = both_sides(Flatten)
