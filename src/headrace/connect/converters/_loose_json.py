"""Data without a schema as JSON, and back."""

from __future__ import annotations

import codecs
import math
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import orjson

from headrace.connect.converters.json_values import NOT_FINITE, UnfitError, kind_of

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
