"""ReplaceField: keeps, leaves out and renames fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key
from headrace.connect.schema import Field, Schema
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    field_values,
    need_map,
    need_struct,
    rebuilt,
)
from headrace.connect.transforms.base import SidedTransform, both_sides

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_PURPOSE = "ReplaceField"


class ReplaceField(SidedTransform):
    """Keeps the fields that are included and not excluded, and gives them new names.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = ReplaceFieldValue()
    >>> transform.configure(ReplaceField.config.parse({"exclude": "b", "renames": "a:x"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"a": 1, "b": 2, "c": 3})
    >>> transform.apply(record).value
    {'x': 1, 'c': 3}
    """

    config = declare(
        key("exclude", list[str], "Fields to leave out, whatever include says.", default=[]),
        key("include", list[str], "The only fields to keep.", default=[]),
        key("renames", list[str], "New names, such as foo:bar,abc:xyz.", default=[]),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._exclude = frozenset(config["exclude"])
        self._include = frozenset(config["include"])
        self._names = dict(_pair(one) for one in config["renames"])
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._changed)

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Keep and rename the fields."""
        del record
        if value is None:
            return schema, value
        if schema is None:
            return None, self._mapped(need_map(value, _PURPOSE))
        struct = need_struct(schema, value, _PURPOSE)
        values = field_values(struct, schema, replace_nulls=self._replace_nulls)
        return self._schemas[schema], self._mapped(values)

    def _keeps(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def _mapped(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        return {
            self._names.get(name, name): one for name, one in value.items() if self._keeps(name)
        }

    def _changed(self, schema: Schema) -> Schema:
        fields = (
            Field(self._names.get(one.name, one.name), one.schema)
            for one in schema.fields
            if self._keeps(one.name)
        )
        return rebuilt(schema, tuple(fields))


ReplaceFieldKey, ReplaceFieldValue = both_sides(ReplaceField)


def _pair(text: str) -> tuple[str, str]:
    old, colon, new = text.partition(":")
    if not colon or ":" in new or not old.strip() or not new.strip():
        raise ValueError(f"renames has {text!r}: write old:new, with commas between.")
    return old.strip(), new.strip()
