"""Values beside schemas."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Schema,
    array,
    check,
    decimal,
    infer,
    mapping,
    schema_of_arrow,
    struct,
)
from headrace.errors import SchemaError

USER = struct({"id": INT64, "tags": array(STRING), "score": FLOAT64.as_optional()}, name="user")


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (-128, INT8),
        (True, BOOLEAN),
        (b"x", BYTES),
        (1, FLOAT64),
        (None, STRING.as_optional()),
        (None, STRING.with_default("x")),
        ({"id": 1, "tags": ["a"]}, USER),
        ({"a": {"b": 1}}, mapping(STRING, mapping(STRING, INT32))),
        (datetime(2024, 1, 1, tzinfo=UTC), TIMESTAMP),
    ],
)
def test_value_that_fits_passes(value: Any, schema: Schema) -> None:
    check(value, schema)


@pytest.mark.parametrize(
    ("value", "schema", "path"),
    [
        (128, INT8, "value is the int 128"),
        (True, INT32, "value is the bool True"),
        (True, FLOAT64, "value is the bool True"),
        (1, BOOLEAN, "value is the int 1"),
        (None, STRING, "value is missing"),
        ({"id": 1, "tags": ["a", 2]}, USER, r"value\.tags\[1\] is the int 2"),
        ({"id": 1, "tags": [], "x": 0}, USER, "the field 'x'"),
        ({"tags": []}, USER, r"value\.id is missing"),
        ([], USER, "value is the list"),
        ({1: 1}, mapping(STRING, INT32), "a key of value is the int 1"),
        (datetime(2024, 1, 1, tzinfo=UTC), DATE, "value is the datetime"),
    ],
)
def test_value_that_does_not_fit_is_named_by_its_path(
    value: Any, schema: Schema, path: str
) -> None:
    with pytest.raises(SchemaError, match=path):
        check(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, BOOLEAN),
        (Decimal("1.50"), decimal(2)),
        (datetime(2024, 1, 1, tzinfo=UTC), TIMESTAMP),
        (date(2024, 1, 1), DATE),
        (time(1), TIME),
        ([[1], [2]], array(array(INT64))),
        ([], None),
        ([None], None),
        (None, None),
        (object(), None),
    ],
)
def test_schema_follows_from_the_value(value: Any, schema: Schema | None) -> None:
    assert infer(value) == schema


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2], pa.int8()),
        pa.array([1, 2], pa.uint32()),
        pa.array([1.5], pa.float32()),
        pa.array([b"x"], pa.large_binary()),
        pa.array(["x", "x"]).dictionary_encode(),
        pa.array([datetime(2024, 1, 1, tzinfo=UTC)]),
        pa.array([date(2024, 1, 1)]),
        pa.array([time(1, 2)]),
        pa.array([Decimal("1.50")]),
        pa.array([{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_an_arrow_column_fit_the_schema_of_its_type(values: pa.Array) -> None:
    schema = schema_of_arrow(values.type)
    for value in values.to_pylist():
        check(value, schema)


def test_arrow_type_without_a_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="Arrow type duration"):
        schema_of_arrow(pa.duration("s"))
