"""Rows as the lines of files: columns are written as their values would be."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.connect.connectors.storage.formats import as_written, write_rows
from headrace.connect.connectors.texts import as_json

_VALUES = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=4),
}


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> pa.Array:
    """Columns of values, lists and structs of them, with nulls."""
    count = draw(st.integers(0, 4))
    shape = draw(st.sampled_from(["value", "list", "struct"] if depth else ["value"]))
    if shape == "value":
        kind = draw(st.sampled_from(list(_VALUES)))
        values = st.lists(st.none() | _VALUES[kind], min_size=count, max_size=count)
        return pa.array(draw(values), kind)
    items = draw(columns(depth - 1))
    one = st.none() | st.lists(st.sampled_from(items.to_pylist() or [None]), max_size=3)
    rows: Any
    if shape == "list":
        rows = draw(st.lists(one, min_size=count, max_size=count))
        return pa.array(rows, pa.list_(items.type))
    names = draw(st.lists(st.text(max_size=3), min_size=1, max_size=2, unique=True))
    cell = st.sampled_from(items.to_pylist() or [None])
    row = st.none() | st.fixed_dictionaries(dict.fromkeys(names, cell))
    rows = draw(st.lists(row, min_size=count, max_size=count))
    return pa.array(rows, pa.struct([(name, items.type) for name in names]))


@settings(max_examples=20)
@given(columns())
def test_columns_become_the_json_of_their_values(column: pa.Array) -> None:
    found = as_written(column, "jsonl").to_pylist()
    assert list(map(orjson.loads, found)) == [
        orjson.loads(as_json(value)) for value in column.to_pylist()
    ]


@pytest.mark.parametrize("rows", [[], [b"1"], [b"1", b'"a"']])
def test_each_row_is_a_line(rows: list[bytes]) -> None:
    file = io.BytesIO()
    write_rows(file, pa.array(rows, pa.binary()), "jsonl", "none", "some file")
    assert file.getvalue().splitlines(keepends=True) == [row + b"\n" for row in rows]
