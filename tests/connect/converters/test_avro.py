"""Avro: values and schemas come back, unions and enums, the registry, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from headrace.connect.converters import AvroConverter, schema_from_avro, schema_to_avro
from headrace.connect.schema import (
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Schema,
    array,
    decimal,
    mapping,
    struct,
)
from headrace.errors import (
    ConnectorConfigError,
    DeserializationError,
    ProcessingError,
    SerializationError,
)
from headrace.serdes import RegisteredSchema, registered
from tests.connect.converters.strategies import schemas, schemas_with_values


def by(schema: Any) -> AvroConverter:
    return AvroConverter.of({"schema": json.dumps(schema)})


@settings(max_examples=60)
@given(schemas())
def test_schemas_come_back(schema: Schema) -> None:
    assert schema_from_avro(json.loads(json.dumps(schema_to_avro(schema)))) == schema


@settings(max_examples=60)
@given(schemas_with_values())
def test_values_come_back(pair: tuple[Schema, Any]) -> None:
    schema, value = pair
    converter = by(schema_to_avro(schema))
    found = converter.from_bytes("t", converter.to_bytes("t", schema, value))
    # Null has no body, and so no schema.
    assert found == ((None, None) if value is None else (schema, value))


def test_everything_that_a_schema_says_comes_back() -> None:
    schema = struct(
        {
            "small": INT8.changed(name="my.Small", version=3, doc="Small."),
            "other": INT16.with_default(4).changed(parameters={"a": "b"}),
            "at": TIMESTAMP.as_optional(),
            "price": decimal(2).with_default(Decimal("1.50")),
            "by": mapping(INT32, struct({"x": FLOAT32}, name="inner")),
        },
        name="shop.Order",
        version=2,
        doc="An order.",
    )
    assert schema_from_avro(schema_to_avro(schema)) == schema


def test_a_struct_that_stands_twice_is_defined_once() -> None:
    point = struct({"x": INT32}, name="point")
    schema = struct({"from": point, "to": point.as_optional()}, name="way")
    told = schema_to_avro(schema)
    assert told["fields"][1]["type"] == ["null", "point"]
    assert schema_from_avro(told) == schema


def test_names_without_a_namespace_keep_none() -> None:
    point = struct({"x": INT32}, name="point")
    schema = struct({"a": struct({"p": point, "q": point}, name="shop.in"), "b": point}, name="o")
    assert schema_from_avro(schema_to_avro(schema)) == schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (struct({"a-b": STRING}), "'a-b' cannot be the name of a field"),
        (struct({}, name="not a name"), "'not a name' cannot be the name of a record"),
        (decimal(-1), "no decimals of the scale -1"),
        (
            struct({"a": struct({}, name="n"), "b": struct({"x": STRING}, name="n")}),
            "two different structs have the name 'n'",
        ),
    ],
)
def test_schemas_that_avro_cannot_have_are_refused(schema: Schema, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        schema_to_avro(schema)


ENUM = {"type": "enum", "name": "Size", "symbols": ["S", "L"]}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
UNION = ["null", "long", "string", ENUM, POINT]


@pytest.mark.parametrize(
    ("value", "branch"),
    [
        (5, {"long": 5}),
        ("text", {"string": "text"}),
        ({"Size": "L"}, {"Size": "L"}),
        ({"x": 1}, {"Point": {"x": 1}}),
        ({"long": None, "string": "S"}, {"string": "S"}),
    ],
)
def test_a_union_is_a_struct_with_one_field_that_is_not_null(value: Any, branch: Any) -> None:
    converter = by({"type": "array", "items": UNION})
    body = converter.to_bytes("t", None, [value, None])
    found = converter.from_bytes("t", body).value
    nothing = {"long": None, "string": None, "Size": None, "Point": None}
    assert found == [nothing | branch, None]
    assert converter.to_bytes("t", None, found) == body


LOGICAL = {
    "type": "record",
    "name": "Logical",
    "fields": [
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "two", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "said", "type": "string", "default": "nothing"},
    ],
}
VALUE = {
    "micros": datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(2020, 1, 2, tzinfo=UTC),
    "clock": time(1, 2, 3, 456789),
    "id": "12345678-1234-5678-1234-567812345678",
    "two": b"ab",
}


def test_logical_types_and_defaults() -> None:
    converter = by(LOGICAL)
    found = converter.from_bytes("t", converter.to_bytes("t", None, VALUE))
    assert found.value == VALUE | {"said": "nothing"}


def test_a_schema_that_contains_itself_gives_data_without_a_schema() -> None:
    fields = [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}]
    converter = by({"type": "record", "name": "Node", "fields": fields})
    value = {"v": 1, "next": {"v": 2, "next": None}}
    assert converter.from_bytes("t", converter.to_bytes("t", None, value)) == (None, value)


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        (LOGICAL, VALUE | {"two": b"abc"}, "at two: 2 bytes are needed, not 3"),
        (LOGICAL, VALUE | {"clock": 5}, "at clock: Avro's time-micros is needed, not int"),
        (LOGICAL, VALUE | {"micros": datetime(2020, 1, 1)}, "at micros: a timestamp needs a zone"),  # noqa: DTZ001
        (LOGICAL, VALUE | {"more": 1}, "the schema has no field 'more'"),
        (POINT, {}, "at x: Avro's int is needed, not null"),
        (POINT, {"x": 1 << 31}, "at x: 2147483648 is beyond the range of Avro's int"),
        (POINT, {"x": True}, "at x: Avro's int is needed, not bool"),
        (ENUM, "M", "'M' is not one of S, L"),
        ({"type": "array", "items": "string"}, ["a", 1], "at [1]: Avro's string is needed"),
        ({"type": "array", "items": UNION}, [1.5], "no type of the union (long, string, Size"),
        ({"type": "map", "values": "long"}, {"a": "b"}, "at ['a']: Avro's long is needed"),
        ({"type": "map", "values": "long"}, {5: 1}, "at [5]: Avro's string is needed, not int"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            Decimal("123.45"),
            "123.45 does not fit 4 digits of which 2 follow the point",
        ),
    ],
)
def test_a_refused_value_says_where(schema: Any, value: Any, told: str) -> None:
    with pytest.raises(SerializationError) as caught:
        by(schema).to_bytes("orders", None, value)
    assert "the value of a record for topic 'orders'" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"\x02\x02", b"\xff" * 12])
def test_a_body_of_another_schema_is_refused(body: bytes) -> None:
    with pytest.raises(DeserializationError, match="the value of a record of topic 'orders'"):
        by(POINT).from_bytes("orders", body)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "and has none"),
        ({"schema": '"int"', "schema.file": "x"}, "and has schema and schema.file"),
        ({"schema": '{"type": "record"}'}, "The key schema holds no schema"),
        ({"schema": '{"type": "nope"}'}, "The key schema holds no schema"),
        ({"schema": "{"}, "The key schema holds no schema"),
        ({"schema.file": "/no/such/file"}, "cannot be read"),
    ],
)
def test_wrong_settings_are_refused(config: dict[str, str], told: str) -> None:
    with pytest.raises(ConnectorConfigError) as caught:
        AvroConverter.of(config)
    assert told in str(caught.value)


def test_the_schema_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "point.avsc"
    file.write_text(json.dumps(POINT))
    converter = AvroConverter.of({"schema.file": str(file)})
    assert converter.to_bytes("t", None, {"x": 1}) == b"\x02"


ANSWERS = {
    "/cluster/default/subject/points": {"recordId": 7, "type": "AVRO", "idl": json.dumps(POINT)},
    "/cluster/default/subject/points-key": {"recordId": 8, "type": "AVRO", "idl": '"long"'},
    "/cluster/default/subject/texts": {"recordId": 9, "type": "JSON", "idl": "{}"},
}


@pytest.fixture
def registry() -> Iterator[str]:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = ANSWERS.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_bodies_are_those_of_the_registrys_own_serdes(registry: str) -> None:
    config = {"schema.registry.url": registry}
    value, key = AvroConverter.of(config), AvroConverter.of(config, is_key=True)
    body = value.to_bytes("points", None, {"x": 3})
    assert body == registered(RegisteredSchema(7, "AVRO", json.dumps(POINT))).serialize({"x": 3})
    schema = struct({"x": INT32}, name="Point")
    assert value.from_bytes("points", body) == (schema, {"x": 3})
    assert key.from_bytes("points", key.to_bytes("points", None, 5)) == (INT64, 5)


def test_a_subject_that_does_not_fit_is_refused(registry: str) -> None:
    converter = AvroConverter.of({"schema.registry.url": registry})
    with pytest.raises(ProcessingError, match="gives no schema for subject 'absent'"):
        converter.to_bytes("absent", None, 1)
    with pytest.raises(ProcessingError, match="subject 'texts' is JSON, not AVRO"):
        converter.to_bytes("texts", None, 1)


def test_bodies_with_another_id_are_refused(registry: str) -> None:
    converter = AvroConverter.of({"schema.registry.url": registry})
    body = registered(RegisteredSchema(6, "AVRO", json.dumps(POINT))).serialize({"x": 3})
    with pytest.raises(DeserializationError, match=r"has the schema with id 6, and only \[7\]"):
        converter.from_bytes("points", body)


def test_arrays_of_optional_values() -> None:
    converter = by(schema_to_avro(array(STRING.as_optional())))
    assert converter.from_bytes("t", converter.to_bytes("t", None, ["a", None])).value == [
        "a",
        None,
    ]
