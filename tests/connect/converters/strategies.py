"""Schemas, and values that fit them."""

from __future__ import annotations

from datetime import UTC, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from headrace.connect.numbers import single
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Schema,
    Type,
    array,
    decimal,
    mapping,
    struct,
)

__all__ = ["schemas", "schemas_with_values", "values_of"]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=6)
SCALARS = [BOOLEAN, BYTES, INT8, INT16, INT32, INT64, FLOAT32, FLOAT64, STRING]
LOGICAL = [DATE, TIME, TIMESTAMP, decimal(0), decimal(2), decimal(20)]
BITS = {Type.INT8: 7, Type.INT16: 15, Type.INT32: 31, Type.INT64: 63}


def schemas(scalars: list[Schema] = SCALARS + LOGICAL) -> st.SearchStrategy[Schema]:
    """Any schema, a few levels deep."""
    plain = st.sampled_from(scalars)
    return st.recursive(
        st.builds(maybe_optional, plain, st.booleans()),
        lambda inner: st.builds(
            maybe_optional,
            st.one_of(
                inner.map(array),
                st.builds(mapping, plain, inner),
                st.dictionaries(NAMES, inner, max_size=4).map(struct),
            ),
            st.booleans(),
        ),
        max_leaves=6,
    )


def maybe_optional(schema: Schema, optional: bool) -> Schema:
    return schema.as_optional() if optional else schema


def values_of(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that fit a schema."""
    fitting = logical_values(schema) if schema.name else plain_values(schema)
    return st.none() | fitting if schema.optional else fitting


def logical_values(schema: Schema) -> st.SearchStrategy[Any]:
    if schema.type is Type.BYTES:
        scale = schema.scale
        # Arithmetic would round.
        return st.integers(-(10**30), 10**30).map(lambda number: Decimal(f"{number}e{-scale}"))
    if schema.name == DATE.name:
        return st.dates()
    if schema.name == TIME.name:
        return st.times().map(lambda one: time(one.hour, one.minute, one.second, 5000))
    return st.datetimes(timezones=st.just(UTC)).map(
        lambda one: one.replace(microsecond=one.microsecond // 1000 * 1000)
    )


def plain_values(schema: Schema) -> st.SearchStrategy[Any]:
    match schema.type:
        case Type.BOOLEAN:
            return st.booleans()
        case Type.BYTES:
            return st.binary(max_size=8)
        case Type.FLOAT32:
            return st.floats(allow_nan=False).map(single)
        case Type.FLOAT64:
            return st.floats(allow_nan=False)
        case Type.STRING:
            return TEXTS
        case Type.ARRAY:
            return st.lists(values_of(known(schema.items)), max_size=3)
        case Type.MAP:
            return st.dictionaries(
                values_of(known(schema.keys)), values_of(known(schema.items)), max_size=3
            )
        case Type.STRUCT:
            return st.fixed_dictionaries({one.name: values_of(one.schema) for one in schema.fields})
        case _:
            bits = BITS[schema.type]
            return st.integers(-(1 << bits), (1 << bits) - 1)


def known(schema: Schema | None) -> Schema:
    assert schema is not None
    return schema


@st.composite
def schemas_with_values(
    draw: st.DrawFn, of: st.SearchStrategy[Schema] | None = None
) -> tuple[Schema, Any]:
    schema = draw(schemas() if of is None else of)
    return schema, draw(values_of(schema))
