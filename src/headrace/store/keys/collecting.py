"""From a stretch of the log to its keys: one hash and one position for each word of a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProtocolError
from headrace.protocol.layout import locate, record_starts, slices
from headrace.protocol.properties import KEYS, UNIQ_KEY
from headrace.protocol.property_columns import property_column
from headrace.store.entries import EntryKind, parse_header
from headrace.store.keys.hashes import UInt64s, topic_hash, word_hashes

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer

__all__ = ["ENTRY", "Collected", "Entries", "collect", "sorted_entries"]

ENTRY = np.dtype([("hash", "<u8"), ("position", "<i8")])
"""A word of a record: its hash, and where the record lies in the log."""

Entries = npt.NDArray[np.void]

#: Records of so many bytes are looked at together.
_AT_ONCE = 8 * 1024 * 1024
_BLANK = b" "


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """The keys of one stretch of the log."""

    #: Sorted by hash.
    entries: Entries
    #: One past the stretch.
    end: int


def collect(content: memoryview, base: int, start: int) -> Iterator[Collected]:
    """Give the keys of the records in whole entries of the log, stretch by stretch.

    Parameters
    ----------
    content
        Bytes of one segment, up to where readers see it.
    base
        Position of its first byte.
    start
        Position to begin at.
    """
    position, end = start, base + len(content)
    while position < end:
        pieces: list[Buffer] = []
        size = 0
        first = position
        while position < end and size < _AT_ONCE:
            entry = parse_header(content, position - base, position)
            # Damage: recovery and repair deal with it, nothing behind it is found.
            if entry is None or entry.end > end:
                end = position
                break
            if entry.kind is EntryKind.DATA:
                at = entry.payload_position - base
                pieces.append(content[at : at + entry.payload_size])
                size += entry.payload_size
            position = entry.end
        if position > first:
            yield Collected(sorted_entries(_entries(pieces)), position)


def sorted_entries(entries: Entries) -> Entries:
    """Sort by hash; records of one hash are in any order."""
    found: Entries = entries[np.argsort(np.ascontiguousarray(entries["hash"]))]
    return found


def _entries(pieces: list[Buffer]) -> Entries:
    if not pieces:
        return np.empty(0, ENTRY)
    block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    try:
        layout = locate(block, record_starts(block))
    except ProtocolError:
        # One entry holds no records: the others' keys are found all the same.
        return np.empty(0, ENTRY) if len(pieces) == 1 else _one_by_one(pieces)
    positions = layout.head["position"].astype(np.int64)
    topics = _topic_hashes(slices(block, layout.topic_starts, layout.topic_ends))
    properties = slices(block, layout.property_starts, layout.property_ends)
    parts = [
        _of_words(*_words(property_column(properties, name)), topics, positions)
        for name in (UNIQ_KEY, KEYS)
    ]
    return np.concatenate(parts)


def _one_by_one(pieces: list[Buffer]) -> Entries:
    return np.concatenate([_entries([piece]) for piece in pieces])


def _topic_hashes(topics: pa.BinaryArray) -> UInt64s:
    coded = pc.dictionary_encode(topics)
    hashes = np.array([topic_hash(name.as_py()) for name in coded.dictionary], np.uint64)
    found: UInt64s = hashes[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _words(values: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]]:
    """Split values at blanks; also give the row of each word."""
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    present = values.drop_null()
    if not len(present) or not pc.any(pc.match_substring(present, _BLANK)).as_py():
        return present, rows
    lists = pc.split_pattern(present, _BLANK)
    words = lists.flatten()
    owners = pc.list_parent_indices(lists).to_numpy()
    kept = np.flatnonzero(pc.binary_length(words).to_numpy())
    return words.take(pa.array(kept)), rows[owners[kept]]


def _of_words(
    words: pa.BinaryArray,
    rows: npt.NDArray[np.int64],
    topics: UInt64s,
    positions: npt.NDArray[np.int64],
) -> Entries:
    entries = np.empty(len(rows), ENTRY)
    if len(rows):
        entries["hash"] = word_hashes(words, topics[rows])
        entries["position"] = positions[rows]
    return entries
