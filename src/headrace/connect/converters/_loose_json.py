"""Data without a schema as JSON, and back: one value, or a column without an object per value."""

from __future__ import annotations

import codecs
import math
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.connect.columns import any_match, json_texts
from headrace.connect.converters.json_values import NOT_FINITE
from headrace.connect.converters.steps import UnfitError, kind_of
from headrace.connect.schema import LOGICAL, Schema, Type

# What has no place in JSON is ours to refuse.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS

_loosely = msgspec.json.Decoder()
_exactly = msgspec.json.Decoder(float_hook=Decimal)


def dump(value: Any) -> bytes:
    """Write data: bytes as base64, a dict as an object or, where a key is not text, as pairs.

    >>> dump({"a": b"hi", "b": [1.5, None]}), dump({1: "x"})
    (b'{"a":"aGk=","b":[1.5,null]}', b'[[1,"x"]]')
    """
    try:
        written = orjson.dumps(value, _base64, _OPTIONS)
    except TypeError:
        return dump_data(_plain(value))
    # It writes NaN and infinities as null, which Kafka Connect writes as text.
    return dump_data(_plain(value)) if b"null" in written else written


def _base64(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    raise TypeError


def dump_data(value: Any) -> bytes:
    """Write what :mod:`orjson` writes as it is."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise UnfitError(str(error)) from None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else NOT_FINITE[str(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return _base64(value)
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return [_step(f"[{place}]", one) for place, one in enumerate(value)]
    raise _no_place(value)


def _mapping(value: Mapping[Any, Any]) -> Any:
    pairs = [(name, _step(str(name), one)) for name, one in value.items()]
    if all(isinstance(name, str) for name, _ in pairs):
        return dict(pairs)
    return [[_plain(name), one] for name, one in pairs]


def _step(step: str, value: Any) -> Any:
    try:
        return _plain(value)
    except UnfitError as error:
        raise error.inside(step) from None


def _whole(value: int) -> int:
    if -(1 << 63) <= value < 1 << 63:
        return value
    reason = f"{value} is beyond the range of int64"
    raise UnfitError(reason, hint="give it as text, or as a decimal with a schema")


def _no_place(value: Any) -> UnfitError:
    reason = f"JSON without a schema has no place for {kind_of(value)}"
    return UnfitError(reason, hint="give the record a schema, or make text or a number of it")


def load(body: bytes) -> Any:
    """Read data; whole numbers are read exactly, however large.

    >>> load(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    return _load(_loosely, body)


def load_exactly(body: bytes) -> Any:
    """Read data with numbers that have a point as decimals."""
    return _load(_exactly, body)


def _load(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if body.startswith(codecs.BOM_UTF8):
            return _load(decoder, body[len(codecs.BOM_UTF8) :])
        reason = f"it is not JSON: {error}"
        raise UnfitError(reason) from None


# Columns

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


def write_column(
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
    if schema.has_default or schema.name in LOGICAL or (values.null_count and not schema.optional):
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


def read_column(bodies: pa.Array) -> pa.Array | None:
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
