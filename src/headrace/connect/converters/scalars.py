"""Converters of single values: bytes, text, numbers, truth values."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters._texts import text_of
from headrace.connect.converters.base import Column, Converted, HeaderConverter
from headrace.connect.converters.steps import UnfitError, kind_of
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    Schema,
)
from headrace.serdes.inference import pack_numbers, unpack_numbers

_OPTIONAL_BYTES = BYTES.as_optional()
_OPTIONAL_STRING = STRING.as_optional()
_OPTIONAL_BOOLEAN = BOOLEAN.as_optional()


def _check_type(schema: Schema | None, wanted: Schema) -> None:
    if schema is not None and schema.type is not wanted.type:
        reason = f"it takes the type {wanted.type} only, not {schema.type}"
        raise UnfitError(reason)


class BytesConverter(HeaderConverter):
    """Bytes as they are.

    Examples
    --------
    >>> BytesConverter.of({}).from_bytes("images", b"abc").value
    b'abc'
    """

    version = "1.0"

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return the bytes."""
        _check_type(schema, BYTES)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        reason = f"it takes bytes, not {kind_of(value)}"
        raise UnfitError(reason)

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Return the bytes, beside the schema of optional bytes."""
        return Converted(_OPTIONAL_BYTES, body)

    def write_column(
        self,
        topic: str,
        schema: Schema | None,
        values: pa.Array,
    ) -> pa.Array | None:
        """Return the column itself."""
        _check_type(schema, BYTES)
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            return values
        return None

    def read_column(self, topic: str, bodies: pa.Array) -> Column:
        """Return the column itself."""
        return Column(_OPTIONAL_BYTES, bodies)


class StringConverter(HeaderConverter):
    r"""Text; other values are written as their text.

    Examples
    --------
    >>> StringConverter.of({}).to_bytes("lines", None, "héllo")
    b'h\xc3\xa9llo'
    >>> StringConverter.of({}).to_bytes("lines", None, [1, True, None])
    b'[1, true, null]'
    """

    version = "1.0"

    config = declare(
        key("converter.encoding", str, "How text is encoded.", default="UTF-8", importance="high"),
    )

    _encoding = "utf-8"

    def set_up(self, config: Config) -> None:
        """Look up the encoding."""
        name = config["converter.encoding"]
        try:
            found = codecs.lookup(name).name
        except LookupError:
            problem = f"The key converter.encoding is {name!r}: it is the name of no encoding."
            raise _config_error("converter.encoding", problem) from None
        # Java writes UTF-16 the high byte first, Python as the machine has it.
        self._encoding = "utf-16-be" if found == "utf-16" else found
        self._mark = codecs.BOM_UTF16_BE if found == "utf-16" else b""

    _mark = b""

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode the text; what the encoding lacks becomes a question mark."""
        if value is None:
            return None
        text = value if isinstance(value, str) else text_of(schema, value)
        return self._mark + text.encode(self._encoding, "replace")

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Decode the text; what is not text becomes U+FFFD."""
        if body is None:
            return Converted(_OPTIONAL_STRING, None)
        if self._mark:
            return Converted(_OPTIONAL_STRING, _utf_16(body))
        return Converted(_OPTIONAL_STRING, str(body, self._encoding, "replace"))

    def write_column(
        self,
        topic: str,
        schema: Schema | None,
        values: pa.Array,
    ) -> pa.Array | None:
        """Return the bytes of a column of text, which Arrow keeps as UTF-8."""
        if self._encoding == "utf-8" and pa.types.is_string(values.type):
            return values.cast(pa.binary())
        return None

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Return the column as text; Arrow checks that it is UTF-8."""
        if self._encoding != "utf-8":
            return None
        return Column(_OPTIONAL_STRING, bodies.cast(pa.string()))


def _utf_16(body: bytes) -> str:
    encoding = "utf-16" if body[:2] in {codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE} else "utf-16-be"
    return str(body, encoding, "replace")


