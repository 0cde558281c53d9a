"""The functions of expressions, on whole columns.

They mean what Python means; the table of ``docs/guides/build/columns.md`` lists the exceptions.
Where Arrow means something else, values are computed in Python: one by one, and only those that
have to be.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, Overflow
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.expressions import Call, Name, Node, Value
from headrace.columns.schema import WIDE, Schema, column_of
from headrace.columns.values import python_values
from headrace.spelling import did_you_mean

#: An array, or a scalar that stands for the same value in every row.
Column = Any

# Sums, products and differences of decimals keep every digit; a quotient cannot.
_EXACT = Context(prec=400, traps=[Inexact, Overflow])
_QUOTIENTS = Context(prec=38)

_UNKNOWN = pa.scalar(None, pa.bool_())

#: From here on powers of 10 are inexact, numbers are large, and halves too near to call.
_EXACT_POWERS, _LARGE, _DOUBTFUL = 23, 2.0**40, 1e-3

#: Functions that read text, by the name of the type.
_READ: dict[str, Callable[[str], Any]] = {"float": float, "int": int}

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
    size = max(len(one) for one in (left, right) if isinstance(one, pa.Array))
    columns = [
        python_values(one) if isinstance(one, pa.Array) else python_values(_column(one)) * size
        for one in (left, right)
    ]
    pairs = zip(*columns, strict=True)
    return column_of([None if a is None or b is None else function(a, b) for a, b in pairs], kind)


def _each(function: Callable[[Any], Any], kind: pa.DataType, values: Column) -> pa.Array:
    """Compute value by value in Python, nulls aside."""
    found = python_values(_column(values))
    return column_of([None if one is None else function(one) for one in found], kind)


def _is_number(one: Column) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(one.type) for test in kinds)


def _meets_floats(*columns: Column) -> bool:
    """Return whether these are numbers or null, with floats among them."""
    return any(pa.types.is_floating(one.type) for one in columns) and all(
        _is_number(one) or pa.types.is_null(one.type) for one in columns
    )


def _as_floats(*columns: Column) -> list[Column]:
    """Turn all into floats where there are floats among them, as Python does with numbers."""
    return [*map(_as_float, columns)] if _meets_floats(*columns) else [*columns]


def _as_float(one: Column) -> Column:
    if pa.types.is_floating(one.type):
        return one
    if pa.types.is_integer(one.type):
        return pc.cast(one, pa.float64(), safe=False)
    found = _each(float, pa.float64(), one)
    return found if isinstance(one, pa.Array) else found[0]


def _exact(fast: str, decimals: str, ints: Callable[[Any, Any], Any]) -> Callable[..., Column]:
    def compute(left: Column, right: Column) -> Column:
        left, right = _as_floats(left, right)
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
    if _meets_floats(left, right):
        return pc.divide(*_as_floats(left, divisor))
    if any(pa.types.is_string(one.type) for one in (left, right)):
        message = "text cannot be divided"
        raise TypeError(message)
    try:
        # For ints that floats hold exactly, the quotient is the nearest float.
        return pc.divide(*(pc.cast(one, pa.float64()) for one in _narrow(left, divisor)))
    except pa.ArrowInvalid:
        return _python(operator.truediv, pa.float64(), left, divisor)


def _narrow(*columns: Column) -> list[Column]:
    """Bring ints that are in wide columns into 64 bits; raise where one does not fit."""
    return [pc.cast(one, pa.int64()) if _is_wide(one.type) else one for one in columns]


def _by_floats(function: Callable[..., Any], left: Column, right: Column) -> pa.Array:
    """Compute floats by NumPy, whose division is Python's."""
    left, right = map(_column, _as_floats(left, right))
    values = [one.to_numpy(zero_copy_only=False) for one in (left, right)]
    with np.errstate(all="ignore"):
        found = function(*values)
    unknown = [np.asarray(one.is_null()) for one in (left, right)]
    return pa.array(found, mask=np.broadcast_to(unknown[0] | unknown[1], found.shape).copy())


