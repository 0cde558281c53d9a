"""Values as text, as Kafka Connect's StringConverter and SimpleHeaderConverter write them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from headrace.connect.converters.steps import UnfitError, kind_of
from headrace.connect.numbers import float_text
from headrace.connect.schema import Schema, Type


def text_of(schema: Schema | None, value: Any) -> str:
    """Write a value as the text that Kafka Connect's StringConverter makes of it.

    Times are written as ISO 8601 has them and floats as Python does, and bytes are refused: Java
    shows times without their milliseconds, and bytes as their place in memory.

    >>> text_of(None, {"a": 1, "b": [True, None]})
    '{a=1, b=[true, null]}'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _mapping_text(schema, value)
    if isinstance(value, list | tuple):
        items = None if schema is None else schema.items
        return f"[{', '.join(text_of(items, one) for one in value)}]"
    if isinstance(value, bytes | bytearray | memoryview):
        reason = "it makes text, and these are bytes"
        raise UnfitError(reason, hint="use BytesConverter, or JsonConverter for bytes inside")
    return _scalar_text(schema, value)


def _mapping_text(schema: Schema | None, value: Mapping[Any, Any]) -> str:
    if schema is not None and schema.type is Type.STRUCT:
        fields = (
            f"{field.name}={text_of(field.schema, value[field.name])}"
            for field in schema.fields
            if value.get(field.name) is not None
        )
        return f"Struct{{{','.join(fields)}}}"
    keys, items = (None, None) if schema is None else (schema.keys, schema.items)
    return f"{{{', '.join(f'{text_of(keys, k)}={text_of(items, v)}' for k, v in value.items())}}}"


def _scalar_text(schema: Schema | None, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        return float_text(value, is_single=schema is not None and schema.type is Type.FLOAT32)
    if isinstance(value, date | time):
        return moment_text(value)
    reason = f"it has no text for {kind_of(value)}"
    raise UnfitError(reason)


def moment_text(value: date | time) -> str:
    """Write a date, a time or a timestamp with the milliseconds, in UTC.

    >>> moment_text(datetime(2020, 9, 13, 12, 26, 40, 123456, tzinfo=UTC))
    '2020-09-13T12:26:40.123Z'
    >>> moment_text(date(2020, 9, 13)), moment_text(time(4, 5))
    ('2020-09-13', '04:05:00.000Z')
    """
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='milliseconds')}Z"
    if isinstance(value, time):
        return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    return value.isoformat()


def header_text(schema: Schema | None, value: Any) -> str:
    r"""Write a value as Kafka Connect's SimpleHeaderConverter does.

    >>> header_text(None, {"a": [1, None, 'x"y']})
    '{"a":[1,null,"x\\"y"]}'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return _header_mapping(schema, value)
    if isinstance(value, list | tuple):
        items = None if schema is None else schema.items
        return f"[{_joined(_embedded(items, one) for one in value)}]"
    return _scalar_text(schema, value)


def _header_mapping(schema: Schema | None, value: Mapping[Any, Any]) -> str:
    pairs: list[tuple[Schema | None, Any, Schema | None, Any]]
    if schema is not None and schema.type is Type.STRUCT:
        pairs = [(None, one.name, one.schema, _field(value, one)) for one in schema.fields]
    else:
        keys, items = (None, None) if schema is None else (schema.keys, schema.items)
        pairs = [(keys, name, items, item) for name, item in value.items()]
    return f"{{{_joined(f'{_embedded(a, b)}:{_embedded(c, d)}' for a, b, c, d in pairs)}}}"


def _field(value: Mapping[Any, Any], field: Any) -> Any:
    found = value.get(field.name)
    return field.schema.default if found is None and field.schema.has_default else found


def _embedded(schema: Schema | None, value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bytes | bytearray | memoryview):
        return f'"{base64.b64encode(value).decode()}"'
    return header_text(schema, value)


def _joined(texts: Iterable[str]) -> str:
    return ",".join(texts)
