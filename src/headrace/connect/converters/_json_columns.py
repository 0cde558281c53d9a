"""Columns of data without schemas as JSON, and back, without an object per value."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.connect.columns import any_match, json_texts
from headrace.connect.converters._loose_json import dump
from headrace.connect.converters.json_values import TO_PLAIN
from headrace.connect.schema import Schema, Type

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
    text = json_texts(values, dump)
    if null is not None:
        text = text.fill_null(null)
    if before:
        text = pc.binary_join_element_wise(before, text, after, "")
    return text.cast(pa.binary())


def fits(schema: Schema, values: pa.Array) -> bool:
    """Return whether a column is written by a schema as it is written without one."""
    if schema.has_default or schema.name in TO_PLAIN or (values.null_count and not schema.optional):
        return False
    if schema.type is Type.STRUCT and pa.types.is_struct(values.type):
        names = [one.name for one in values.type]
        return names == list(schema.by_name) and all(
            fits(field.schema, part)
            # What is null has no fields.
            for field, part in zip(schema.fields, values.drop_null().flatten(), strict=True)
        )
    if schema.type is Type.ARRAY and pa.types.is_list(values.type):
        return schema.items is not None and fits(schema.items, values.flatten())
    return bool(values.type == _SAME.get(schema.type))


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
    lines = pc.replace_substring(bodies, "\n", " ") if any_match(bodies, "\n") else bodies
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer()
    options = pj.ReadOptions(use_threads=False, block_size=max(1 << 20, joined.size + 1))
    return pj.read_json(pa.BufferReader(joined), read_options=options)


def _says_the_same(values: pa.Array) -> bool:
    """Return whether a column's values are those that single bodies would give.

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
