"""Schemas as JSON, in the form that Kafka Connect's JsonConverter writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connect.converters._fitting import UnfitError, beginning, kind_of
from headrace.connect.converters.json_values import JsonRules, json_reader, json_writer
from headrace.connect.schema import Field, Schema, Type

__all__ = ["schema_from_json", "schema_to_json"]

_TYPES: Mapping[str, Type] = {one.value: one for one in Type}


def schema_to_json(schema: Schema, rules: JsonRules | None = None) -> dict[str, Any]:
    """Give the JSON of a schema, as data.

    >>> from headrace.connect.schema import INT32
    >>> schema_to_json(INT32.as_optional())
    {'type': 'int32', 'optional': True}
    """
    rules = rules or JsonRules()
    made: dict[str, Any] = {"type": schema.type.value}
    if schema.type is Type.ARRAY and schema.items is not None:
        made["items"] = schema_to_json(schema.items, rules)
    if schema.type is Type.MAP and schema.keys is not None and schema.items is not None:
        made["keys"] = schema_to_json(schema.keys, rules)
        made["values"] = schema_to_json(schema.items, rules)
    if schema.type is Type.STRUCT:
        made["fields"] = [
            schema_to_json(one.schema, rules) | {"field": one.name} for one in schema.fields
        ]
    made["optional"] = schema.optional
    for name in ("name", "version", "doc"):
        if (said := getattr(schema, name)) is not None:
            made[name] = said
    if schema.parameters:
        made["parameters"] = dict(schema.parameters)
    if schema.has_default and schema.default is not None:
        made["default"] = json_writer(schema, rules)(schema.default)
    return made


def schema_from_json(told: Any, rules: JsonRules | None = None) -> Schema:
    """Give the schema that data of JSON describes.

    >>> schema_from_json({"type": "array", "items": {"type": "string"}})
    array<string>
    """
    rules = rules or JsonRules()
    if not isinstance(told, dict) or not isinstance(told.get("type"), str):
        reason = f"a schema is an object with a text 'type', not {beginning(told)}"
        raise UnfitError(reason)
    kind = _TYPES.get(told["type"])
    if kind is None:
        reason = f"there is no type {told['type']!r} of schemas"
        raise UnfitError(reason, hint=f"there are: {', '.join(_TYPES)}")
    schema = Schema(
        kind,
        optional=told.get("optional") is True,
        name=_kept(told, "name", str),
        version=_kept(told, "version", int),
        doc=_kept(told, "doc", str),
        parameters=_parameters(told),
        **_inner(kind, told, rules),
    )
    return _with_default(schema, told, rules)


def _inner(kind: Type, told: dict[str, Any], rules: JsonRules) -> dict[str, Any]:
    match kind:
        case Type.ARRAY:
            return {"items": _part(told, "items", rules)}
        case Type.MAP:
            return {"keys": _part(told, "keys", rules), "items": _part(told, "values", rules)}
        case Type.STRUCT:
            return {"fields": _fields(told, rules)}
        case _:
            return {}


def _part(told: dict[str, Any], name: str, rules: JsonRules) -> Schema:
    if told.get(name) is None:
        reason = f"the schema of an {told['type']} says nothing of its {name}"
        raise UnfitError(reason)
    return schema_from_json(told[name], rules)


def _fields(told: dict[str, Any], rules: JsonRules) -> tuple[Field, ...]:
    fields = told.get("fields")
    if not isinstance(fields, list):
        reason = "the schema of a struct has an array 'fields'"
        raise UnfitError(reason)
    return tuple(_field(one, rules) for one in fields)


def _field(told: Any, rules: JsonRules) -> Field:
    if not isinstance(told, dict) or not isinstance(told.get("field"), str):
        reason = f"a field of a struct has its name under 'field', unlike {beginning(told)}"
        raise UnfitError(reason)
    return Field(told["field"], schema_from_json(told, rules))


def _kept(told: dict[str, Any], name: str, kind: type) -> Any:
    # What is of another type says nothing, as in Kafka Connect.
    found = told.get(name)
    return found if type(found) is kind else None


def _parameters(told: dict[str, Any]) -> dict[str, str]:
    found = told.get("parameters")
    if not isinstance(found, dict):
        return {}
    for name, value in found.items():
        if not isinstance(value, str):
            reason = f"the parameter {name!r} of a schema is text, not {kind_of(value)}"
            raise UnfitError(reason)
    return found


def _with_default(schema: Schema, told: dict[str, Any], rules: JsonRules) -> Schema:
    if "default" not in told:
        return schema
    if told["default"] is None:
        if schema.optional:
            return schema
        reason = f"the default of a required {schema.type} is null"
        raise UnfitError(reason)
    return schema.with_default(json_reader(schema, rules)(told["default"]))
