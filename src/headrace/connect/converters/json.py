"""JSON, with the schema beside each value or without one, as Kafka Connect's JsonConverter has it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.connect.config import Config, at_least, declare, key, one_of
from headrace.connect.converters import _json_columns
from headrace.connect.converters._fitting import UnfitError
from headrace.connect.converters._loose_json import dump, dump_data, load, load_exactly
from headrace.connect.converters.base import Column, Converted, HeaderConverter
from headrace.connect.converters.json_schemas import schema_from_json, schema_to_json
from headrace.connect.converters.json_values import (
    JsonRules,
    Step,
    has_decimal,
    json_reader,
    json_writer,
)

if TYPE_CHECKING:
    from headrace.connect.schema import Schema

__all__ = ["JsonConverter"]

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
        payload = dump_data(write(value))
        return b"%b%b}" % (before, payload) if self._with_schemas else payload

    def _write_loose(self, value: Any) -> bytes | None:
        if value is None:
            return None
        payload = dump(value)
        return b'{"schema":null,"payload":%b}' % payload if self._with_schemas else payload

    def _make_writer(self, schema: Schema) -> tuple[bytes, Step]:
        write = json_writer(schema, self._rules)
        told = dump_data(schema_to_json(schema, self._rules))
        return b'{"schema":%b,"payload":' % told, write

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read a value; a message without a body is nothing at all."""
        if body is None:
            return _NOTHING
        if not self._with_schemas:
            return Converted(None, load(body) if body.strip() else None)
        envelope = _envelope_of(body)
        told = bytes(envelope.schema)
        if told == b"null":
            return Converted(None, load(bytes(envelope.payload)))
        schema, parse, read = self._reader(told)
        return Converted(schema, read(parse(bytes(envelope.payload))))

    def _make_reader(self, told: bytes) -> tuple[Schema, Step, Step]:
        try:
            schema = schema_from_json(load_exactly(told), self._rules)
        except UnfitError as error:
            raise error.inside("schema") from None
        # Digits of a decimal are lost in a float.
        parse = load_exactly if has_decimal(schema) else load
        return schema, parse, json_reader(schema, self._rules)

    def write_column(self, topic: str, schema: Schema | None, values: pa.Array) -> pa.Array | None:
        """Write a column of plain values."""
        if schema is None:
            before = '{"schema":null,"payload":' if self._with_schemas else ""
            return _json_columns.write(values, before, "}")
        if not _json_columns.fits(schema, values):
            return None
        before = self._writer(schema)[0].decode() if self._with_schemas else ""
        return _json_columns.write(values, before, "}", null="null")

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column of objects that all have the same fields, none of them null."""
        if bodies.null_count == len(bodies):
            return Column(None, pa.nulls(len(bodies)))
        if self._with_schemas:
            return None
        values = _json_columns.read(bodies)
        return None if values is None else Column(None, values)


def _envelope_of(body: bytes) -> _Envelope:
    try:
        return _envelopes.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f'an object with "schema" and "payload" and nothing else is needed: {error}'
        raise UnfitError(
            reason, hint="set schemas.enable=false on the converter to read JSON without schemas"
        ) from None
