"""What expressions compute, on whole columns.

Integers stay exact: what would overflow 64 bits is computed again in Python and kept in a wider
column.  ``/`` gives a float as in Python, and dividing by zero gives null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, Overflow
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import column_of
from headrace.columns.values import python_values

__all__ = ["FUNCTIONS"]

#: An array, or a scalar that stands for the same value in every row.
Column = Any

# Sums, products and differences of decimals keep every digit; a quotient cannot.
_EXACT = Context(prec=400, traps=[Inexact, Overflow])
_QUOTIENTS = Context(prec=38)

_CASTS = {
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "float": pa.float64(),
    "int": pa.int64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def _python(
    function: Callable[[Any, Any], Any], kind: pa.DataType, left: Column, right: Column
) -> pa.Array:
    """Compute value by value in Python, where Arrow has no type that is wide enough."""
    size = next(len(one) for one in (left, right) if isinstance(one, pa.Array))
    columns = [
        python_values(one) if isinstance(one, pa.Array) else [one.as_py()] * size
        for one in (left, right)
    ]
    pairs = zip(*columns, strict=True)
    return column_of([None if a is None or b is None else function(a, b) for a, b in pairs], kind)


def _exact(fast: str, decimals: str, ints: Callable[[Any, Any], Any]) -> Callable[..., Column]:
    def compute(left: Column, right: Column) -> Column:
        try:
            return pc.call_function(fast, [left, right])
        except pa.ArrowInvalid:
            numeric = (pa.types.is_integer, pa.types.is_decimal)
            if not all(any(test(one.type) for test in numeric) for one in (left, right)):
                raise
        if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
            left = pa.array([left.as_py()], left.type)
        return _python(_with_decimals(ints, decimals), _kind_of(left, right), left, right)

    return compute


def _kind_of(left: Column, right: Column) -> pa.DataType:
    whole = all(pa.types.is_integer(one.type) or _is_wide(one.type) for one in (left, right))
    return pa.int64() if whole else pa.decimal128(38, 9)


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal256(kind) and kind.scale == 0)


def _with_decimals(ints: Callable[[Any, Any], Any], method: str) -> Callable[[Any, Any], Any]:
    exact = getattr(_EXACT, method)

    def compute(left: Any, right: Any) -> Any:
        decimals = isinstance(left, Decimal) or isinstance(right, Decimal)
        return exact(Decimal(left), Decimal(right)) if decimals else ints(left, right)

    return compute


def _add(left: Column, right: Column) -> Column:
    if pa.types.is_string(left.type) and pa.types.is_string(right.type):
        return pc.binary_join_element_wise(left, right, "")
    return _ADD(left, right)


_ADD = _exact("add_checked", "add", operator.add)


def _nonzero(divisor: Column) -> Column:
    zero = pc.equal(divisor, pa.scalar(0).cast(divisor.type))
    return pc.if_else(zero, pa.scalar(None, divisor.type), divisor)


def _divide(left: Column, right: Column) -> Column:
    divisor = _nonzero(right)
    if any(pa.types.is_decimal(one.type) and not _is_wide(one.type) for one in (left, right)):
        if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
            left = pa.array([left.as_py()], left.type)
        quotient = lambda a, b: _QUOTIENTS.divide(Decimal(a), Decimal(b))  # noqa: E731
        return _python(quotient, pa.decimal128(38, 9), left, divisor)
    numerator, divisor = (
        pc.cast(one, pa.float64(), safe=False) if not pa.types.is_floating(one.type) else one
        for one in (left, divisor)
    )
    return pc.divide(numerator, divisor)


def _floor_divide(left: Column, right: Column) -> Column:
    divisor = _nonzero(right)
    if not all(pa.types.is_integer(one.type) for one in (left, right)):
        if any(pa.types.is_decimal(one.type) for one in (left, right)):
            return _python(operator.floordiv, _kind_of(left, right), _column(left), divisor)
        return pc.floor(_divide(left, right))
    try:
        quotient = pc.divide_checked(left, divisor)
    except pa.ArrowInvalid:
        return _python(operator.floordiv, pa.int64(), _column(left), divisor)
    rest = pc.subtract(left, pc.multiply(quotient, divisor))
    apart = pc.and_(pc.not_equal(rest, 0), pc.not_equal(pc.less(rest, 0), pc.less(divisor, 0)))
    return pc.subtract(quotient, pc.cast(apart, pa.int64()))


def _column(one: Column) -> pa.Array:
    return one if isinstance(one, pa.Array) else pa.array([one.as_py()], one.type)


def _modulo(left: Column, right: Column) -> Column:
    if any(pa.types.is_decimal(one.type) for one in (left, right)):
        return _python(operator.mod, _kind_of(left, right), _column(left), _nonzero(right))
    whole = _floor_divide(left, right)
    return pc.subtract(left, pc.multiply(whole, right))


def _negate(value: Column) -> Column:
    return _exact("subtract_checked", "subtract", operator.sub)(
        pa.scalar(0).cast(value.type), value
    )


def _absolute(value: Column) -> Column:
    try:
        return pc.abs_checked(value)
    except pa.ArrowInvalid:
        return column_of(
            [None if one is None else abs(one) for one in python_values(_column(value))],
            pa.int64(),
        )


def _length(text: Column) -> Column:
    if pa.types.is_list(text.type):
        return pc.cast(pc.list_value_length(text), pa.int64())
    name = "binary_length" if pa.types.is_binary(text.type) else "utf8_length"
    return pc.cast(pc.call_function(name, [text]), pa.int64())


def _is_in(value: Column, *choices: pa.Scalar) -> Column:
    known = [choice.as_py() for choice in choices]
    return pc.is_in(value, value_set=pa.array(known, value.type if known else None))


def _split(text: Column, separator: pa.Scalar) -> Column:
    pattern = separator.as_py()
    if pattern is not None:
        return pc.split_pattern(text, pattern=pattern)
    # Space at the ends makes empty words, which Python's split does not.
    trimmed = pc.utf8_trim_whitespace(text)
    words = pc.utf8_split_whitespace(trimmed)
    empty = pc.equal(trimmed, "")
    if not pc.any(empty).as_py():
        return words
    return pc.if_else(pc.fill_null(empty, fill_value=False), pa.scalar([], words.type), words)


def _substring(text: Column, start: pa.Scalar, length: pa.Scalar) -> Column:
    first, size = start.as_py(), length.as_py()
    return pc.utf8_slice_codeunits(text, first, None if size is None else first + size)


def _like(text: Column, pattern: pa.Scalar) -> Column:
    return pc.match_like(text, pattern.as_py())


def _round(value: Column, digits: pa.Scalar) -> Column:
    if pa.types.is_integer(value.type) and digits.as_py() >= 0:
        return value
    return pc.round(value, ndigits=digits.as_py(), round_mode="half_to_even")


def _cast(value: Column, to: pa.Scalar) -> Column:
    kind = _CASTS[to.as_py()]
    if pa.types.is_floating(value.type) and pa.types.is_integer(kind):
        value = pc.trunc(value)
    return pc.cast(value, kind)


def _if_else(condition: Column, then: Column, otherwise: Column) -> Column:
    return pc.if_else(pc.fill_null(condition, fill_value=False), then, otherwise)


FUNCTIONS: dict[str, Callable[..., Column]] = {
    "abs": _absolute,
    "add": _add,
    "and": pc.and_kleene,
    "cast": _cast,
    "coalesce": pc.coalesce,
    "concat": lambda *texts: pc.binary_join_element_wise(*texts, ""),
    "contains": lambda text, part: pc.match_substring(text, part.as_py()),
    "divide": _divide,
    "ends_with": lambda text, part: pc.ends_with(text, part.as_py()),
    "equal": pc.equal,
    "floor_divide": _floor_divide,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
    "if_else": _if_else,
    "is_in": _is_in,
    "is_not_null": pc.is_valid,
    "is_null": pc.is_null,
    "length": _length,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "like": _like,
    "lower": pc.utf8_lower,
    "modulo": _modulo,
    "multiply": _exact("multiply_checked", "multiply", operator.mul),
    "negate": _negate,
    "not": pc.invert,
    "not_equal": pc.not_equal,
    "or": pc.or_kleene,
    "replace": lambda text, old, new: pc.replace_substring(text, old.as_py(), new.as_py()),
    "round": _round,
    "split": _split,
    "starts_with": lambda text, part: pc.starts_with(text, part.as_py()),
    "strip": pc.utf8_trim_whitespace,
    "substring": _substring,
    "subtract": _exact("subtract_checked", "subtract", operator.sub),
    "upper": pc.utf8_upper,
}
"""Functions by name; each takes columns or single values and gives a column."""
