"""Headers as text, as Kafka Connect's SimpleHeaderConverter has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np

from headrace.connect.converters._texts import header_text
from headrace.connect.converters.base import Converted, HeaderConverter
from headrace.connect.numbers import single
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Schema,
    Type,
    array,
    decimal,
    mapping,
)

# Texts of headers as values: numbers, truth values, times, lists and maps, else text.
#
# The rules are those of Kafka Connect's SimpleHeaderConverter, but for what loses data there: a text
# of which only the start is a number stays text, and quoted text comes back without its backslashes.

# Stands where the items of a list are of no one type; such a list has no schema in the end.
_OPEN = Schema(Type.STRUCT, name="open")
_NULL = Converted(None, None)
_LITERALS = {
    "true": Converted(BOOLEAN, True),  # noqa: FBT003 - a value
    "false": Converted(BOOLEAN, False),  # noqa: FBT003
    "null": _NULL,
}

_BLANK = re.compile(r"\s*")
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_TOKEN = re.compile(r'(?:\\.|[^:,{}\[\]"\\])+', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# A point needs a digit or a sign before it.
_NUMBER = re.compile(r"([+-]?\d+\.?\d*|[+-]\.\d+)([eE][+-]?\d{1,9})?")
_CLOCK = r"\d\d\\?:\d\d\\?:\d\d\.\d{3}Z"
_MOMENT = re.compile(rf"\d{{4}}-\d\d-\d\dT{_CLOCK}|{_CLOCK}|\d{{4}}-\d\d-\d\d")

# Nobody wrote a value that nests deeper as a header.
_DEEPEST = 64
_WIDTHS = ((INT8, 7), (INT16, 15), (INT32, 31), (INT64, 63))
_WIDENING = [INT8, INT16, INT32, INT64, FLOAT32, FLOAT64]


class _NotParsedError(Exception):
    """The text is not a value of another type: it is text."""


def parse_header(text: str) -> Converted:
    """Return the value that a header's text stands for.

    >>> parse_header("12"), parse_header("12:30")
    (Converted(schema=int8, value=12), Converted(schema=string, value='12:30'))
    >>> parse_header('["a", "b"]')
    Converted(schema=array<string>, value=['a', 'b'])
    """
    stripped = text.strip()
    if stripped in _LITERALS:
        return _LITERALS[stripped]
    # Text in quotes keeps them where it stands alone.
    if not stripped or stripped.startswith('"'):
        return Converted(STRING, text)
    try:
        found = _TextReader(text).whole()
    except _NotParsedError:
        return Converted(STRING, text)
    return Converted(None if _is_open(found.schema) else found.schema, found.value)


def _is_open(schema: Schema | None) -> bool:
    return schema is not None and (
        schema is _OPEN or _is_open(schema.items) or _is_open(schema.keys)
    )


class _TextReader:
    """Reads one value after the other from a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0

    def whole(self) -> Converted:
        """Read the value that the whole text is."""
        found = self._value()
        self._skip(_BLANK)
        if self._place < len(self._text):
            raise _NotParsedError
        return found

    def _skip(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._place)
        if match is not None:
            self._place = match.end()
        return match

    def _take(self, delimiter: str) -> bool:
        self._skip(_BLANK)
        taken = self._text.startswith(delimiter, self._place)
        self._place += len(delimiter) if taken else 0
        return taken

    def _value(self) -> Converted:
        if self._take("["):
            return self._array()
        if self._take("{"):
            return self._mapping()
        if quoted := self._skip(_QUOTED):
            return _quoted(_ESCAPE.sub(r"\1", quoted[1]))
        if moment := self._skip(_MOMENT):
            return _moment(moment[0].replace("\\", "")) or _fail()
        token = self._skip(_TOKEN)
        return _bare(token[0].strip()) if token else _fail()

    def _array(self) -> Converted:
        found = list(self._inside("]", self._item))
        schema = _common(found)
        return Converted(array(schema), [_aligned(schema, one.value) for one in found])

    def _item(self) -> Converted:
        found = self._value()
        if not self._take(",") and not self._ahead("]"):
            raise _NotParsedError
        return found

    def _ahead(self, delimiter: str) -> bool:
        self._skip(_BLANK)
        return self._text.startswith(delimiter, self._place)

    def _mapping(self) -> Converted:
        found = list(self._inside("}", self._entry))
        keys, items = _common([name for name, _ in found]), _common([one for _, one in found])
        value = {_aligned(keys, a.value): _aligned(items, b.value) for a, b in found}
        return Converted(mapping(keys, items), value)

    def _entry(self) -> tuple[Converted, Converted]:
        name = self._value()
        if name.value is None or isinstance(name.value, list | dict) or not self._take(":"):
            raise _NotParsedError
        item = self._value()
        self._take(",")
        return name, item

    def _inside(self, end: str, read: Callable[[], Any]) -> Iterator[Any]:
        self._depth += 1
        while not self._take(end):
            if self._depth > _DEEPEST or self._place >= len(self._text):
                raise _NotParsedError
            yield read()
        self._depth -= 1


def _fail() -> NoReturn:
    raise _NotParsedError


def _quoted(text: str) -> Converted:
    found = _moment(text) if _MOMENT.fullmatch(text) else None
    return found or Converted(STRING, text)


def _moment(text: str) -> Converted | None:
    try:
        if "T" in text:
            return Converted(TIMESTAMP, datetime.fromisoformat(text).astimezone(UTC))
        if ":" in text:
            return Converted(TIME, time.fromisoformat(text).replace(tzinfo=None))
        return Converted(DATE, date.fromisoformat(text))
    except ValueError:
        # Such as 2019-02-30, of which Java makes the 2nd of March.
        return None


def _bare(token: str) -> Converted:
    if token in _LITERALS:
        return _LITERALS[token]
    if not _NUMBER.fullmatch(token):
        raise _NotParsedError
    try:
        return _number(Decimal(token))
    except InvalidOperation:
        raise _NotParsedError from None


def _number(number: Decimal) -> Converted:
    """Return the narrowest type that takes a number."""
    if number.adjusted() < 20 and number == number.to_integral_value():
        whole = int(number)
        for schema, bits in _WIDTHS:
            if -(1 << bits) <= whole < 1 << bits:
                return Converted(schema, whole)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent:
        if np.isfinite(short := single(float(number))):
            return Converted(FLOAT32, short)
        if np.isfinite(double := float(number)):
            return Converted(FLOAT64, double)
    return Converted(decimal(-exponent), number)


def _common(found: list[Converted]) -> Schema:
    """Return the schema that takes all of them, or the open one."""
    common: Schema | None = None
    for one in found:
        if one.schema is None:
            continue
        common = one.schema if common is None else _wider(common, one.schema)
        if common is _OPEN:
            break
    # Null fits no item of a list that is of one type.
    if common is not None and common is not _OPEN and any(one.schema is None for one in found):
        raise _NotParsedError
    return _OPEN if common is None else common


def _wider(left: Schema, right: Schema) -> Schema:
    if left in _WIDENING and right in _WIDENING:
        return max(left, right, key=_WIDENING.index)
    # Of lists of numbers, the last one's type counts, as in Kafka Connect.
    nested = left.type is right.type and left.type in {Type.ARRAY, Type.MAP}
    return right if nested or left == right else _OPEN


def _aligned(schema: Schema, value: Any) -> Any:
    if schema.type in {Type.FLOAT32, Type.FLOAT64}:
        return float(value)
    return value


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
        """Read what the text looks like; bytes that are not text stay bytes."""
        if body is None:
            return Converted(None, None)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return Converted(BYTES, body)
        return parse_header(text)
