"""Headers as text, as Kafka Connect's SimpleHeaderConverter has them."""

from __future__ import annotations

from typing import Any

from headrace.connect.converters._header_values import parse_header
from headrace.connect.converters._texts import header_text
from headrace.connect.converters.base import Converted, HeaderConverter
from headrace.connect.schema import BYTES, Schema

__all__ = ["SimpleHeaderConverter"]


class SimpleHeaderConverter(HeaderConverter):
    """Values of headers as text, whose types are guessed from the text when it is read.

    Examples
    --------
    >>> converter = SimpleHeaderConverter.of({})
    >>> converter.header_to_bytes("orders", "tries", None, [1, 2, 300])
    b'[1,2,300]'
    >>> converter.header_from_bytes("orders", "tries", b"[1,2,300]")
    Converted(schema=array<int16>, value=[1, 2, 300])
    >>> converter.header_from_bytes("orders", "name", b"hello")
    Converted(schema=string, value='hello')
    """

    version = "1.0"

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write a value's text."""
        return None if value is None else header_text(schema, value).encode()

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read what the text looks like; bytes that are no text stay bytes."""
        if body is None:
            return Converted(None, None)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return Converted(BYTES, body)
        return parse_header(text)
