"""Expressions over columns compute what Python computes, value by value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from headrace.columns import Expression, Schema, coalesce, col, concat, explode, if_else, lit
from headrace.columns.functions import Explosion, evaluate, exploded, filtered
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
@example(pairs=[(-(2**63), -1)])
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
        (col("s").upper(), ["AB C", None, "", "SS!"]),
        (col("s").split(), [["Ab", "c"], None, [], ["ß!"]]),
        (col("s").split("b"), [["A", " c"], None, [""], ["ß!"]]),
        (col("s").length(), [4, None, 0, 2]),
        (col("s").contains("b "), [True, None, False, False]),
        (col("s").starts_with("A"), [True, None, False, False]),
        (col("s").ends_with("!"), [False, None, False, True]),
        (col("s").like("_b%"), [True, None, False, False]),
        (col("s").replace("b", "xx"), ["Axx c", None, "", "ß!"]),
        (col("s").replace("", "-"), ["-A-b- -c-", None, "-", "-ß-!-"]),
        (col("s").substring(1, 2), ["b ", None, "", "!"]),
        (col("s").substring(-1, 1), ["c", None, "", "!"]),
        (col("s").substring(-3, 2), ["b ", None, "", "ß!"]),
        (col("s").substring(-9), ["Ab c", None, "", "ß!"]),
        (col("s") + "?", ["Ab c?", None, "?", "ß!?"]),
        (concat("<", col("s"), ">"), ["<Ab c>", None, "<>", "<ß!>"]),
        (col("s").is_null(), [False, True, False, False]),
        (col("s").is_not_null(), [True, False, True, True]),
        (coalesce(col("s"), "none"), ["Ab c", "none", "", "ß!"]),
        (col("s").is_in(["", "Ab c"]), [True, None, True, False]),
        (~col("s").is_in(["", "Ab c"]), [False, None, False, True]),
        (col("s").is_in(["", None]), [False, True, True, False]),
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


FLOATS = st.one_of(
    st.floats(), st.floats(-100, 100), st.sampled_from([0.1, 0.3, 1.0, 5.0, math.inf, -math.inf])
)


def same(found: list[Any], expected: list[Any]) -> bool:
    """Compare by what is written: NaN is NaN, and -0.0 not 0.0."""
    return list(map(repr, found)) == list(map(repr, expected))


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(FLOATS, FLOATS.filter(bool)), min_size=1))
def test_quotients_and_rests_of_floats_are_pythons(pairs: list[tuple[float, float]]) -> None:
    lefts, rights = [a for a, _ in pairs], [b for _, b in pairs]
    for compute in (operator.truediv, operator.floordiv, operator.mod):
        expected = [compute(a, b) for a, b in pairs]
        assert same(computed(compute(col("a"), col("b")), a=lefts, b=rights), expected), compute
    assert same(computed(-col("a"), a=lefts), [-a for a in lefts])
    assert same(computed(col("a").cast("string"), a=lefts), [str(a) for a in lefts])


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.one_of(FLOATS, st.integers(-(10**7), 10**7).map(lambda n: n / 1000)), min_size=1
    ),
    digits=st.integers(-25, 25).filter(bool),
)
def test_rounding_is_pythons(values: list[float], digits: int) -> None:
    values = [*values, 2.675, 1.005, -2.675, 0.15, 1e300]
    expected = [round(value, digits) for value in values]
    assert same(computed(col("a").round(digits), a=values), expected)
    assert same(computed(col("a").round(digits), a=[*values, None]), [*expected, None])


BIG = st.one_of(
    st.integers(-(2**55), 2**55), st.integers(-(2**70), 2**70), st.integers(2**53 - 2, 2**53 + 2)
)


@settings(max_examples=60, deadline=None)
@given(ints=st.lists(BIG, min_size=1, max_size=5), other=st.one_of(st.floats(), BIG.map(float)))
def test_ints_that_no_float_holds_meet_floats_as_in_python(ints: list[int], other: float) -> None:
    for compute in (
        *(operator.add, operator.sub, operator.mul),
        *(operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt),
    ):
        expected = [compute(n, other) for n in ints]
        assert same(computed(compute(col("a"), other), a=ints), expected), compute
        others = [other] * len(ints)
        assert same(computed(compute(col("a"), col("b")), a=ints, b=others), expected), compute
        turned = [compute(other, n) for n in ints]
        assert same(computed(compute(lit(other), col("a")), a=ints), turned), compute
    assert computed(col("a").is_in([other]), a=ints) == [n == other for n in ints]
    assert computed(col("a") / col("b"), a=ints, b=[3] * len(ints)) == [n / 3 for n in ints]
    floats = [float(n) for n in ints]
    assert same(computed(col("a").cast("float"), a=ints), floats)
    assert same(computed(coalesce(col("a"), other), a=[*ints, None]), [*floats, other])
    assert same(computed(if_else(col("a").is_null(), other, col("a")), a=ints), floats)


@pytest.mark.parametrize(
    ("values", "choices"),
    [
        ([1, 2, 3], [1.0, 2.5, 2**70, True]),
        ([1.0, 2.5], [1, 2, Decimal("2.5"), 2**70]),
        ([Decimal("1.5"), Decimal(2)], [1.5, 2, 0.1]),
        ([2**70, 3], [2**70, float(2**70), 3]),
    ],
)
def test_a_number_is_in_what_holds_an_equal_one(values: list[Any], choices: list[Any]) -> None:
    assert computed(col("a").is_in(choices), a=values) == [value in choices for value in values]


@pytest.mark.parametrize(
    ("to", "made", "values"),
    [
        ("int", int, ["12", " 12 ", "1_000", "+3", "1" * 25]),
        ("int", int, [1.7, -1.7, 1e19, 1e60]),
        ("int", int, [Decimal("1.7"), Decimal("-1.7")]),
        ("int", int, [2**70]),
        ("float", float, ["1e3", " 1.5 ", "inf", "1e400", "1_0.5"]),
        ("float", float, [Decimal("0.1"), Decimal(2)]),
        ("string", str, [2**70, 3]),
    ],
)
def test_casts_are_pythons(to: Any, made: Callable[[Any], Any], values: list[Any]) -> None:
    assert same(computed(col("a").cast(to), a=values), [made(value) for value in values])


@pytest.mark.parametrize("text", ["ß", "ŉ", "ﬁ", "İ", "ΑΣ ΣΑΣ", "Straße", "ǆ", "ᾳ", "x"])
def test_letters_beyond_ascii_change_as_in_python(text: str) -> None:
    assert computed(col("s").upper(), s=[text, None, "a"]) == [text.upper(), None, "A"]
    assert computed(col("s").lower(), s=[text, None, "A"]) == [text.lower(), None, "a"]


COLUMNS = Path(__file__).parents[2] / "docs" / "guides" / "build" / "columns.md"


def differences() -> Iterator[tuple[str, str, str, str]]:
    """Give the rows of the table: what is in code of each of its cells."""
    _, _, table = COLUMNS.read_text().partition("What differs from Python")
    for line in table.split("\n\n")[1].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        here, gives, there, python = (cell.split("`")[1::2] or ["refused"] for cell in cells)
        yield here[0], gives[0], there[0], python[0]


def outcome(code: str) -> str:
    """Give what code gives, or the name of its error."""
    names = {"coalesce": coalesce, "if_else": if_else, "lit": lit}
    try:
        found = eval(code, {**names, "Decimal": Decimal, "datetime": datetime})
    except (ArithmeticError, TypeError) as error:
        return type(error).__name__
    if not isinstance(found, Expression):
        return repr(found)
    batch = pa.RecordBatch.from_pydict({"row": [0]})
    try:
        return repr(python_values(evaluate(found.node, batch))[0])
    except (pa.ArrowException, TypeError):
        return "refused"


@pytest.mark.parametrize(("here", "gives", "there", "python"), [*differences()])
def test_the_docs_name_what_differs_from_python(
    here: str, gives: str, there: str, python: str
) -> None:
    expected = [
        one if one.isidentifier() and one not in ("None", "True", "False") else outcome(one)
        for one in (gives, python)
    ]
    assert [outcome(here), outcome(there)] == expected
    assert expected[0] != expected[1]


def test_text_cannot_be_divided() -> None:
    with pytest.raises(TypeError, match="text cannot be divided"):
        computed(col("s") / 2, s=["12"])


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
