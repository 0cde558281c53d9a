"""Cutting the rows of a batch to what one call of ``put`` may get."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["pieces"]


def pieces(rows: pa.RecordBatch, most_records: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut rows so that no piece has more records, or more bytes of keys and values; none is empty.

    A record that is larger by itself makes a piece of its own.

    >>> rows = pa.RecordBatch.from_pylist([{"key": None, "value": b"x" * n} for n in (5, 1, 9, 1)])
    >>> [part.num_rows for part in pieces(rows, 3, 7)]
    [2, 1, 1]
    >>> [part.num_rows for part in pieces(rows, 3, 1000)]
    [3, 1]
    """
    count = rows.num_rows
    if count <= most_records and rows.nbytes <= most_bytes:
        if count:
            yield rows
        return
    ends = np.cumsum(_sizes(rows.column("key")) + _sizes(rows.column("value")))
    begin = 0
    while begin < count:
        before = ends[begin - 1] if begin else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, side="right"))
        end = max(begin + 1, min(fitting, begin + most_records))
        yield rows.slice(begin, end - begin)
        begin = end


def _sizes(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    sizes = pc.fill_null(pc.binary_length(column), 0)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = sizes.to_numpy().astype(np.int64)
    return found
