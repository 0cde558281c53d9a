"""Columns of data without schemas as JSON, and back, without an object per value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.connect.converters._logical import TO_PLAIN
from headrace.connect.converters._loose_json import dump
from headrace.connect.schema import Schema, Type

__all__ = ["fits", "read", "write"]

_TEXT_NULL = pa.scalar(None, pa.string())
# Whole numbers from here on are not all exact as floating-point numbers.
_INEXACT = 1 << 53


#: The Arrow type whose values are written by a schema as they are written without one.
_SAME: Mapping[Type, pa.DataType] = {
    Type.BOOLEAN: pa.bool_(),
    Type.FLOAT32: pa.float32(),
    Type.FLOAT64: pa.float64(),
    Type.INT8: pa.int8(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.STRING: pa.string(),
}


def write(
    values: pa.Array, before: str = "", after: str = "", *, null: str | None = None
) -> pa.Array:
    """Write a column, each value between two texts; null has no body unless it has a text."""
    text = _text(values)
    if null is not None:
        text = text.fill_null(null)
    if before:
        text = pc.binary_join_element_wise(before, text, after, "")
    return text.cast(pa.binary())


def fits(schema: Schema, values: pa.Array) -> bool:
    """Whether a column is written by a schema as it is written without one."""
    if schema.has_default or schema.name in TO_PLAIN or (values.null_count and not schema.optional):
        return False
    if schema.type is Type.STRUCT and pa.types.is_struct(values.type):
        names = [one.name for one in values.type]
        return names == list(schema.by_name) and all(
            fits(field.schema, part)
            for field, part in zip(schema.fields, values.flatten(), strict=True)
        )
    if schema.type is Type.ARRAY and pa.types.is_list(values.type):
        return schema.items is not None and fits(schema.items, values.flatten())
    return bool(values.type == _SAME.get(schema.type))


def _text(values: pa.Array) -> pa.StringArray:
    """Give each value as JSON; null stays null."""
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return _numbers(values)
    if pa.types.is_string(kind):
        return _quoted(values)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _objects(values)
    if pa.types.is_list(kind):
        return _lists(values)
    return _singly(values)


def _singly(values: pa.Array) -> pa.StringArray:
    items = values.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if one is None else dump(one).decode() for one in items], pa.string())


def _numbers(values: pa.FloatingPointArray) -> pa.StringArray:
    text = values.cast(pa.string())
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        return _singly(values)
    # Arrow writes 100.0 as 100, which would come back as a whole number.
    whole = pc.invert(pc.match_substring_regex(text, "[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)


def _quoted(values: pa.StringArray) -> pa.StringArray:
    if _any_match(values, r"[\x00-\x1f]"):
        return _singly(values)
    if _any_match(values, r'["\\]'):
        values = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', values, '"', "")


def _any_match(values: pa.StringArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def _objects(values: pa.StructArray) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for place, field in enumerate(values.type):
        name = dump(field.name).decode()
        text = _text(pc.struct_field(values, place))
        parts += [f"{',' if place else '{'}{name}:", text.fill_null("null")]
    return _null_where(values, pc.binary_join_element_wise(*parts, "}", ""))


def _lists(values: pa.ListArray) -> pa.StringArray:
    items = _text(values.flatten()).fill_null("null")
    lengths = np.asarray(values.value_lengths().fill_null(0))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
    joined = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return _null_where(values, joined)


def _null_where(values: pa.Array, text: pa.StringArray) -> pa.StringArray:
    return pc.if_else(values.is_valid(), text, _TEXT_NULL) if values.null_count else text


def read(bodies: pa.Array) -> pa.Array | None:
    """Read a column of objects; None where single bodies would say something else."""
    if not len(bodies) or bodies.null_count or not _are_objects(bodies):
        return None
    table = _parsed(bodies.cast(pa.string()))
    if len(table) != len(bodies):
        return None
    found = table.to_struct_array().combine_chunks()
    return found if _says_the_same(found) else None


def _are_objects(bodies: pa.Array) -> bool:
    # So no body can begin what another ends, and as many rows as bodies are one of each.
    begin, end = pc.starts_with(bodies, pattern=b"{"), pc.ends_with(bodies, pattern=b"}")
    return bool(pc.all(pc.and_(begin, end)).as_py())


def _parsed(bodies: pa.StringArray) -> pa.Table:
    lines = pc.replace_substring(bodies, "\n", " ") if _any_match(bodies, "\n") else bodies
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer()
    options = pj.ReadOptions(use_threads=False, block_size=max(1 << 20, joined.size + 1))
    return pj.read_json(pa.BufferReader(joined), read_options=options)


def _says_the_same(values: pa.Array) -> bool:
    """Whether a column's values are those that single bodies would give.

    A field that is missing here and there looks like one that is null, text that looks like a
    time becomes one, and a large whole number beside 0.5 loses digits.
    """
    kind = values.type
    if values.null_count or pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return False
    if pa.types.is_floating(kind):
        return bool(pc.all(pc.less(pc.abs(values), _INEXACT), min_count=0).as_py())
    if pa.types.is_list(kind):
        return _says_the_same(values.flatten())
    if pa.types.is_struct(kind):
        return all(map(_says_the_same, values.flatten()))
    return True
