"""Keys of compacted topics whose records the commit log holds no longer.

Their compaction logs are read: they hold one record a key, however many there have been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.columns import decode_columns
from headrace.protocol.layout import record_starts
from headrace.protocol.properties import KEYS, UNIQ_KEY

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns
    from headrace.store.index import QueueKey
    from headrace.store.keys.query import KeyQuery
    from headrace.store.reading import Reader

__all__ = ["find_compacted"]

_COUNT = 20_000
_BYTES = 8 * 1024 * 1024


def find_compacted(
    reader: Reader, queues: list[QueueKey], query: KeyQuery, log_begin: int
) -> list[bytes]:
    """Give the records that a query asks for and that lie before the log, the newest first."""
    found: list[tuple[int, int, bytes]] = []
    for queue in queues:
        offset = max(reader.bounds(queue).min_offset, 0)
        if query.begin > 0:
            offset = max(offset, reader.offset_at(queue, query.begin, upper=False))
        while True:
            result = reader.read(queue, offset, _COUNT, _BYTES, None)
            if not result.count:
                break
            block = b"".join(result.slices)
            columns = decode_columns(block, unpack=False)
            rows = _rows(columns, query, log_begin)
            found += _records(block, columns, rows)
            if int(columns.position[-1]) >= log_begin:
                break
            offset = result.next_offset
    return [record for _, _, record in sorted(found, reverse=True)[: query.limit]]


def _rows(columns: MessageColumns, query: KeyQuery, log_begin: int) -> npt.NDArray[np.int64]:
    held = _holds(columns.property(UNIQ_KEY), query.word)
    if not query.unique:
        held |= _holds(columns.property(KEYS), query.word)
    held &= (columns.stored >= query.begin) & (columns.stored <= query.end)
    rows: npt.NDArray[np.int64] = np.flatnonzero(held & (columns.position < log_begin))
    return rows[-query.limit :]


def _records(
    block: bytes, columns: MessageColumns, rows: npt.NDArray[np.int64]
) -> list[tuple[int, int, bytes]]:
    if not len(rows):
        return []
    bounds = np.append(record_starts(block), len(block))
    return [
        (int(columns.stored[row]), int(columns.position[row]), block[bounds[row] : bounds[row + 1]])
        for row in rows.tolist()
    ]


def _holds(values: pa.BinaryArray, word: str) -> npt.NDArray[np.bool_]:
    """Tell which values, of words with blanks between, hold a word."""
    blank = pa.scalar(b" ")
    padded = pc.binary_join_element_wise(blank, values, blank, pa.scalar(b""))
    held = pc.match_substring(padded, f" {word} ")
    found: npt.NDArray[np.bool_] = pc.fill_null(held, pa.scalar(value=False)).to_numpy(
        zero_copy_only=False
    )
    return found
