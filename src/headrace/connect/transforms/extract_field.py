"""ExtractField: a field in place of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key, one_of
from headrace.connect.transforms._field_path import (
    field_path,
    schema_at,
    value_in_map,
    value_in_struct,
)
from headrace.connect.transforms._structure import REPLACE_NULLS, need_map, need_struct
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord
    from headrace.connect.schema import Schema


_PURPOSE = "ExtractField"


class ExtractField(SidedTransform):
    """Puts one field in the place of the whole key or value.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = ExtractFieldValue()
    >>> texts = {"field": "user.name", "field.syntax.version": "V2"}
    >>> transform.configure(ExtractField.config.parse(texts))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"user": {"name": "Ann"}})
    >>> transform.apply(record).value
    'Ann'
    """

    config = declare(
        key("field", str, "The field to extract.", required=True),
        REPLACE_NULLS,
        key(
            "field.syntax.version",
            str,
            "V1: the field is a name. V2: it is a path such as a.b, with backticks around a name "
            "that has a dot.",
            default="V1",
            valid=one_of("V1", "V2", ignore_case=True),
            importance="high",
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._path = field_path(config["field"], config["field.syntax.version"])
        self._replace_nulls = config["replace.null.with.default"]

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Return the field."""
        del record
        if schema is None:
            mapped = None if value is None else need_map(value, _PURPOSE)
            return None, None if mapped is None else value_in_map(mapped, self._path, _PURPOSE)
        if value is not None:
            need_struct(schema, value, _PURPOSE)
        found = schema_at(schema, self._path)
        if found is None:
            there = ", ".join(schema.by_name) or "none"
            raise TransformError(
                f"There is no field {'.'.join(self._path)} to extract.", hint=f"There are: {there}."
            )
        if value is None:
            return found, None
        replace_nulls = self._replace_nulls
        return found, value_in_struct(value, schema, self._path, replace_nulls=replace_nulls)


ExtractFieldKey, ExtractFieldValue = both_sides(ExtractField)
