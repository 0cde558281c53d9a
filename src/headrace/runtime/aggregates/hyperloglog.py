"""HyperLogLog: how many different values there were, in 4 KiB at most.

The estimator is the improved one of O. Ertl, "New cardinality estimation algorithms for
HyperLogLog sketches" (2017), which needs no correction tables and no switch between ranges.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

import numpy as np

__all__ = ["STANDARD_ERROR", "HyperLogLog"]

_PRECISION: Final = 12
_REGISTERS: Final = 1 << _PRECISION
#: Bits of a hash behind those that choose the register.
_REST: Final = 64 - _PRECISION
_REST_MASK: Final = (1 << _REST) - 1
#: Registers in use up to which three bytes each are fewer than one byte for every register.
_SPARSE: Final = _REGISTERS // 4
_ALPHA: Final = 1 / (2 * math.log(2))

STANDARD_ERROR: Final = 1.04 / math.sqrt(_REGISTERS)
"""Two of three estimates are off by less than this share of the true number."""


class HyperLogLog:
    """Registers that each hold the longest run of zero bits seen in the hashes that fell to them.

    Examples
    --------
    >>> sketch = HyperLogLog()
    >>> for number in range(1000):
    ...     sketch.add(str(number).encode())
    >>> abs(sketch.estimate() - 1000) < 50
    True
    """

    __slots__ = ("_dense", "_sparse")

    def __init__(self) -> None:
        self._sparse: dict[int, int] = {}
        self._dense: bytearray | None = None

    def add(self, value: bytes) -> None:
        """Take a value in."""
        bits = int.from_bytes(blake2b(value, digest_size=8).digest(), "big")
        rank = _REST - (bits & _REST_MASK).bit_length() + 1
        self._raise(bits >> _REST, rank)

    def merge(self, other: HyperLogLog) -> None:
        """Take in all that another has seen."""
        if other._dense is not None:
            own, theirs = self._registers(), np.frombuffer(other._dense, np.uint8)
            self._dense = bytearray(np.maximum(own, theirs).tobytes())
            self._sparse = {}
            return
        for register, rank in other._sparse.items():
            self._raise(register, rank)

    def estimate(self) -> int:
        """Give the number of different values, within :data:`STANDARD_ERROR`."""
        counts = np.bincount(self._registers(), minlength=_REST + 2).tolist()
        size = float(_REGISTERS)
        total = size * _tau(1 - counts[_REST + 1] / size)
        for rank in range(_REST, 0, -1):
            total = 0.5 * (total + counts[rank])
        total += size * _sigma(counts[0] / size)
        return round(_ALPHA * size * size / total)

    def to_bytes(self) -> bytes:
        """Write the registers."""
        if self._dense is not None:
            return b"d" + self._dense
        pairs = sorted(self._sparse.items())
        return b"s" + b"".join(
            register.to_bytes(2, "little") + bytes((rank,)) for register, rank in pairs
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> HyperLogLog:
        """Read what :meth:`to_bytes` wrote."""
        sketch = cls()
        if data[:1] == b"d" and len(data) == _REGISTERS + 1:
            sketch._dense = bytearray(data[1:])
        elif data[:1] == b"s" and len(data) % 3 == 1:
            sketch._sparse = {
                int.from_bytes(data[at : at + 2], "little"): data[at + 2]
                for at in range(1, len(data), 3)
            }
        else:
            message = f"these {len(data)} bytes are no HyperLogLog registers"
            raise ValueError(message)
        return sketch

    def _raise(self, register: int, rank: int) -> None:
        if self._dense is not None:
            self._dense[register] = max(self._dense[register], rank)
            return
        if rank > self._sparse.get(register, 0):
            self._sparse[register] = rank
            if len(self._sparse) > _SPARSE:
                self._dense = bytearray(self._registers().tobytes())
                self._sparse = {}

    def _registers(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        if self._dense is not None:
            return np.frombuffer(self._dense, np.uint8)
        registers = np.zeros(_REGISTERS, np.uint8)
        registers[list(self._sparse)] = list(self._sparse.values())
        return registers


def _sigma(share: float) -> float:
    """Weigh the registers that saw nothing."""
    if share == 1:
        return math.inf
    weight, total, before = 1.0, share, -1.0
    while total != before:
        before = total
        share *= share
        total += share * weight
        weight += weight
    return total


def _tau(share: float) -> float:
    """Weigh the registers whose hashes had no bit set."""
    if share in (0.0, 1.0):
        return 0.0
    weight, total, before = 1.0, 1 - share, -1.0
    while total != before:
        before = total
        share = math.sqrt(share)
        weight *= 0.5
        total -= (1 - share) ** 2 * weight
    return total / 3
