"""JSON: values come back, columns say what values say, refusals name the place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.connect.converters import JsonConverter, schema_from_json, schema_to_json
from headrace.connect.schema import (
    DATE,
    FLOAT64,
    INT8,
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
from headrace.errors import ConnectorConfigError, DeserializationError, SerializationError
from tests.connect.converters.strategies import TEXTS, schemas, schemas_with_values

PLAIN = JsonConverter.of({"schemas.enable": "false"})
WITH_SCHEMAS = JsonConverter.of({})
NUMERIC = JsonConverter.of({"decimal.format": "NUMERIC"})


@pytest.mark.parametrize("converter", [WITH_SCHEMAS, NUMERIC])
@settings(max_examples=60)
@given(pair=schemas_with_values())
def test_values_come_back_with_their_schemas(
    converter: JsonConverter, pair: tuple[Schema, Any]
) -> None:
    schema, value = pair
    assert converter.from_bytes("t", converter.to_bytes("t", schema, value)) == (schema, value)


@settings(max_examples=60)
@given(schemas())
def test_schemas_come_back(schema: Schema) -> None:
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema


def test_everything_that_a_schema_says_comes_back() -> None:
    schema = struct(
        {"at": TIMESTAMP.with_default(datetime(2020, 1, 2, tzinfo=UTC)), "n": INT32.as_optional()},
        name="event",
        version=3,
        doc="What happened.",
    ).changed(parameters={"a": "b"})
    body = WITH_SCHEMAS.to_bytes("t", schema, {"at": None, "n": None})
    found = WITH_SCHEMAS.from_bytes("t", body)
    assert found.schema == schema
    assert found.value == {"at": datetime(2020, 1, 2, tzinfo=UTC), "n": None}


LOOSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("converter", [PLAIN, WITH_SCHEMAS])
@given(value=LOOSE)
def test_data_without_a_schema_comes_back(converter: JsonConverter, value: Any) -> None:
    assert converter.from_bytes("t", converter.to_bytes("t", None, value)) == (None, value)


@given(st.lists(LOOSE, max_size=5))
def test_columns_of_bodies_are_read_as_single_bodies_are(values: list[Any]) -> None:
    bodies = [PLAIN.to_bytes("t", None, value) for value in values]
    column = PLAIN.from_column("t", pa.array(bodies, pa.binary()))
    if column is not None:
        singly = [PLAIN.from_bytes("t", body).value for body in bodies]
        assert column.values.to_pylist() == singly


COLUMNS = [
    pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
    pa.array([{"a": 1.0, "b": None}, None, {"a": None, "b": ["p", None]}]),
    pa.array([{"q": 'a"b\\c', "n": "tab\there"}, {"q": "é☃😀\u2028", "n": ""}]),
    pa.array([1.0, 1e300, 1e16, -0.0, 0.1, None, 5e-324]),
    pa.array([0.1, 1.5], pa.float32()),
    pa.array([float("nan"), float("inf"), None]),
    pa.array([True, None, False]),
    pa.array([b"a", None]),
    pa.array([[[1], None], [], None]),
    pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    pa.array([{}, None], pa.struct([])),
    pa.array([], pa.string()),
    pa.array([None, None]),
    pa.array([{'weird "name"': {"in": [{"x": 1}]}}]),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda one: str(one.type))
@pytest.mark.parametrize("start", [0, 1])
def test_columns_are_written_as_single_values_are(column: pa.Array, start: int) -> None:
    part = column[start:]
    bodies = PLAIN.to_column("t", None, part)
    singly = [PLAIN.to_bytes("t", None, one) for one in part.to_pylist(maps_as_pydicts="strict")]
    assert bodies.type == pa.binary()
    found = [None if one is None else loads(one) for one in bodies.to_pylist()]
    assert found == [None if one is None else loads(one) for one in singly]


def loads(body: bytes) -> Any:
    return json.loads(
        body, parse_float=lambda text: ("point", pytest.approx(float(text), rel=1e-6))
    )


def test_columns_with_a_schema_are_written_with_it() -> None:
    schema = struct({"a": INT64})
    bodies = WITH_SCHEMAS.to_column("t", schema, pa.array([{"a": 1}]))
    assert WITH_SCHEMAS.from_bytes("t", bodies[0].as_py()) == (schema, {"a": 1})


SHOP = struct(
    {
        "id": INT64,
        "name": STRING.as_optional(),
        "price": FLOAT64,
        "tags": array(STRING.as_optional()),
        "at": struct({"zip": INT32}).as_optional(),
    },
    name="shop",
)
ROW = {"id": 1, "name": 'a"b', "price": 2.0, "tags": ["x", None], "at": {"zip": 5}}
ROWS = pa.array(
    [ROW, ROW | {"name": None, "at": None, "tags": []}],
    pa.struct(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.struct([("zip", pa.int32())])),
        ]
    ),
)


@pytest.mark.parametrize("converter", [PLAIN, WITH_SCHEMAS])
@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (SHOP, ROWS),
        (SHOP, ROWS[:1]),
        (SHOP.as_optional(), pa.array([None, ROW], ROWS.type)),
        (INT32.as_optional(), pa.array([1, None], pa.int32())),
        (INT32.with_default(7), pa.array([1, None], pa.int32())),
        (INT32, pa.array([1, 2], pa.int64())),
        (TIMESTAMP, pa.array([datetime(2020, 1, 1, tzinfo=UTC)])),
        (decimal(2), pa.array([Decimal("1.50")])),
        (mapping(STRING, INT8), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))),
        (None, pa.array([{"a": 1}, None])),
    ],
)
def test_columns_are_written_by_a_schema_as_single_values_are(
    converter: JsonConverter, schema: Schema | None, column: pa.Array
) -> None:
    singly = [
        converter.to_bytes("t", schema, one) for one in column.to_pylist(maps_as_pydicts="strict")
    ]
    assert converter.to_column("t", schema, column).to_pylist() == singly


def test_a_column_with_a_null_that_is_required_is_refused() -> None:
    with pytest.raises(SerializationError, match="it is null, and int32 is required"):
        PLAIN.to_column("t", INT32, pa.array([1, None], pa.int32()))


@pytest.mark.parametrize("converter", [PLAIN, WITH_SCHEMAS])
def test_a_column_without_any_body_is_nothing(converter: JsonConverter) -> None:
    column = converter.from_column("t", pa.nulls(3, pa.binary()))
    assert column is not None
    assert (column.schema, column.values.to_pylist()) == (None, [None] * 3)


def test_a_column_is_read_as_objects_of_one_type() -> None:
    bodies = pa.array([b'{"a":1,"b":["x"]}', b'{"b":["y","z"],"a":2}'], pa.binary())
    column = PLAIN.from_column("t", bodies)
    assert column is not None
    assert column.values.field("a").to_pylist() == [1, 2]
    assert column.values.field("b").to_pylist() == [["x"], ["y", "z"]]


@pytest.mark.parametrize(
    "bodies",
    [
        [b'{"a":1}', b"{}"],
        [b'{"a":1}', b'{"a":null}'],
        [b'{"a":"2020-01-01"}'],
        [b'{"a":9223372036854775808}'],
        [b'{"a":12345678901234567}', b'{"a":0.5}'],
        [b'{"a":1}{"a":2}', b" "],
        [b'{"a":', b"1}"],
        [b'{"a":"\xff"}'],
        [b"1"],
        [b'{"a":1}', None],
        [b"nope"],
    ],
)
def test_bodies_that_a_column_cannot_hold_as_they_are_stay_single(bodies: list[Any]) -> None:
    assert PLAIN.from_column("t", pa.array(bodies, pa.binary())) is None


PERSON = struct(
    {"name": STRING, "lines": array(struct({"zip": INT32})), "by": mapping(STRING, INT8)}
)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": 1, "lines": [], "by": {}}, "at name: string is needed, not int"),
        (
            {"name": "a", "lines": [{"zip": 1}, {"zip": "x"}], "by": {}},
            "at lines[1].zip: int32 is needed, not str",
        ),
        (
            {"name": "a", "lines": [], "by": {"k": 128}},
            "at by['k']: 128 is beyond the range of int8",
        ),
        ({"name": "a", "lines": None, "by": {}}, "at lines: it is null, and array is required"),
        ({"name": "a", "lines": [], "by": {}, "x": 1}, "the schema has no field 'x'"),
        ("text", "struct is needed, not str; the value begins 'text'"),
    ],
)
def test_a_refused_value_says_where(value: Any, told: str) -> None:
    with pytest.raises(SerializationError) as caught:
        PLAIN.to_bytes("people", PERSON, value)
    assert "the value of a record for topic 'people'" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            {"a": [1, {"b": Decimal(1)}]},
            "at a[1].b: JSON without a schema has no place for Decimal",
        ),
        ({"a": 1 << 70}, "at a: 1180591620717411303424 is beyond the range of int64"),
        ({1: {2: datetime(2020, 1, 1, tzinfo=UTC)}}, "at 1.2: JSON without a schema has no place"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_refused_data_says_where(value: Any, told: str) -> None:
    with pytest.raises(SerializationError) as caught:
        PLAIN.to_bytes("t", None, value)
    assert told in str(caught.value)


def test_a_column_with_a_value_that_is_refused_says_which() -> None:
    column = pa.array([{"d": Decimal("1.5")}])
    with pytest.raises(SerializationError, match=r"at d: .* no place for Decimal"):
        PLAIN.to_column("t", None, column)


def body(schema: dict[str, Any], payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


@pytest.mark.parametrize(
    ("told", "payload", "reason"),
    [
        (schema_to_json(PERSON), {"name": "a", "by": {}}, "at lines: it is null"),
        (
            schema_to_json(PERSON),
            {"name": "a", "lines": [{"zip": 1.5}], "by": {}},
            "at lines[0].zip: int32 is needed, not 1.5",
        ),
        ({"type": "struct"}, {}, "at schema: the schema of a struct has an array 'fields'"),
        ({"type": "date"}, 1, "at schema: there is no type 'date' of schemas"),
        (schema_to_json(DATE), 10**9, "1000000000 days from 1970 is no date"),
        (schema_to_json(decimal(2)), True, "base64 text of bytes is needed, not bool"),
        (
            {"type": "struct", "fields": [{"field": "a", "type": "int8"}] * 2},
            {"a": 1},
            "has the field 'a' twice",
        ),
    ],
)
def test_a_refused_body_says_where(told: dict[str, Any], payload: Any, reason: str) -> None:
    with pytest.raises(DeserializationError) as caught:
        WITH_SCHEMAS.from_bytes("people", body(told, payload))
    assert "the value of a record of topic 'people'" in str(caught.value)
    assert reason in str(caught.value)


def test_json_without_schemas_is_not_read_as_json_with_schemas() -> None:
    with pytest.raises(DeserializationError) as caught:
        WITH_SCHEMAS.from_bytes("t", b'{"a":1}')
    assert "set schemas.enable=false" in str(caught.value)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConnectorConfigError, match=r"decimal\.format is 'HEX'"):
        JsonConverter.of({"decimal.format": "HEX"})


def test_no_more_schemas_are_kept_than_allowed() -> None:
    converter = JsonConverter.of({"schemas.cache.size": "2"})
    for number in range(5):
        schema = struct({f"f{number}": FLOAT64})
        written = converter.to_bytes("t", schema, {f"f{number}": 0.5})
        assert converter.from_bytes("t", written).schema == schema
    assert converter._writer.cache_info().currsize == 2
    assert converter._reader.cache_info().currsize == 2


@pytest.mark.parametrize("converter", [PLAIN, WITH_SCHEMAS])
def test_nesting_without_end_is_refused(converter: JsonConverter) -> None:
    with pytest.raises(DeserializationError):
        converter.from_bytes("t", b'{"schema":null,"payload":' + b"[" * 100_000)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SerializationError):
        converter.to_bytes("t", None, endless)
