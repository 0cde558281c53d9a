"""Values as the text that files and web services get."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.connect import SinkRecord


def as_text(value: Any) -> bytes:
    """Write a value as text: text and bytes as they are, everything else as JSON.

    >>> as_text("word"), as_text(b"raw"), as_text({"a": 1}), as_text(None)
    (b'word', b'raw', b'{"a":1}', b'null')
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return as_json(value)


def lines_of(column: pa.Array, end: bytes) -> Iterator[memoryview | bytes]:
    """Yield a column of text or bytes, without nulls, as lines, in pieces that are written as they are.

    >>> b"".join(lines_of(pa.array(["a", "b"]), b";"))
    b'a;b;'
    """
    if len(column):
        lines = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
        joined = pc.binary_join(lines, pa.scalar(end, pa.binary()).cast(column.type))
        yield memoryview(joined[0].as_buffer())
        yield end


def place_of(record: SinkRecord) -> str:
    """Say in messages which record it is."""
    queue = record.queue
    return f"record {record.offset} of queue {queue.queue_id} of topic {queue.topic}"


def raw_bytes(record: SinkRecord, value: Any, part: str, taker: str) -> bytes | None:
    """Return a value of a record that is text or bytes already, for a taker that knows no other.

    Parameters
    ----------
    record, value, part
        The record, what is to be written of it, and what that is called.
    taker
        Who takes bytes.

    Raises
    ------
    SchemaError
        It is neither.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise SchemaError(
        f"The {place_of(record)}: its {part} is {type(value).__name__} {value!r:.100}, and {taker}"
        " takes bytes.",
        hint="Set the converter of keys and values to ByteArrayConverter, which hands bytes on as"
        " they are, or to StringConverter.",
    )


def as_json(value: Any) -> bytes:
    """Write a value as JSON; bytes as base64, decimals as text with all their digits.

    >>> as_json({"price": decimal.Decimal("1.50"), "raw": b"ab"})
    b'{"price":"1.50","raw":"YWI="}'
    """
    return orjson.dumps(value, _other, orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)


def _other(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    message = f"{type(value).__name__} has no form in JSON"
    raise TypeError(message)
