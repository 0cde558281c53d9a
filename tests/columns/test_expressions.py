"""Expressions over columns compute what Python computes, value by value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.columns import Expression, Schema, coalesce, col, concat, explode, if_else, lit
from headrace.columns.evaluation import Explosion, evaluate, exploded, filtered
from headrace.columns.schema import column_of
from headrace.columns.values import ColumnValues, python_values


def computed(expression: Expression, **columns: list[Any]) -> list[Any]:
    kinds = {
        bool: pa.bool_(),
        int: pa.int64(),
        str: pa.string(),
        float: pa.float64(),
        Decimal: pa.decimal128(38, 9),
    }
    arrays = []
    for values in columns.values():
        kind = next((type(value) for value in values if value is not None), int)
        arrays.append(column_of(values, kinds[kind]) if kind in kinds else pa.array(values))
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))
    return python_values(evaluate(expression.node, batch))


INTS = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.integers(-(2**70), 2**70)
)


@pytest.mark.parametrize(
    "compute", [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
)
@given(pairs=st.lists(st.tuples(INTS, INTS), min_size=1, max_size=20))
def test_arithmetic_on_ints_is_exact(
    compute: Callable[[Any, Any], Any], pairs: list[tuple[int | None, int | None]]
) -> None:
    divides = compute in (operator.floordiv, operator.mod)
    expected = [
        None if a is None or b is None or (divides and b == 0) else compute(a, b) for a, b in pairs
    ]
    lefts, rights = [a for a, _ in pairs], [b for _, b in pairs]
    assert computed(compute(col("a"), col("b")), a=lefts, b=rights) == expected


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_negation_and_absolute_value_do_not_overflow(values: list[int]) -> None:
    assert computed(-col("a"), a=values) == [-value for value in values]
    assert computed(abs(col("a")), a=values) == [abs(value) for value in values]


@given(
    pairs=st.lists(
        st.tuples(
            st.decimals(
                allow_nan=False,
                allow_infinity=False,
                places=4,
                min_value=-(10**12),
                max_value=10**12,
            ),
            st.decimals(
                allow_nan=False,
                allow_infinity=False,
                places=2,
                min_value=-(10**12),
                max_value=10**12,
            ),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_decimals_stay_exact(pairs: list[tuple[Decimal, Decimal]]) -> None:
    lefts, rights = [a for a, _ in pairs], [b for _, b in pairs]
    assert computed(col("a") + col("b"), a=lefts, b=rights) == [a + b for a, b in pairs]


def test_division_gives_floats_and_null_for_zero() -> None:
    assert computed(col("a") / col("b"), a=[7, 1, None], b=[2, 0, 3]) == [3.5, None, None]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (col("s").lower(), ["ab c", None, "", "ß!"]),
        (col("s").upper(), ["AB C", None, "", "ẞ!"]),
        (col("s").split(), [["Ab", "c"], None, [], ["ß!"]]),
        (col("s").split("b"), [["A", " c"], None, [""], ["ß!"]]),
        (col("s").length(), [4, None, 0, 2]),
        (col("s").contains("b "), [True, None, False, False]),
        (col("s").starts_with("A"), [True, None, False, False]),
        (col("s").ends_with("!"), [False, None, False, True]),
        (col("s").like("_b%"), [True, None, False, False]),
        (col("s").replace("b", "xx"), ["Axx c", None, "", "ß!"]),
        (col("s").substring(1, 2), ["b ", None, "", "!"]),
        (col("s") + "?", ["Ab c?", None, "?", "ß!?"]),
        (concat("<", col("s"), ">"), ["<Ab c>", None, "<>", "<ß!>"]),
        (col("s").is_null(), [False, True, False, False]),
        (col("s").is_not_null(), [True, False, True, True]),
        (coalesce(col("s"), "none"), ["Ab c", "none", "", "ß!"]),
        (col("s").is_in(["", "Ab c"]), [True, False, True, False]),
        (if_else(col("s") == "", 1, 0), [0, 0, 1, 0]),
        (lit(2) * 3, [6, 6, 6, 6]),
    ],
    ids=str,
)
def test_functions_of_text(expression: Expression, expected: list[Any]) -> None:
    assert computed(expression, s=["Ab c", None, "", "ß!"]) == expected


def test_null_is_neither_true_nor_false() -> None:
    known = [True, False, None]
    assert computed(col("a") | col("b"), a=known, b=[None, None, False]) == [True, None, None]
    assert computed(col("a") & col("b"), a=known, b=[None, None, True]) == [None, False, None]
    batch = pa.RecordBatch.from_pydict({"a": known})
    assert filtered(col("a").node, batch).to_pylist() == [0]


def test_rounding_and_casts_are_pythons() -> None:
    halves = [0.5, 1.5, -2.5, 2.675]
    assert computed(col("a").round(), a=halves) == [round(value) for value in halves]
    assert computed(col("a").cast("int"), a=halves) == [int(value) for value in halves]
    assert computed(col("a").cast("string"), a=[1, -2]) == ["1", "-2"]


def test_explode_gives_a_row_per_item_and_repeats_the_others() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["a b", "", None, " c"], "n": [1, 2, 3, 4]})
    columns = [("w", explode(col("s").split()).node), ("n", col("n").node)]
    found, rows = exploded(columns, batch)
    assert rows is not None
    assert found.to_pydict() == {"w": ["a", "b", "c"], "n": [1, 1, 4]}
    assert rows.to_pylist() == [0, 0, 3]


def test_explode_stands_at_the_top_only() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["a b"]})
    with pytest.raises(Explosion, match="at the top"):
        evaluate(explode(col("s").split()).length().node, batch)
    twice = [(name, explode(col("s").split()).node) for name in "ab"]
    with pytest.raises(Explosion, match="only one"):
        exploded(twice, batch)


def test_missing_column_names_its_neighbour() -> None:
    batch = pa.RecordBatch.from_pydict({"price": [1]})
    with pytest.raises(KeyError, match="did you mean 'price'"):
        evaluate(col("prize").node, batch)


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="use &"):
        bool(col("a") == 1)


def test_column_values_read_like_a_list_and_keep_what_was_read() -> None:
    data = pa.array([b"x", b"y", b"z"], pa.binary())
    read: list[int] = []

    def decode(bodies: pa.BinaryArray) -> list[str]:
        read.append(len(bodies))
        return [body.decode() for body in bodies.to_pylist()]

    values = ColumnValues(pa.RecordBatch.from_pydict({"v": ["x", "y", "z"]}), origin=(data, decode))
    picked = ColumnValues.concat(
        [values.take(np.array([2, 0])), values.take(np.array([1, 2])).take(np.array([0]))]
    )
    assert len(picked) == 3
    assert read == []
    assert list(picked) == ["z", "x", "y"]
    assert picked[0] == "z"
    assert read == [3]


def test_concat_widens_what_one_part_has_wider() -> None:
    parts = [
        ColumnValues(Schema.of(int).batch(values))  # type: ignore[union-attr]
        for values in ([1], [2**65])
    ]
    assert ColumnValues.concat(parts).to_list() == [{"value": 1}, {"value": 2**65}]


def test_special_floats_and_times_pass() -> None:
    assert math.isnan(computed(col("a") * 2, a=[math.nan])[0])
    moment = datetime(2024, 1, 2, 3, tzinfo=UTC)
    assert computed(col("a") >= moment, a=[moment, None]) == [True, None]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32(), pa.duration("us")])
def test_moments_come_back_as_they_were(kind: pa.DataType) -> None:
    for numbers in ([3, None, 3, 7], [None], []):
        column = pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
        assert python_values(column) == column.to_pylist()
        assert python_values(column.slice(1)) == column.slice(1).to_pylist()
