"""Chance that depends on the row's number alone."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Numbers", "bits", "column_seed", "shares"]

Numbers: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def column_seed(seed: int, name: str) -> int:
    """Give each column chance of its own.

    >>> column_seed(1, "a") == column_seed(1, "b")
    False
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def bits(rows: Numbers, seed: int) -> Numbers:
    """Give 64 even bits for each row number: SplitMix64 of seed and number.

    >>> rows = np.arange(4, dtype=np.uint64)
    >>> bool((bits(rows, 7)[2:] == bits(rows[2:], 7)).all())
    True
    """
    mixed = (rows + np.uint64(1)) * _GOLDEN + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def shares(rows: Numbers, seed: int) -> Floats:
    """Give a number from 0 to below 1 for each row number."""
    return (bits(rows, seed) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
