"""From a stretch of the log to its keys: one hash and one position for each word of a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProtocolError
from headrace.protocol.columns import property_column
from headrace.protocol.layout import locate, record_starts, slices
from headrace.protocol.properties import KEYS, UNIQ_KEY
from headrace.store.entries import EntryKind, parse_header

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer


# Hashes of many words at once, 64 bits each: what the index of keys is sorted by.
#
# The same word has the same hash on every machine and in every release, as the hashes are on disk.
# Two words may share a hash, so whoever finds a record by it looks at the record's own words.

UInt64s = npt.NDArray[np.uint64]

#: Odd, so that it has an inverse modulo 2**64.
_BASE = 0x9E37_79B9_7F4A_7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIX = (np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(0xC4CE_B9FE_1A85_EC53))
_SHIFT = np.uint64(33)
#: Bytes of words that are hashed in one go, at least.
_HASHES_AT_ONCE = 1 << 18


def topic_hash(topic: bytes) -> np.uint64:
    """Hash a topic's name, to be given to :func:`word_hashes`."""
    return np.uint64(word_hashes(pa.array([topic], pa.binary()), np.zeros(1, np.uint64))[0])


def word_hashes(words: pa.BinaryArray, topics: UInt64s) -> UInt64s:
    """Hash words, each together with the hash of its topic.

    >>> pair = pa.array([b"k1", b"k2"], pa.binary())
    >>> a, b = word_hashes(pair, np.full(2, topic_hash(b"lines")))
    >>> bool(a == b), bool(a == word_hashes(pair[:1], np.array([topic_hash(b"words")]))[0])
    (False, False)
    """
    _, offset_buffer, data = words.buffers()
    if not len(words) or data is None:
        return _mixed(topics.copy())
    offsets = np.frombuffer(offset_buffer, np.int32)[words.offset :][: len(words) + 1]
    offsets = offsets.astype(np.int64)
    text = np.frombuffer(data, np.uint8)
    found = np.empty(len(words), np.uint64)
    first = 0
    while first < len(words):
        # At least one word, however long it is.
        last = max(int(np.searchsorted(offsets, offsets[first] + _HASHES_AT_ONCE)) - 1, first + 1)
        last = min(last, len(words))
        bounds = offsets[first : last + 1]
        found[first:last] = _polynomials(text[bounds[0] : bounds[-1]], bounds - bounds[0])
        first = last
    lengths = (offsets[1:] - offsets[:-1]).astype(np.uint64)
    return _mixed(_mixed(found + lengths) ^ topics)


def _polynomials(text: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> UInt64s:
    """Hash slices that follow each other, by differences of sums over all that comes before."""
    powers, inverses = _tables(1 << max(len(text).bit_length(), 10))
    sums = np.zeros(len(text) + 1, np.uint64)
    # One more than each byte: leading zeros count, too.
    np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers[: len(text)], out=sums[1:])
    found: UInt64s = (sums[bounds[1:]] - sums[bounds[:-1]]) * inverses[bounds[:-1]]
    return found


@lru_cache(maxsize=8)
def _tables(size: int) -> tuple[UInt64s, UInt64s]:
    """Powers of the base and of its inverse, modulo 2**64."""
    powers = []
    for base in (_BASE, _INVERSE):
        table = np.full(size + 1, np.uint64(base), np.uint64)
        table[0] = 1
        powers.append(np.cumprod(table, dtype=np.uint64))
    return powers[0], powers[1]


def _mixed(numbers: UInt64s) -> UInt64s:
    """Let every bit depend on every bit."""
    for factor in _MIX:
        numbers = (numbers ^ (numbers >> _SHIFT)) * factor
    return numbers ^ (numbers >> _SHIFT)


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
    """Yield the keys of the records in whole entries of the log, stretch by stretch.

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