def _config_error(name: str, problem: str) -> Exception:
    from headrace.errors import ConnectorConfigError

    return ConnectorConfigError.of([(name, problem)])


class NumberConverter(HeaderConverter):
    """Numbers of one width, the high byte first; the base of those below."""

    version = "1.0"

    schema: ClassVar[Schema]
    form: ClassVar[struct.Struct]

    def __init__(self) -> None:
        self._optional = self.schema.as_optional()
        self._dtype = np.dtype(self.form.format)
        self._column_type = pa.from_numpy_dtype(self._dtype.newbyteorder("="))
        self._takes = (float, int) if self._dtype.kind == "f" else (int,)

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write the number."""
        _check_type(schema, self.schema)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, self._takes):
            reason = f"it takes numbers of the type {self.schema.type}, not {kind_of(value)}"
            raise UnfitError(reason)
        try:
            return self.form.pack(value)
        except (struct.error, OverflowError):
            reason = f"{value} is beyond the range of {self.schema.type}"
            raise UnfitError(reason, hint="use a converter of wider numbers") from None

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read the number, beside the schema of an optional one."""
        if body is None:
            return Converted(self._optional, None)
        if len(body) != self.form.size:
            reason = f"{self.form.size} bytes are needed and there are {len(body)}"
            raise UnfitError(reason)
        return Converted(self._optional, self.form.unpack(body)[0])

    def write_column(
        self,
        topic: str,
        schema: Schema | None,
        values: pa.Array,
    ) -> pa.Array | None:
        """Write a column of numbers of this very width."""
        _check_type(schema, self.schema)
        if values.type != self._column_type:
            return None
        whole = pack_numbers(np.asarray(values.fill_null(0)).astype(self._dtype))
        if not values.null_count:
            return whole
        return pa.compute.if_else(values.is_valid(), whole, pa.scalar(None, pa.binary()))

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column of bodies that all have the right length."""
        numbers = unpack_numbers(bodies.fill_null(bytes(self.form.size)), self._dtype)
        if numbers is None:
            return None
        native = numbers.astype(self._dtype.newbyteorder("="))
        mask = np.asarray(bodies.is_null()) if bodies.null_count else None
        return Column(self._optional, pa.array(native, self._column_type, mask=mask))


class ShortConverter(NumberConverter):
    r"""Whole numbers of two bytes.

    >>> ShortConverter.of({}).to_bytes("t", None, 258)
    b'\x01\x02'
    """

    schema = INT16
    form = struct.Struct(">h")


class IntegerConverter(NumberConverter):
    """Whole numbers of four bytes."""

    schema = INT32
    form = struct.Struct(">i")


class LongConverter(NumberConverter):
    """Whole numbers of eight bytes."""

    schema = INT64
    form = struct.Struct(">q")


class FloatConverter(NumberConverter):
    """Floating-point numbers of four bytes."""

    schema = FLOAT32
    form = struct.Struct(">f")


class DoubleConverter(NumberConverter):
    """Floating-point numbers of eight bytes."""

    schema = FLOAT64
    form = struct.Struct(">d")


_TRUTH: Mapping[bool, bytes] = {False: b"\0", True: b"\1"}


class BooleanConverter(HeaderConverter):
    r"""Truth values: one byte, 0 or 1.

    >>> BooleanConverter.of({}).from_bytes("t", b"\x01").value
    True
    """

    version = "1.0"

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write the byte."""
        _check_type(schema, BOOLEAN)
        if value is None:
            return None
        if not isinstance(value, bool):
            reason = f"it takes true and false, not {kind_of(value)}"
            raise UnfitError(reason)
        return _TRUTH[value]

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read the byte."""
        if body is None:
            return Converted(_OPTIONAL_BOOLEAN, None)
        if body not in {b"\0", b"\1"}:
            reason = "one byte is needed, 0 or 1"
            raise UnfitError(reason)
        return Converted(_OPTIONAL_BOOLEAN, body == b"\1")
