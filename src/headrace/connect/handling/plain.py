"""What converts where a connector names no converter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from headrace.connect.converters import Column, Converted, HeaderConverter

if TYPE_CHECKING:
    from headrace.connect.schema import Schema

__all__ = ["PlainConverter"]


class PlainConverter(HeaderConverter):
    r"""Bytes and texts as they are, all else as JSON; what is read is text, or else bytes.

    Examples
    --------
    >>> plain = PlainConverter.of({})
    >>> plain.to_bytes("t", None, "hello"), plain.to_bytes("t", None, {"a": 1})
    (b'hello', b'{"a":1}')
    >>> plain.from_bytes("t", b"hello").value, plain.from_bytes("t", b"\xff").value
    ('hello', b'\xff')
    """

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one value."""
        del topic, schema
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else orjson.dumps(value, default=str)

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read one value."""
        del topic
        if body is None:
            return Converted(None, None)
        try:
            return Converted(None, body.decode())
        except UnicodeDecodeError:
            return Converted(None, body)

    def write_column(self, topic: str, schema: Schema | None, values: pa.Array) -> pa.Array | None:
        """Write a column of texts or bytes in one go."""
        del topic, schema
        kind = values.type
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        plain = texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return values.cast(pa.binary()) if plain else None

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column in one go where all of it is text."""
        del topic
        return Column(None, bodies.cast(pa.string()))
