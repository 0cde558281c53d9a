"""Hashes of many words at once, 64 bits each: what the index of keys is sorted by.

The same word has the same hash on every machine and in every release, as the hashes are on disk.
Two words may share a hash, so whoever finds a record by it looks at the record's own words.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["UInt64s", "topic_hash", "word_hashes"]

UInt64s = npt.NDArray[np.uint64]

#: Odd, so that it has an inverse modulo 2**64.
_BASE = 0x9E37_79B9_7F4A_7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIX = (np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(0xC4CE_B9FE_1A85_EC53))
_SHIFT = np.uint64(33)
#: Bytes of words that are hashed in one go, at least.
_AT_ONCE = 1 << 18


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
        last = max(int(np.searchsorted(offsets, offsets[first] + _AT_ONCE)) - 1, first + 1)
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
