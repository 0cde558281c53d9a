"""The columns in which records travel between a task and its topics, and columns as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: The type of a record's properties.
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

#: What a source host gives: bytes, after converters and transforms.
SOURCE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTIES),
        ("timestamp", pa.int64()),
    ]
)

#: A column of a sink's rows, there where one of them has it: the system flag of a message whose
#: value is still compressed, as it cannot be unpacked.  Null for all others.
PACKED: Final = pa.field("packed", pa.int32())

#: What a sink host takes: messages as they stand in their topics.
SINK_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTIES),
        ("timestamp", pa.int64()),
    ]
)

_Singly = Callable[[Any], bytes]
_TEXT_NULL = pa.scalar(None, pa.string())


def json_texts(values: pa.Array, singly: _Singly) -> pa.StringArray:
    """Write each value as JSON, without an object for it where its type allows; null stays null.

    Parameters
    ----------
    singly
        Writes a single value.

    Examples
    --------
    >>> import orjson
    >>> json_texts(pa.array([{"a": 1.0}, None, {"a": None}]), orjson.dumps).to_pylist()
    ['{"a":1.0}', None, '{"a":null}']
    """
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return _numbers(values, singly)
    if pa.types.is_string(kind):
        return _quoted(values, singly)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _objects(values, singly)
    if pa.types.is_list(kind):
        return _lists(values, singly)
    return _one_by_one(values, singly)


def _one_by_one(values: pa.Array, singly: _Singly) -> pa.StringArray:
    items = values.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if one is None else singly(one).decode() for one in items], pa.string())


def _numbers(values: pa.FloatingPointArray, singly: _Singly) -> pa.StringArray:
    text = values.cast(pa.string())
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        return _one_by_one(values, singly)
    # Arrow writes 100.0 as 100, which would come back as a whole number.
    whole = pc.invert(pc.match_substring_regex(text, "[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)


def _quoted(values: pa.StringArray, singly: _Singly) -> pa.StringArray:
    if any_match(values, r"[\x00-\x1f]"):
        return _one_by_one(values, singly)
    if any_match(values, r'["\\]'):
        values = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', values, '"', "")


def any_match(values: pa.StringArray, pattern: str) -> bool:
    """Return whether any of the texts has a part that matches a pattern."""
    return bool(pc.any(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def _objects(values: pa.StructArray, singly: _Singly) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for place, field in enumerate(values.type):
        name = singly(field.name).decode()
        text = json_texts(pc.struct_field(values, place), singly)
        parts += [f"{',' if place else '{'}{name}:", text.fill_null("null")]
    return _null_where(values, pc.binary_join_element_wise(*parts, "}", ""))


def _lists(values: pa.ListArray, singly: _Singly) -> pa.StringArray:
    items = json_texts(values.flatten(), singly).fill_null("null")
    lengths = np.asarray(values.value_lengths().fill_null(0))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
    joined = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return _null_where(values, joined)


def _null_where(values: pa.Array, text: pa.StringArray) -> pa.StringArray:
    return pc.if_else(values.is_valid(), text, _TEXT_NULL) if values.null_count else text