def _floor_divide(left: Column, right: Column) -> Column:
    divisor = _nonzero(right)
    if _meets_floats(left, right):
        return _by_floats(np.floor_divide, left, divisor)
    if any(pa.types.is_decimal(one.type) for one in (left, right)):
        return _python(operator.floordiv, _kind_of(left, right), left, divisor)
    try:
        quotient = pc.divide_checked(left, divisor)
    except pa.ArrowInvalid:
        return _python(operator.floordiv, pa.int64(), left, divisor)
    rest = pc.subtract(left, pc.multiply(quotient, divisor))
    apart = pc.and_(pc.not_equal(rest, 0), pc.not_equal(pc.less(rest, 0), pc.less(divisor, 0)))
    return pc.subtract(quotient, pc.cast(apart, pa.int64()))


def _column(one: Column) -> pa.Array:
    return one if isinstance(one, pa.Array) else pa.array([one.as_py()], one.type)


def _modulo(left: Column, right: Column) -> Column:
    if _meets_floats(left, right):
        return _by_floats(np.mod, left, _nonzero(right))
    if any(pa.types.is_decimal(one.type) for one in (left, right)):
        return _python(operator.mod, _kind_of(left, right), left, _nonzero(right))
    whole = _floor_divide(left, right)
    if _is_wide(whole.type):
        return _python(operator.mod, pa.int64(), left, _nonzero(right))
    return pc.subtract(left, pc.multiply(whole, right))


def _negate(value: Column) -> Column:
    if pa.types.is_floating(value.type):
        return pc.negate(value)
    return _exact("subtract_checked", "subtract", operator.sub)(
        pa.scalar(0).cast(value.type), value
    )


def _absolute(value: Column) -> Column:
    try:
        return pc.abs_checked(value)
    except pa.ArrowInvalid:
        return _each(abs, pa.int64(), value)


def _compared(name: str, compare: Callable[[Any, Any], bool]) -> Callable[..., Column]:
    def compute(left: Column, right: Column) -> Column:
        wide = _meets_floats(left, right) and any(_is_wide(one.type) for one in (left, right))
        if not wide:
            try:
                return pc.call_function(name, [left, right])
            except pa.ArrowInvalid:
                if not _meets_floats(left, right):
                    raise
        # Floats cannot hold these ints, and Python compares them exactly.
        return _python(compare, pa.bool_(), left, right)

    return compute


def _length(text: Column) -> Column:
    if pa.types.is_list(text.type):
        return pc.cast(pc.list_value_length(text), pa.int64())
    name = "binary_length" if pa.types.is_binary(text.type) else "utf8_length"
    return pc.cast(pc.call_function(name, [text]), pa.int64())


def _is_in(value: Column, *choices: pa.Scalar) -> Column:
    known = [choice.as_py() for choice in choices]
    if _is_number(value):
        known = [held for one in known for held in _held(one, value.type)]
    found = pc.is_in(value, value_set=pa.array(known, value.type if known else None))
    return found if None in known else pc.if_else(pc.is_valid(value), found, _UNKNOWN)


def _held(choice: Any, kind: pa.DataType) -> list[Any]:
    """Return a choice as a column of numbers holds it; nothing where none can be equal to it."""
    if not isinstance(choice, int | float | Decimal):
        return [choice]
    floating, whole = pa.types.is_floating(kind), pa.types.is_integer(kind)
    try:
        number = (float if floating else int if whole else Decimal)(choice)
        pa.scalar(number, kind)
    except (OverflowError, ValueError):
        return []
    return [number] if number == choice else []


def _split(text: Column, separator: pa.Scalar) -> Column:
    pattern = separator.as_py()
    if pattern is not None:
        return pc.split_pattern(text, pattern=pattern)
    # Space at the ends makes empty words, which Python's split leaves out.
    trimmed = pc.utf8_trim_whitespace(text)
    words = pc.utf8_split_whitespace(trimmed)
    empty = pc.equal(trimmed, "")
    if not pc.any(empty).as_py():
        return words
    return pc.if_else(pc.fill_null(empty, fill_value=False), pa.scalar([], words.type), words)


def _substring(text: Column, start: pa.Scalar, length: pa.Scalar) -> Column:
    rest, size = pc.utf8_slice_codeunits(text, start.as_py(), None), length.as_py()
    return rest if size is None else pc.utf8_slice_codeunits(rest, 0, size)


