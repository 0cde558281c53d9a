"""Properties of many messages at once, out of their raw properties strings."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.layout import Int64s, slices

__all__ = ["property_column", "rows_with_others"]

_AFTER_NAME = 1
_AFTER_VALUE = 2


def property_column(properties: pa.BinaryArray, name: str) -> pa.BinaryArray:
    r"""Read one property of every message, null where a message does not have it.

    The rules are those of ``decode_properties``: the last of equal names counts, empty values
    do not.

    >>> raw = pa.array([b"TAGS\x01red\x02KEYS\x01k1\x02", b"", b"KEYS\x01k2"], pa.binary())
    >>> property_column(raw, "KEYS").to_pylist()
    [b'k1', None, b'k2']
    """
    count = len(properties)
    needle = name.encode()
    if not _has_text(properties) or not needle:
        return pa.nulls(count, pa.binary())
    data, text, bounds = _text(properties)
    marks = _name_ends(text, needle)
    rows, marks = _at_pair_starts(text, bounds, marks, len(needle))
    rows, begins, ends = _values(text, bounds, rows, marks)
    return _column(data, count, rows, begins, ends)


def rows_with_others(properties: pa.BinaryArray, known: Collection[bytes]) -> Int64s:
    r"""Find the messages that may have properties of other names than those that are known.

    >>> raw = pa.array([b"WAIT\x01true\x02", b"", b"WAIT\x01true\x02colour\x01red\x02"], pa.binary())
    >>> rows_with_others(raw, [b"WAIT"]).tolist()
    [2]
    """
    if not _has_text(properties):
        return np.empty(0, np.int64)
    data, text, bounds = _text(properties)
    marks = np.flatnonzero(text == _AFTER_NAME)
    rows = np.searchsorted(bounds, marks, side="right") - 1
    stops = np.append(-1, np.flatnonzero(text == _AFTER_VALUE))
    begins = np.maximum(stops[np.searchsorted(stops, marks) - 1] + 1, bounds[rows])
    # A separator within a value ends no name.
    begins, firsts = np.unique(begins, return_index=True)
    names = slices(memoryview(data), begins, marks[firsts]).dictionary_encode()
    others = np.array([name not in known for name in names.dictionary.to_pylist()], np.bool_)
    return np.unique(rows[firsts][others[names.indices.to_numpy()]])


def _has_text(properties: pa.BinaryArray) -> bool:
    return len(properties) > 0 and properties.buffers()[2] is not None


def _text(properties: pa.BinaryArray) -> tuple[pa.Buffer, npt.NDArray[np.uint8], Int64s]:
    """Give the bytes of all messages, as a buffer and as numbers, and where each message begins."""
    _, offset_buffer, data = properties.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[properties.offset :][: len(properties) + 1]
    base = int(offsets[0])
    text = np.frombuffer(data, np.uint8)[base : int(offsets[-1])]
    return data.slice(base), text, offsets.astype(np.int64) - base


def _name_ends(text: npt.NDArray[np.uint8], name: bytes) -> Int64s:
    """Where the name stands in front of a separator: places of the separator."""
    marks = np.flatnonzero(text == _AFTER_NAME)
    marks = marks[marks >= len(name)]
    for back, char in enumerate(reversed(name), start=1):
        marks = marks[text[marks - back] == char]
    return marks


def _at_pair_starts(
    text: npt.NDArray[np.uint8], bounds: Int64s, marks: Int64s, size: int
) -> tuple[Int64s, Int64s]:
    """Keep the names that are whole names of one message; also return their messages' rows."""
    starts = marks - size
    rows = np.searchsorted(bounds, marks, side="right") - 1
    firsts = bounds[rows]
    whole = (starts == firsts) | ((starts > firsts) & (text[starts - 1] == _AFTER_VALUE))
    return rows[whole], marks[whole]


def _values(
    text: npt.NDArray[np.uint8], bounds: Int64s, rows: Int64s, marks: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    stops = np.append(np.flatnonzero(text == _AFTER_VALUE), len(text))
    ends = np.minimum(stops[np.searchsorted(stops, marks)], bounds[rows + 1])
    begins = marks + 1
    keep = ends > begins
    rows, begins, ends = rows[keep], begins[keep], ends[keep]
    if len(rows) > 1:
        last = np.append(rows[1:] != rows[:-1], np.True_)
        rows, begins, ends = rows[last], begins[last], ends[last]
    return rows, begins, ends


def _column(
    data: pa.Buffer, count: int, rows: Int64s, begins: Int64s, ends: Int64s
) -> pa.BinaryArray:
    values = slices(memoryview(data), begins, ends)
    if len(rows) == count:
        return values
    places = np.zeros(count, np.int32)
    places[rows] = np.arange(len(rows), dtype=np.int32)
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    return values.take(pa.array(places, mask=absent))
