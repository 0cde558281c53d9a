"""Schemas of Connect as schemas of Avro, and back.

What Avro has no word for stands in properties such as ``connect.type``, as Confluent's converter
writes them: other readers of Avro pass over them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, NamedTuple
from uuid import UUID

from headrace.connect.converters.json_values import JsonRules, json_reader, json_writer
from headrace.connect.converters.steps import UnfitError
from headrace.connect.schema import (
    DATE,
    DATE_NAME,
    DECIMAL_NAME,
    STRING,
    TIME,
    TIME_NAME,
    TIMESTAMP,
    TIMESTAMP_NAME,
    Field,
    Schema,
    Type,
    array,
    decimal,
    mapping,
)
from headrace.serdes.registry import AVRO_TYPES, avro_word, expanded_avro

#: The name of the struct that a union of several types becomes: a field for each of them.
UNION = "io.confluent.connect.avro.Union"
#: The parameter that holds the words of an enum.
_ENUM = "io.confluent.connect.avro.Enum"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
# Digits of a decimal where nothing says how many: as Confluent's converter has it.
_PRECISION = 64

_PLAIN: Mapping[Type, str] = {
    Type.INT8: "int",
    Type.INT16: "int",
    Type.INT32: "int",
    Type.INT64: "long",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.BOOLEAN: "boolean",
    Type.STRING: "string",
    Type.BYTES: "bytes",
}
#: Of several types that are one of Avro, the widest.
_TYPES: Mapping[str, Type] = {word: kind for kind, word in _PLAIN.items()}
_TO_LOGICAL: Mapping[str, tuple[str, str]] = {
    DATE_NAME: ("int", "date"),
    TIME_NAME: ("int", "time-millis"),
    TIMESTAMP_NAME: ("long", "timestamp-millis"),
}
_LOGICAL: Mapping[type, Schema] = {date: DATE, time: TIME, datetime: TIMESTAMP, UUID: STRING}


def schema_to_avro(schema: Schema) -> Any:
    """Return the Avro schema of a schema, as data of JSON.

    >>> from headrace.connect.schema import INT64
    >>> schema_to_avro(INT64.as_optional())
    ['null', 'long']
    """
    return _Writer().written(schema, _SchemaPlace())


class _SchemaPlace(NamedTuple):
    """Where a part of a schema stands."""

    #: The namespace of the record around it, which names without a dot belong to.
    namespace: str = ""
    steps: tuple[str, ...] = ()

    def into(self, step: str) -> _SchemaPlace:
        return self._replace(steps=(*self.steps, step))

    def full(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.namespace and "." not in name else name


class _Writer:
    """Writes one schema; each record is defined where it first stands."""

    def __init__(self) -> None:
        self._defined: dict[str, Schema] = {}

    def written(self, schema: Schema, place: _SchemaPlace) -> Any:
        made = self._required(schema, place)
        return ["null", made] if schema.optional else made

    def _required(self, schema: Schema, place: _SchemaPlace) -> Any:
        if schema.type is Type.STRUCT:
            return self._record(schema, place)
        made = self._bare(schema, place) | _extras(schema)
        return made["type"] if len(made) == 1 else made

    def _bare(self, schema: Schema, place: _SchemaPlace) -> dict[str, Any]:
        if schema.is_a(DECIMAL_NAME):
            return _decimal(schema)
        if (found := _TO_LOGICAL.get(schema.name or "")) is not None:
            carrier, logical = found
            return {"type": carrier, "logicalType": logical}
        if schema.type is Type.ARRAY and schema.items is not None:
            return {"type": "array", "items": self.written(schema.items, place.into("items"))}
        if schema.type is Type.MAP and schema.keys is not None and schema.items is not None:
            return self._mapping(schema.keys, schema.items, place)
        made = {"type": _PLAIN[schema.type]}
        if schema.type in {Type.INT8, Type.INT16}:
            made["connect.type"] = schema.type.value
        return made

    def _mapping(self, keys: Schema, items: Schema, place: _SchemaPlace) -> dict[str, Any]:
        values = self.written(items, place.into("values"))
        if keys == STRING:
            return {"type": "map", "values": values}
        # Avro's maps have keys of text only: others are lists of pairs.
        entry = {
            "type": "record",
            "name": "_".join((*place.steps, "MapEntry")),
            "fields": [
                {"name": "key", "type": self.written(keys, place.into("keys"))},
                {"name": "value", "type": values},
            ],
        }
        return {"type": "array", "items": entry, "connect.type": "map"}

    def _record(self, schema: Schema, place: _SchemaPlace) -> Any:
        name = schema.name or "_".join((*place.steps, "Record"))
        if not _NAME.fullmatch(name):
            reason = f"{name!r} cannot be the name of a record of Avro"
            raise UnfitError(reason, hint="name the struct in letters, digits, _ and dots")
        required = schema.as_required()
        full = place.full(name)
        if full in self._defined:
            if self._defined[full] == required:
                return full
            reason = f"two different structs have the name {name!r}"
            raise UnfitError(reason, hint="give each struct a name of its own")
        self._defined[full] = required
        inside = place._replace(namespace=full.rpartition(".")[0])
        fields = [self._field(one, inside.into(one.name)) for one in schema.fields]
        made = {"type": "record", "name": name, "fields": fields} | _extras(schema)
        if schema.name is None:
            made["connect.unnamed"] = True
        elif full != name:
            made["connect.name"] = name
        return made

    def _field(self, field: Field, place: _SchemaPlace) -> dict[str, Any]:
        if not _NAME.fullmatch(field.name) or "." in field.name:
            reason = f"{field.name!r} cannot be the name of a field of Avro"
            raise UnfitError(reason, hint="rename it, for example with ReplaceField")
        made: dict[str, Any] = {"name": field.name, "type": self.written(field.schema, place)}
        if field.schema.optional:
            made["default"] = None
        return made


def _decimal(schema: Schema) -> dict[str, Any]:
    if schema.scale < 0:
        reason = f"Avro has no decimals of the scale {schema.scale}"
        raise UnfitError(reason, hint="use a scale of 0 or more")
    precision = int(schema.parameters.get("connect.decimal.precision", _PRECISION))
    return {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": max(precision, schema.scale, 1),
        "scale": schema.scale,
    }


def _extras(schema: Schema) -> dict[str, Any]:
    """Return what Avro has no word for, without what its own words say already."""
    parameters = {name: text for name, text in schema.parameters.items() if name != "scale"}
    logical = schema.is_a(DECIMAL_NAME) or schema.name in _TO_LOGICAL
    said = {
        "connect.name": None if logical or schema.type is Type.STRUCT else schema.name,
        "connect.version": None if logical else schema.version,
        "connect.doc": schema.doc,
        "connect.parameters": parameters or None,
        "connect.default": _default(schema),
    }
    return {name: one for name, one in said.items() if one is not None}


def _default(schema: Schema) -> str | None:
    if not schema.has_default or schema.default is None:
        return None
    return json.dumps(json_writer(schema, JsonRules())(schema.default))


def schema_from_avro(node: Any) -> Schema | None:
    """Return the schema of an Avro schema; ``None`` for one that contains itself.

    Raises
    ------
    ValueError
        It is not a schema.

    Examples
    --------
    >>> schema_from_avro({"type": "array", "items": ["null", "string"]})
    array<string?>
    """
    try:
        return _read(expanded_avro(node))
    except RecursionError:
        return None


def _read(node: Any) -> Schema:
    if isinstance(node, list):
        return _union(node)
    if isinstance(node, str):
        if node not in _TYPES:
            # A name that is left over names a record that it stands in.
            raise RecursionError
        return Schema(_TYPES[node])
    return _with_extras(_of_type(node), node)


def _of_type(node: dict[str, Any]) -> Schema:
    match avro_word(node):
        case "record" | "error":
            name = None if node.get("connect.unnamed") else node["name"]
            fields = tuple(Field(one["name"], _read(one["type"])) for one in node["fields"])
            return Schema(Type.STRUCT, name=name, doc=node.get("doc"), fields=fields)
        case "array" if node.get("connect.type") == "map":
            pair = {one["name"]: one["type"] for one in node["items"]["fields"]}
            return mapping(_read(pair["key"]), _read(pair["value"]))
        case "array":
            return array(_read(node["items"]))
        case "map":
            return mapping(STRING, _read(node["values"]))
        case "enum":
            return STRING.changed(name=node["name"], parameters={_ENUM: ",".join(node["symbols"])})
        case "fixed":
            return Schema(Type.BYTES, name=node["name"])
        case "decimal":
            return decimal(int(node.get("scale", 0)))
        case word:
            return _LOGICAL.get(AVRO_TYPES.get(word, object)) or _read(word)


def _union(branches: list[Any]) -> Schema:
    present = [one for one in branches if one != "null"]
    if len(present) == 1:
        made = _read(present[0])
    else:
        fields = tuple(Field(branch_name(one), _read(one).as_optional()) for one in present)
        made = Schema(Type.STRUCT, name=UNION, fields=fields)
    return made.as_optional() if len(present) < len(branches) else made


def branch_name(node: Any) -> str:
    """Return what a branch of a union is called: its type, or its name without the namespace."""
    if isinstance(node, str):
        return node.rpartition(".")[2]
    name: str = node.get("name") or node["type"]
    return name.rpartition(".")[2]


def _with_extras(schema: Schema, node: dict[str, Any]) -> Schema:
    changes: dict[str, Any] = {}
    if node.get("connect.type") in {"int8", "int16"}:
        changes["type"] = Type(node["connect.type"])
    for name in ("name", "version", "doc"):
        if f"connect.{name}" in node:
            changes[name] = node[f"connect.{name}"]
    if "connect.parameters" in node:
        changes["parameters"] = {**schema.parameters, **node["connect.parameters"]}
    schema = schema.changed(**changes) if changes else schema
    return schema.with_default(_read_default(schema, node)) if "connect.default" in node else schema


def _read_default(schema: Schema, node: dict[str, Any]) -> Any:
    return json_reader(schema, JsonRules())(json.loads(node["connect.default"]))
