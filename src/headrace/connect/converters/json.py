"""JSON, with the schema beside each value or without one, as Kafka Connect's JsonConverter has it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from headrace.connect.config import Config, at_least, declare, key, one_of
from headrace.connect.converters import _loose_json
from headrace.connect.converters.base import Column, Converted, HeaderConverter
from headrace.connect.converters.json_values import (
    JsonRules,
    has_decimal,
    json_reader,
    json_writer,
)
from headrace.connect.converters.steps import Step, UnfitError, beginning, kind_of
from headrace.connect.schema import Field, Schema, Type

# Schemas as JSON, in the form that Kafka Connect's JsonConverter writes.

_TYPES: Mapping[str, Type] = {one.value: one for one in Type}


def schema_to_json(schema: Schema, rules: JsonRules | None = None) -> dict[str, Any]:
    """Return the JSON of a schema, as data.

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
    """Return the schema that data of JSON describes.

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


_NOTHING = Converted(None, None)


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


_envelopes = msgspec.json.Decoder(_Envelope)


class JsonConverter(HeaderConverter):
    """JSON: ``{"schema": ..., "payload": ...}``, or the value alone with ``schemas.enable=false``.

    Examples
    --------
    >>> from headrace.connect.schema import INT32, STRING, struct
    >>> person = struct({"name": STRING, "age": INT32})
    >>> plain = JsonConverter.of({"schemas.enable": "false"})
    >>> plain.to_bytes("people", person, {"name": "Ann", "age": 3})
    b'{"name":"Ann","age":3}'
    >>> plain.from_bytes("people", b'{"name":"Ann","age":3}').value
    {'name': 'Ann', 'age': 3}
    >>> JsonConverter.of({}).to_bytes("ages", INT32, 3)
    b'{"schema":{"type":"int32","optional":false},"payload":3}'
    """

    version = "1.0"

    config = declare(
        key(
            "schemas.enable",
            bool,
            "Whether each body holds the schema beside the value.",
            default=True,
            importance="high",
        ),
        key(
            "schemas.cache.size",
            int,
            "How many schemas are kept in each direction.",
            default=1000,
            valid=at_least(0),
            importance="high",
        ),
        key(
            "decimal.format",
            str,
            "How decimals are written: their bytes as base64, or a number of JSON."
            " Both are read whatever it says.",
            default="BASE64",
            valid=one_of("BASE64", "NUMERIC", ignore_case=True),
            importance="low",
        ),
        key(
            "replace.null.with.default",
            bool,
            "Whether a null becomes the default of its schema.",
            default=True,
            importance="low",
        ),
    )

    def __init__(self) -> None:
        self._set_rules(JsonRules(), with_schemas=True, cached=1000)

    def set_up(self, config: Config) -> None:
        """Take the rules."""
        numeric = config["decimal.format"].upper() == "NUMERIC"
        rules = JsonRules(numeric, config["replace.null.with.default"])
        self._set_rules(
            rules, with_schemas=config["schemas.enable"], cached=config["schemas.cache.size"]
        )

    def _set_rules(self, rules: JsonRules, *, with_schemas: bool, cached: int) -> None:
        self._with_schemas = with_schemas
        self._rules = rules
        self._writer = lru_cache(cached)(self._make_writer)
        self._reader = lru_cache(cached)(self._make_reader)
        # Most topics have one schema: comparing it with itself costs less than hashing it.
        self._last: tuple[Schema, bytes, Step] | None = None

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write a value; nothing at all where it has neither schema nor value."""
        if schema is None:
            return self._write_loose(value)
        last = self._last
        if last is None or last[0] is not schema:
            self._last = last = (schema, *self._writer(schema))
        _, before, write = last
        payload = _loose_json.dump_data(write(value))
        return b"%b%b}" % (before, payload) if self._with_schemas else payload

    def _write_loose(self, value: Any) -> bytes | None:
        if value is None:
            return None
        payload = _loose_json.dump(value)
        return b'{"schema":null,"payload":%b}' % payload if self._with_schemas else payload

    def _make_writer(self, schema: Schema) -> tuple[bytes, Step]:
        write = json_writer(schema, self._rules)
        told = _loose_json.dump_data(schema_to_json(schema, self._rules))
        return b'{"schema":%b,"payload":' % told, write

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read a value; a message without a body is nothing at all."""
        if body is None:
            return _NOTHING
        if not self._with_schemas:
            return Converted(None, _loose_json.load(body) if body.strip() else None)
        envelope = _envelope_of(body)
        told = bytes(envelope.schema)
        if told == b"null":
            return Converted(None, _loose_json.load(bytes(envelope.payload)))
        schema, parse, read = self._reader(told)
        return Converted(schema, read(parse(bytes(envelope.payload))))

    def _make_reader(self, told: bytes) -> tuple[Schema, Step, Step]:
        try:
            schema = schema_from_json(_loose_json.load_exactly(told), self._rules)
        except UnfitError as error:
            raise error.inside("schema") from None
        # Digits of a decimal are lost in a float.
        parse = _loose_json.load_exactly if has_decimal(schema) else _loose_json.load
        return schema, parse, json_reader(schema, self._rules)

    def write_column(self, topic: str, schema: Schema | None, values: pa.Array) -> pa.Array | None:
        """Write a column of plain values."""
        if schema is None:
            before = '{"schema":null,"payload":' if self._with_schemas else ""
            return _loose_json.write_column(values, before, "}")
        if not _loose_json.fits(schema, values):
            return None
        before = self._writer(schema)[0].decode() if self._with_schemas else ""
        return _loose_json.write_column(values, before, "}", null="null")

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column of objects that all have the same fields, none of them null."""
        if bodies.null_count == len(bodies):
            return Column(None, pa.nulls(len(bodies)))
        if self._with_schemas:
            return None
        values = _loose_json.read_column(bodies)
        return None if values is None else Column(None, values)


def _envelope_of(body: bytes) -> _Envelope:
    try:
        return _envelopes.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f'an object with "schema" and "payload" and nothing else is needed: {error}'
        raise UnfitError(
            reason, hint="set schemas.enable=false on the converter to read JSON without schemas"
        ) from None
