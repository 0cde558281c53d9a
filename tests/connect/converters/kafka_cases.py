"""What Kafka Connect's own converters do, as case files: see cases/README.md for how they are made.

Values in the files carry their Java type; here they become the Python values that stand for them.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from headrace.connect.converters import Converter
from headrace.connect.schema import (
    DATE_NAME,
    NO_DEFAULT,
    TIME_NAME,
    TIMESTAMP_NAME,
    Field,
    Schema,
    Type,
)

__all__ = [
    "UnrepresentableError",
    "as_python",
    "body_of",
    "cases",
    "name_of",
    "schema_of",
    "value_of",
]

_FOLDER = Path(__file__).parent / "cases"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000
_NAMES = {"float32": "float", "float64": "double"}
_NUMBERS = {"int8", "int16", "int32", "int64", "float32", "float64", "float", "double"}


class UnrepresentableError(Exception):
    """Java's value has no twin in Python, such as a date that is no whole day."""


def as_python(text: bytes | None) -> bytes | None:
    """Write the floats in a text as Python does: fewer of them have an exponent."""
    java = rb"-?\d\.\d+E-?\d+|-?Infinity|NaN"
    return text and re.sub(java, lambda found: repr(float(found[0])).encode(), text)


def cases(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((_FOLDER / f"{file}.json").read_text())
    return found


def name_of(case: dict[str, Any]) -> str:
    """A case's name in a test's output: what goes in, and the config."""
    told = {one: case[one] for one in ("schema", "value", "text", "base64") if one in case}
    config = ",".join(case["config"].values())
    return f"{case['converter']}-{case['do']}-{config}-{json.dumps(told)[:100]}"


def schema_of(told: dict[str, Any] | None) -> Schema | None:
    if told is None:
        return None
    schema = Schema(
        Type(_NAMES.get(told["type"], told["type"])),
        optional=told.get("optional", False),
        name=told.get("name"),
        version=told.get("version"),
        doc=told.get("doc"),
        parameters=told.get("parameters", {}),
        fields=tuple(Field(name, known(one)) for name, one in told.get("fields", ())),
        keys=schema_of(told.get("keys")),
        items=schema_of(told.get("items") or told.get("values")),
    )
    default = told.get("default")
    return schema.changed(default=NO_DEFAULT if default is None else value_of(default, schema))


def known(told: dict[str, Any]) -> Schema:
    schema = schema_of(told)
    assert schema is not None
    return schema


def value_of(told: dict[str, Any] | None, schema: Schema | None) -> Any:
    if told is None:
        return None
    ((kind, given),) = told.items()
    if (
        schema is not None
        and {kind, schema.type} <= _NUMBERS
        and _NAMES.get(kind, kind) != schema.type
    ):
        # Java refuses an Integer where the schema says int64; Python has one int.
        raise UnrepresentableError
    match kind:
        case "int8" | "int16" | "int32" | "int64" | "boolean" | "string":
            return given
        case "float32":
            return float(np.float32(given))
        case "float64":
            return float(given)
        case "bytes":
            return base64.b64decode(given)
        case "decimal":
            return Decimal(given)
        case "date":
            return moment_of(given, schema)
        case "array":
            items = schema.items if schema else None
            return [value_of(one, items) for one in given]
        case "map":
            keys, items = (schema.keys, schema.items) if schema else (None, None)
            return {hashable(value_of(a, keys)): value_of(b, items) for a, b in given}
        case "struct":
            assert schema is not None
            return {name: value_of(one, schema.field(name).schema) for name, one in given}
    raise AssertionError(kind)


def hashable(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise UnrepresentableError
    return value


def moment_of(millis: int, schema: Schema | None) -> date | time:
    name = schema.name if schema else TIMESTAMP_NAME
    try:
        moment = _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        raise UnrepresentableError from None
    if name == TIMESTAMP_NAME:
        return moment
    if name == DATE_NAME and millis % _DAY == 0:
        return moment.date()
    if name == TIME_NAME and 0 <= millis < _DAY:
        return moment.time()
    raise UnrepresentableError


def body_of(told: dict[str, Any]) -> bytes | None:
    if told.get("text") is not None:
        text: str = told["text"]
        return text.encode()
    coded = told.get("base64")
    return None if coded is None else base64.b64decode(coded)


def converted(case: dict[str, Any], converter: Converter) -> Any:
    """What our converter makes of a case's input."""
    if case["do"] == "to":
        schema = schema_of(case["schema"])
        return converter.to_bytes("t", schema, value_of(case["value"], schema))
    return converter.from_bytes("t", body_of(case))
