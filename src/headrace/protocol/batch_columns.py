"""Bodies of batch sends made from columns, without a Python object per message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import MessageRejectedError
from headrace.protocol.messages import BatchBody
from headrace.protocol.properties import KEYS, MAX_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator


#: A mini message: sizes and zeroes, the body, the properties' size, the properties.
_HEAD = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_FIXED = _HEAD.itemsize + 2
#: Bytes joined at once: the offsets of an Arrow column are 32-bit numbers.
_CHUNK = 64 * 1024 * 1024


def encode_batch_columns(
    bodies: pa.BinaryArray, properties: pa.BinaryArray | None, limit: int
) -> Iterator[BatchBody]:
    r"""Cut columns into bodies of batch sends of at most ``limit`` bytes, in order.

    A message that is larger has a body of its own.

    Parameters
    ----------
    bodies
        The messages' bodies; null is an empty one.
    properties
        Raw properties strings; null: none.

    Raises
    ------
    MessageRejectedError
        A properties string is longer than 32,767 bytes.

    Examples
    --------
    >>> [batch.count for batch in encode_batch_columns(pa.array([b"a" * 50] * 5), None, 150)]
    [2, 2, 1]
    """
    body_sizes = _sizes(bodies)
    property_sizes = np.zeros(len(bodies), np.int64) if properties is None else _sizes(properties)
    _check(property_sizes)
    ends = np.cumsum(_FIXED + body_sizes + property_sizes)
    for first, last in _cuts(ends, 0, len(bodies), _CHUNK):
        part = slice(first, last)
        joined = _join(
            bodies.slice(first, last - first),
            None if properties is None else properties.slice(first, last - first),
            body_sizes[part],
            property_sizes[part],
        )
        base = int(ends[first - 1]) if first else 0
        for begin, end in _cuts(ends, first, last, limit):
            start = int(ends[begin - 1]) - base if begin else 0
            yield BatchBody(joined[start : int(ends[end - 1]) - base], end - begin)


def keys_properties(keys: pa.BinaryArray) -> pa.BinaryArray:
    r"""Make raw properties strings of a column of KEYS, empty where a key is null or empty.

    Raises
    ------
    MessageRejectedError
        A key holds one of the bytes that separate properties.

    Examples
    --------
    >>> keys_properties(pa.array([b"a", None])).to_pylist()
    [b'KEYS\x01a\x02', b'']
    """
    plain = keys.cast(pa.binary())
    if any(pc.any(pc.match_substring(plain, mark)).as_py() for mark in ("\x01", "\x02")):
        raise MessageRejectedError(
            "a key holds U+0001 or U+0002, which separate properties",
            hint="encode the keys, for example with headrace.keys.key_properties",
        )
    name, end, none = (pa.scalar(text) for text in (f"{KEYS}\x01".encode(), b"\x02", b""))
    pairs = pc.binary_join_element_wise(name, plain, end, none)
    return pc.if_else(pc.equal(pc.fill_null(pc.binary_length(plain), 0), 0), none, pairs)


def _check(property_sizes: npt.NDArray[np.int64]) -> None:
    if len(property_sizes) and int(property_sizes.max()) > MAX_PROPERTIES:
        row = int(property_sizes.argmax())
        raise MessageRejectedError(
            f"the properties of message {row} take {property_sizes[row]} bytes, "
            f"{MAX_PROPERTIES} are possible",
            hint="put large values into the body",
        )


def _sizes(column: pa.BinaryArray) -> npt.NDArray[np.int64]:
    sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return np.asarray(sizes, np.int64)


def _cuts(
    ends: npt.NDArray[np.int64], first: int, last: int, limit: int
) -> Iterator[tuple[int, int]]:
    while first < last:
        base = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends[:last], base + limit, side="right"))
        end = max(end, first + 1)
        yield first, end
        first = end


def _join(
    bodies: pa.BinaryArray,
    properties: pa.BinaryArray | None,
    body_sizes: npt.NDArray[np.int64],
    property_sizes: npt.NDArray[np.int64],
) -> memoryview:
    head = np.zeros(len(bodies), _HEAD)
    head["size"] = _FIXED + body_sizes + property_sizes
    head["body"] = body_sizes
    pieces: list[object] = [_fixed(head), bodies, _fixed(property_sizes.astype(">i2"))]
    if properties is not None:
        pieces.append(properties)
    none = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(
        *pieces, none, null_handling="replace", null_replacement=""
    )
    # Sliced inputs give a fresh result, whose bytes begin at its first offset.
    offsets = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1, 4 * joined.offset)
    return memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def _fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    size = values.dtype.itemsize
    offsets = np.arange(0, size * (len(values) + 1), size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
