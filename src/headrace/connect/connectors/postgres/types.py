"""PostgreSQL's types and Connect's, both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

from headrace.connect.connectors.sql import is_document
from headrace.connect.schema import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME, Type

if TYPE_CHECKING:
    from headrace.connect import Schema

__all__ = ["JSON_NAME", "UUID_NAME", "column_type", "value_adapter"]

#: Names of strings that say more than their type does.
JSON_NAME = "headrace.Json"
UUID_NAME = "headrace.Uuid"

_BY_NAME: Mapping[str, str] = {
    DECIMAL_NAME: "numeric",
    DATE_NAME: "date",
    TIME_NAME: "time",
    TIMESTAMP_NAME: "timestamp with time zone",
    JSON_NAME: "jsonb",
    UUID_NAME: "uuid",
}
_BY_TYPE: Mapping[Type, str] = {
    Type.INT8: "smallint",
    Type.INT16: "smallint",
    Type.INT32: "integer",
    Type.INT64: "bigint",
    Type.FLOAT32: "real",
    Type.FLOAT64: "double precision",
    Type.BOOLEAN: "boolean",
    Type.STRING: "text",
    Type.BYTES: "bytea",
}


def column_type(schema: Schema) -> str:
    """Give the type of a column for values of a schema.

    >>> from headrace.connect.schema import INT64, array, decimal
    >>> column_type(decimal(2)), column_type(array(INT64))
    ('numeric', 'bigint[]')
    """
    if is_document(schema):
        return "jsonb"
    if schema.type is Type.ARRAY and schema.items is not None:
        return f"{column_type(schema.items)}[]"
    return _BY_NAME.get(schema.name or "") or _BY_TYPE[schema.type]


def value_adapter(kind: str) -> Callable[[Any], Any] | None:
    """Give what turns a value into one for a column of this type; ``None``: it is one already."""
    if kind in {"json", "jsonb"}:
        return _document
    if kind in {"text", "character varying", "character"}:
        return _text
    return None


def _document(value: Any) -> Any:
    # A string is a document already, as the source of this package and most others write it.
    return value if isinstance(value, str) else _dumps(value)


def _text(value: Any) -> Any:
    return _dumps(value) if isinstance(value, dict | list) else value


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    message = f"a {type(value).__name__} has no place in a JSON document"
    raise TypeError(message)