def _replace(text: Column, old: pa.Scalar, new: pa.Scalar) -> Column:
    if not old.as_py():
        # Arrow would never return here.
        return _each(lambda one: one.replace("", new.as_py()), text.type, text)
    return pc.replace_substring(text, old.as_py(), new.as_py())


def _cased(fast: str, slow: Callable[[str], str]) -> Callable[..., Column]:
    def compute(text: Column) -> Column:
        # Beyond ASCII a letter may become two, or depend on its neighbours.
        if pc.all(pc.string_is_ascii(text)).as_py() is False:
            return _each(slow, text.type, text)
        return pc.call_function(fast, [text])

    return compute


def _like(text: Column, pattern: pa.Scalar) -> Column:
    return pc.match_like(text, pattern.as_py())


def _round(value: Column, digits: pa.Scalar) -> Column:
    places = digits.as_py()
    if pa.types.is_integer(value.type) and places >= 0:
        return value
    if pa.types.is_floating(value.type) and places:
        return _rounded_as_written(value, places)
    try:
        return pc.round(value, ndigits=places, round_mode="half_to_even")
    except pa.ArrowInvalid:
        return _each(lambda one: round(one, places), value.type, value)


def _rounded_as_written(value: pa.Array, places: int) -> pa.Array:
    """Round floats; those too near to a half to tell their side go through Python.

    The float 2.675 is a little less than that, but times 100 it is 267.5.
    """
    if not 0 < places < _EXACT_POWERS:
        return _each(lambda one: round(one, places), value.type, value)
    known, values = np.asarray(value.is_valid()), value.to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        scaled = values * 10.0**places
        found = np.rint(scaled) / 10.0**places
        # Numbers that are not finite, or too large to have a half, are not clear either.
        clear = (np.abs(scaled % 1 - 0.5) > _DOUBTFUL) & (np.abs(scaled) < _LARGE)
    doubtful = np.flatnonzero(~clear & known)
    found[doubtful] = [round(one, places) for one in values[doubtful].tolist()]
    return pa.array(found, mask=~known)


def _cast(value: Column, to: pa.Scalar) -> Column:
    name, kind, was = to.as_py(), _CASTS[to.as_py()], value.type
    if name == "float" and _is_number(value):
        return _as_float(value)
    if name == "string" and pa.types.is_floating(was):
        return _each(str, kind, value)
    if name in _READ and pa.types.is_string(was):
        return _each(_READ[name], kind, value)
    if name == "int" and pa.types.is_decimal(was):
        return value if _is_wide(was) else _each(int, kind, value)
    if name == "int" and pa.types.is_floating(was):
        try:
            return pc.cast(pc.trunc(value), kind)
        except pa.ArrowInvalid:
            return _each(int, kind, value)
    return pc.cast(value, kind)


def _coalesce(*choices: Column) -> Column:
    return pc.coalesce(*_as_floats(*choices))


def _if_else(condition: Column, then: Column, otherwise: Column) -> Column:
    chosen = pc.fill_null(condition, fill_value=False)
    return pc.if_else(chosen, *_as_floats(then, otherwise))


FUNCTIONS: dict[str, Callable[..., Column]] = {
    "abs": _absolute,
    "add": _add,
    "and": pc.and_kleene,
    "cast": _cast,
    "coalesce": _coalesce,
    "concat": lambda *texts: pc.binary_join_element_wise(*texts, ""),
    "contains": lambda text, part: pc.match_substring(text, part.as_py()),
    "divide": _divide,
    "ends_with": lambda text, part: pc.ends_with(text, part.as_py()),
    "equal": _compared("equal", operator.eq),
    "floor_divide": _floor_divide,
    "greater": _compared("greater", operator.gt),
    "greater_equal": _compared("greater_equal", operator.ge),
    "if_else": _if_else,
    "is_in": _is_in,
    "is_not_null": pc.is_valid,
    "is_null": pc.is_null,
    "length": _length,
    "less": _compared("less", operator.lt),
    "less_equal": _compared("less_equal", operator.le),
    "like": _like,
    "lower": _cased("ascii_lower", str.lower),
    "modulo": _modulo,
    "multiply": _exact("multiply_checked", "multiply", operator.mul),
    "negate": _negate,
    "not": pc.invert,
    "not_equal": _compared("not_equal", operator.ne),
    "or": pc.or_kleene,
    "replace": _replace,
    "round": _round,
    "split": _split,
    "starts_with": lambda text, part: pc.starts_with(text, part.as_py()),
    "strip": pc.utf8_trim_whitespace,
    "substring": _substring,
    "subtract": _exact("subtract_checked", "subtract", operator.sub),
    "upper": _cased("ascii_upper", str.upper),
}
"""Functions by name; each takes columns or single values and returns a column."""


