"""Reads the case files: what Kafka Connect's own transforms gave for many inputs."""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.connect.records import Header, Queue, SinkRecord, SourceRecord
from headrace.connect.schema import (
    DATE_NAME,
    NO_DEFAULT,
    TIME_NAME,
    Field,
    Schema,
    Type,
)

FOLDER = Path(__file__).parent / "cases"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {"float32": Type.FLOAT32, "float64": Type.FLOAT64}


@dataclass(frozen=True)
class Case:
    """One input, and what Kafka Connect made of it."""

    name: str
    plugin: str
    config: dict[str, str]
    record: SourceRecord | SinkRecord
    #: ``record``, ``holds``, or ``fails`` with ``message``.
    expect: dict[str, Any]


def cases_of(name: str) -> list[Case]:
    """Read a case file."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    schemas = [schema_of(one) for one in content["schemas"]]
    records = [record_of(one, schemas) for one in content["records"]]
    cases = []
    for title, plugin, config, record, expect in content["cases"]:
        given = dict(expect)
        if given.get("record") is not None:
            given["record"] = records[given["record"]]
        cases.append(Case(title, plugin, config, records[record], given))
    return cases


def schema_of(node: dict[str, Any] | None) -> Schema | None:
    """Make a schema."""
    # Kafka has lists and maps of anything; ours say that with no schema.
    if node is None or None in (node.get("items", ""), node.get("values", "")):
        return None
    made = Schema(
        TYPES.get(node["type"]) or Type(node["type"]),
        optional=node.get("optional", False),
        name=node.get("name"),
        version=node.get("version"),
        doc=node.get("doc"),
        parameters=node.get("parameters", {}),
        fields=tuple(Field(name, one(schema_of(of))) for name, of in node.get("fields", ())),
        keys=schema_of(node.get("keys")),
        items=schema_of(node.get("items", node.get("values"))),
    )
    if "default" not in node:
        return made
    return made.with_default(value_of(node["default"], made))


def one(schema: Schema | None) -> Schema:
    assert schema is not None
    return schema


def record_of(node: dict[str, Any], schemas: list[Schema | None]) -> SourceRecord | SinkRecord:
    """Make a record."""

    def known(index: int | None) -> Schema | None:
        return None if index is None else schemas[index]

    key_schema, value_schema = known(node["key_schema"]), known(node["value_schema"])
    shared: dict[str, Any] = {
        "topic": node["topic"],
        "timestamp_ms": node["timestamp"],
        "key_schema": key_schema,
        "key": value_of(node["key"], key_schema),
        "value_schema": value_schema,
        "value": value_of(node["value"], value_schema),
        "headers": tuple(
            Header(key, value_of(value, known(index)), known(index))
            for key, index, value in node["headers"]
        ),
    }
    if node["kind"] == "source":
        return SourceRecord(partition={}, offset={}, queue=node["partition"], **shared)
    queue = Queue("orders", "broker-a", node["partition"])
    return SinkRecord(queue=queue, offset=node["offset"], **shared)


def value_of(node: Any, schema: Schema | None) -> Any:
    """Make a value as our records have it."""
    if node is None or isinstance(node, bool | str):
        return node
    ((tag, inner),) = node.items()
    match tag:
        case "int8" | "int16" | "int32" | "int64":
            return inner
        case "float32":
            return struct.unpack("<f", struct.pack("<f", float(inner)))[0]
        case "float64":
            return float(inner)
        case "bytes":
            return base64.b64decode(inner)
        case "decimal":
            return Decimal(inner)
        case "date":
            return time_of(inner, schema)
        case "list":
            items = schema.items if schema else None
            return [value_of(item, items) for item in inner]
        case "map":
            keys, items = (schema.keys, schema.items) if schema else (None, None)
            return {value_of(name, keys): value_of(item, items) for name, item in inner}
        case "struct":
            fields = one(schema).by_name
            return {name: value_of(item, fields[name].schema) for name, item in inner}
    raise AssertionError(tag)


def time_of(milliseconds: int, schema: Schema | None) -> Any:
    try:
        moment = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return "before the year 1"
    match schema.name if schema else None:
        case name if name == DATE_NAME:
            return moment.date()
        case name if name == TIME_NAME:
            return moment.time()
    return moment


def plain(value: Any) -> Any:
    """Write a value so that it can be compared: a time without a schema counts by its instant."""
    if isinstance(value, datetime):
        return ("time", (value - EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, date):
        return ("time", (value - EPOCH.date()).days * 86_400_000)
    if isinstance(value, time):
        return plain(datetime.combine(EPOCH.date(), value, UTC))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float):
        return (value, math.copysign(1, value))
    if isinstance(value, Decimal):
        return ("decimal", str(value))
    return value


def shown(record: SourceRecord | SinkRecord | None) -> Any:
    """Write a record so that it can be compared."""
    if record is None:
        return None
    return {
        "topic": record.topic,
        "timestamp": record.timestamp_ms,
        "queue": record.queue,
        "key_schema": form(record.key_schema),
        "key": plain(record.key),
        "value_schema": form(record.value_schema),
        "value": plain(record.value),
        "headers": [(key, plain(value), form(schema)) for key, value, schema in record.headers],
    }


def form(schema: Schema | None) -> Any:
    """Write a schema with all that it says."""
    if schema is None:
        return None
    return {
        "type": str(schema.type),
        "optional": schema.optional,
        "default": None if schema.default is NO_DEFAULT else plain(schema.default),
        "name": schema.name,
        "version": schema.version,
        "doc": schema.doc,
        "parameters": dict(schema.parameters),
        "fields": [(field.name, form(field.schema)) for field in schema.fields],
        "keys": form(schema.keys),
        "items": form(schema.items),
    }
