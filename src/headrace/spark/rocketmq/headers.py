"""Headers: the properties of messages that are the user's own, as Arrow columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import MessageRejectedError
from headrace.keys import EXACT_KEY
from headrace.protocol import properties as names
from headrace.protocol.journal_tags import TAG
from headrace.protocol.layout import slices
from headrace.runtime.batches.cutting import BATCH

#: Properties that RocketMQ or Headrace sets and reads; columns of their own show some of them.
RESERVED = names.NAMES | {EXACT_KEY, BATCH, TAG}

_AFTER_NAME, _AFTER_VALUE = 1, 2
_Int64s = npt.NDArray[np.int64]


def text_column(values: pa.BinaryArray) -> pa.StringArray:
    r"""Read bytes as UTF-8; what is none becomes U+FFFD, as in Java.

    Examples
    --------
    >>> text_column(pa.array([b"a", b"\xff", None], pa.binary())).to_pylist()
    ['a', '\ufffd', None]
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if one is None else one.decode("utf-8", "replace") for one in values.to_pylist()
        ]
        return pa.array(texts, pa.string())


def headers_column(properties: pa.BinaryArray, kind: pa.ListType) -> pa.ListArray:
    r"""Read the user's own properties of every message; null where there are none.

    Parameters
    ----------
    properties
        Raw properties strings.
    kind
        The column's type: a list of structs of ``key`` and ``value``.

    Examples
    --------
    >>> kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    >>> raw = pa.array([b"KEYS\x01k\x02", b"KEYS\x01k\x02origin\x01web\x02"], pa.binary())
    >>> headers_column(raw, kind).to_pylist()
    [None, [{'key': 'origin', 'value': 'web'}]]
    """
    count = len(properties)
    rows, found, values = _pairs(properties)
    keep = np.flatnonzero(~_is_reserved(found)) if len(rows) else np.empty(0, np.int64)
    if len(keep):
        keep = _last_of_equals(rows, found, keep)
    picks = pa.array(keep)
    pair = kind.value_type
    struct = pa.StructArray.from_arrays(
        [found.take(picks).cast(pa.string()), text_column(values.take(picks))],
        fields=[pair.field(0), pair.field(1)],
    )
    sizes = np.bincount(rows[keep], minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    mask = pa.array(sizes == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), struct, type=kind, mask=mask)


def _pairs(properties: pa.BinaryArray) -> tuple[_Int64s, pa.DictionaryArray, pa.BinaryArray]:
    """All pairs in order: the row of each, its name, its value; incomplete ones left out."""
    _, offset_buffer, data = properties.buffers()
    if not len(properties) or data is None:
        nothing = pa.array([], pa.binary())
        return np.empty(0, np.int64), text_column(nothing).dictionary_encode(), nothing
    bounds = np.frombuffer(offset_buffer, np.int32)[properties.offset :][: len(properties) + 1]
    bounds = bounds.astype(np.int64)
    base, end = int(bounds[0]), int(bounds[-1])
    text = np.frombuffer(data, np.uint8)[base:end]
    bounds -= base
    # A pair begins where a message does, and behind the end of another pair.
    is_cut = np.zeros(len(text) + 1, np.bool_)
    is_cut[1:] = text == _AFTER_VALUE
    is_cut[bounds] = True
    cuts = np.flatnonzero(is_cut)
    begins, ends = cuts[:-1], cuts[1:]
    ends = ends - (text[ends - 1] == _AFTER_VALUE)
    marks = np.append(np.flatnonzero(text == _AFTER_NAME), len(text))
    marks = marks[np.searchsorted(marks, begins)]
    whole = (marks > begins) & (marks + 1 < ends)
    begins, marks, ends = begins[whole], marks[whole], ends[whole]
    rows = np.searchsorted(bounds, begins, side="right") - 1
    block = memoryview(data)[base:end]
    found = text_column(slices(block, begins, marks)).dictionary_encode()
    return rows, found, slices(block, marks + 1, ends)


def _is_reserved(found: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    reserved = np.array([name in RESERVED for name in found.dictionary.to_pylist()], np.bool_)
    chosen: npt.NDArray[np.bool_] = reserved[found.indices.to_numpy()]
    return chosen


def _last_of_equals(rows: _Int64s, found: pa.DictionaryArray, keep: _Int64s) -> _Int64s:
    rows = rows[keep]
    if not (rows[1:] == rows[:-1]).any():
        return keep
    marks = rows * len(found.dictionary) + found.indices.to_numpy()[keep]
    _, last = np.unique(marks[::-1], return_index=True)
    return keep if len(last) == len(keep) else np.sort(keep[len(keep) - 1 - last])


def header_properties(headers: pa.ListArray) -> pa.BinaryArray:
    """Write headers as raw properties strings, empty where there are none.

    Raises
    ------
    MessageRejectedError
        A header has a name of RocketMQ's own, lacks a name or a value, or holds a separator.
    """
    flat = headers.flatten()
    keys, values = flat.field(0), flat.field(1)
    _check_names(keys)
    _check_values(keys, values)
    pairs = pc.binary_join_element_wise(keys, values, "\x01").cast(pa.binary())
    pairs = pc.binary_join_element_wise(pairs, b"\x02", b"")
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), b"")


def _check_names(keys: pa.StringArray) -> None:
    for name in keys.unique().to_pylist():
        if name in RESERVED:
            raise MessageRejectedError(
                f"a header is called '{name}', which is a property of RocketMQ's own",
                hint="give keys and tags in the columns 'key' and 'tags', or rename the header",
            )


def _check_values(keys: pa.StringArray, values: pa.StringArray) -> None:
    for column, what in ((keys, "name"), (values, "value")):
        # An empty text has no character that may stand in a property; null is as bad.
        good = pc.match_substring_regex(column, "^[^\x01\x02]+$")
        bad = np.flatnonzero(~good.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
        if len(bad):
            row = int(bad[0])
            raise MessageRejectedError(
                f"a header has the {what} {column[row].as_py()!r} (name {keys[row].as_py()!r}),"
                " which a message cannot carry",
                hint="leave out headers without a name or value; U+0001 and U+0002 separate them",
            )
