"""HeaderFrom: headers out of fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.connect.config import Config, declare, key, not_empty, one_of
from headrace.connect.records import Header
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    field_values,
    need_map,
    need_struct,
    rebuilt,
)
from headrace.connect.transforms.base import Record, Transform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.schema import Schema


_PURPOSE = "HeaderFrom"

# The schema and value of what is left, and the new headers.
_Taken: TypeAlias = "tuple[Schema | None, dict[Any, Any], list[Header]]"


class HeaderFrom(Transform):
    """Copies or moves fields of the key or value into headers.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = HeaderFromValue()
    >>> texts = {"fields": "trace", "headers": "x-trace", "operation": "move"}
    >>> transform.configure(HeaderFrom.config.parse(texts))
    >>> value = {"trace": "1", "id": 7}
    >>> record = transform.apply(SourceRecord(partition={}, offset={}, topic="t", value=value))
    >>> record.value, record.headers
    ({'id': 7}, (Header(key='x-trace', value='1', schema=None),))
    """

    #: ``key`` or ``value``.
    side: str

    config = declare(
        key("fields", list[str], "The fields.", required=True, valid=not_empty()),
        key(
            "headers",
            list[str],
            "The names of their headers, in the same order.",
            required=True,
            valid=not_empty(),
        ),
        key(
            "operation",
            str,
            "Whether the fields are gone afterwards (move) or not (copy).",
            required=True,
            valid=one_of("move", "copy"),
        ),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._fields: list[str] = config["fields"]
        self._headers: list[str] = config["headers"]
        if len(self._fields) != len(self._headers):
            raise ValueError("fields and headers must be equally long: a header for each field.")
        self._gone = frozenset(self._fields if config["operation"] == "move" else ())
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._rest)

    def apply(self, record: Record) -> Record:
        """Add the headers."""
        on_key = self.side == "key"
        schema = record.key_schema if on_key else record.value_schema
        value = record.key if on_key else record.value
        taken: _Taken = self._taken(schema, value)
        changed, rest, headers = taken[0], taken[1], (*record.headers, *taken[2])
        if on_key:
            return record.replace(key_schema=changed, key=rest, headers=headers)
        return record.replace(value_schema=changed, value=rest, headers=headers)

    def _taken(self, schema: Schema | None, value: Any) -> _Taken:
        pairs = list(zip(self._fields, self._headers, strict=True))
        if schema is None:
            mapped = need_map(value, _PURPOSE)
            added = [Header(header, mapped.get(name)) for name, header in pairs]
            rest = {name: one for name, one in mapped.items() if name not in self._gone}
            return None, rest, added
        struct = need_struct(schema, value, _PURPOSE)
        changed = self._schemas[schema]
        values = field_values(struct, schema, replace_nulls=self._replace_nulls)
        added = [
            Header(header, values[name], schema.by_name[name].schema) for name, header in pairs
        ]
        rest = {name: values[name] for name in changed.by_name} if self._gone else struct
        return changed, rest, added

    def _rest(self, schema: Schema) -> Schema:
        for name in self._fields:
            if name not in schema.by_name:
                raise TransformError(
                    f"The {self.side} has no field {name} for a header.",
                    hint=f"It has: {', '.join(schema.by_name) or 'none'}.",
                )
        if not self._gone:
            return schema
        return rebuilt(schema, tuple(one for one in schema.fields if one.name not in self._gone))


HeaderFromKey, HeaderFromValue = both_sides(HeaderFrom)