# Expressions to columns.

_INT64 = range(-(1 << 63), 1 << 63)


class Explosion(Exception):  # noqa: N818 - caught where it is raised for
    """Raised where an ``explode`` stands in a place that does not allow it."""


def evaluate(node: Node, batch: pa.RecordBatch) -> pa.Array:
    """Compute an expression for every row.

    Raises
    ------
    pyarrow.ArrowException
        If a value cannot be computed.
    KeyError
        If a column is missing.

    Examples
    --------
    >>> from headrace.columns import col
    >>> batch = pa.RecordBatch.from_pydict({"x": [1, None, 3]})
    >>> evaluate((col("x") * 2 > 2).node, batch).to_pylist()
    [False, None, True]
    """
    found = _evaluate(node, batch)
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, batch.num_rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _evaluate(node: Node, batch: pa.RecordBatch) -> Any:
    if isinstance(node, Name):
        return _column_named(node.name, batch)
    if isinstance(node, Value):
        return _scalar(node.value)
    function = FUNCTIONS.get(node.function)
    if function is None:
        message = "explode stands only at the top of one column of select"
        raise Explosion(message)
    arguments = [_evaluate(argument, batch) for argument in node.arguments]
    if arguments and all(isinstance(one, pa.Scalar) for one in arguments):
        # Nothing varies: compute once, in a column of one row.
        arguments[0] = pa.repeat(arguments[0], 1)
        return function(*arguments)[0]
    return function(*arguments)


def _scalar(value: Any) -> pa.Scalar:
    if type(value) is int and value not in _INT64:
        return pa.scalar(Decimal(value), WIDE)
    return pa.scalar(value)


def _column_named(name: str, batch: pa.RecordBatch) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        names = batch.schema.names
        hint = did_you_mean(name, names, f"there are {', '.join(names)}")
        message = f"there is no column '{name}'; {hint}"
        raise KeyError(message)
    return batch.column(index)


def exploded(
    columns: Sequence[tuple[str, Node]], batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Compute columns; where one explodes, also return the row that each new row comes from."""
    names = [name for name, _ in columns]
    lists = [
        node.arguments[0] if isinstance(node, Call) and node.function == "explode" else None
        for _, node in columns
    ]
    places = [place for place, node in enumerate(lists) if node is not None]
    if not places:
        arrays = [evaluate(node, batch) for _, node in columns]
        return pa.RecordBatch.from_arrays(arrays, names), None
    if len(places) > 1:
        message = "only one column of a select can explode"
        raise Explosion(message)
    items = evaluate(lists[places[0]], batch)  # type: ignore[arg-type]
    rows = pc.list_parent_indices(items)
    arrays = [
        pc.list_flatten(items) if place in places else evaluate(node, batch).take(rows)
        for place, (_, node) in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, names), rows


def filtered(node: Node, batch: pa.RecordBatch) -> pa.Array:
    """Return the indices of rows for which a condition is true, neither false nor null."""
    kept = evaluate(node, batch)
    if not pa.types.is_boolean(kept.type):
        message = f"a condition gives true or false, and {node} gives {kept.type}"
        raise TypeError(message)
    return pc.indices_nonzero(pc.fill_null(kept, fill_value=False))


def types_of(columns: Mapping[str, Node], schema: Schema) -> Schema:
    """Return the types of the results of expressions, found by computing them for no record."""
    batch, _ = exploded(list(columns.items()), schema.without_rows())
    return Schema(tuple(zip(batch.schema.names, batch.schema.types, strict=True)))
