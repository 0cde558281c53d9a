"""What every kind of aggregate can do with its accumulators, for whoever keeps them."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from bisect import insort_right
from datetime import date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from headrace.keys import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.runtime.chunk import Int64s
    from headrace.topology.aggregations import Aggregation


#: Stands for an accumulator that is not there yet; None may be a reducer's result.
ABSENT: Final = object()

#: Types of values that nobody can change.
_FIXED = frozenset({NoneType, bool, int, float, str, bytes, Decimal, date, datetime, timedelta})


def apart(value: Any) -> Any:
    """Return a value that changes with no other: itself, or a copy.

    >>> given = [1]
    >>> apart(given) == given, apart(given) is given
    (True, False)
    """
    return value if type(value) in _FIXED else copy.deepcopy(value)


class Algebra(ABC):
    """Arithmetic of one aggregation.

    Whoever keeps accumulators (by key, by key and window) needs no more than this: ``add`` or
    ``fold`` values in, ``merge`` two of them, ``remove`` a value that was taken back, ``result``
    for people, ``encode`` and ``decode`` for the state store.  An accumulator belongs to its
    holder: ``add``, ``remove`` and ``merge`` may change what they are given, so only what they
    return counts.  Values do not: they may be those of other holders, too.

    Parameters
    ----------
    aggregation
        Serdes and user functions.
    """

    #: Whether values can be taken back.
    removes: ClassVar[bool] = False

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation

    @property
    def merges(self) -> bool:
        """Whether accumulators merge, in any order, so that records may be combined early."""
        return True

    @abstractmethod
    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        """Return the accumulator with one more value in it; ``ABSENT`` is one without values.

        The mark is the order of arrival, by which kinds that keep records settle ties.
        """

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """Return the accumulator of the values of both."""

    def remove(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator without one value that it holds; ``ABSENT`` when that was all."""
        raise NotImplementedError(f"{self.aggregation.kind} cannot take a value back")

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        """Add many values, each to the accumulator of its key.

        The three move on together; when a value fails, they stand behind it, and the accumulators
        hold all that came before.
        """
        get, add = accumulators.get, self.add
        for key, value, mark in zip(keys, values, marks, strict=True):
            accumulators[key] = add(get(key, ABSENT), value, mark)

    def merge_groups(
        self, data: pa.BinaryArray, picks: Int64s, groups: Int64s, size: int
    ) -> list[Any]:
        """Merge encoded partials: of each pick one into the group beside it.

        A partial may be picked for several groups.  Every number below ``size`` is a group.
        """
        merged: list[Any] = [ABSENT] * size
        merge = self.merge
        partials = self.decode(data.take(pa.array(picks)))
        for group, partial in zip(groups.tolist(), partials, strict=True):
            before = merged[group]
            merged[group] = partial if before is ABSENT else merge(before, partial)
        return merged

    def merge_into(self, olds: list[Any], news: list[Any]) -> list[Any]:
        """Merge accumulators, one by one, into older ones, which may be ``ABSENT``."""
        merge = self.merge
        pairs = zip(olds, news, strict=True)
        return [new if old is ABSENT else merge(old, new) for old, new in pairs]

    def decode_olds(self, olds: Sequence[bytes | None]) -> list[Any]:
        """Read accumulators from a state store; ``ABSENT`` where there is none."""
        held = [old for old in olds if old is not None]
        found = iter(self.decode(pa.array(held, pa.binary())))
        return [ABSENT if old is None else next(found) for old in olds]

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        """Write accumulators."""
        return self.aggregation.state_serde.serialize_many(accumulators)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        """Read accumulators."""
        return self.aggregation.state_serde.deserialize_many(data)

    def result(self, accumulator: Any) -> Any:
        """Return what an accumulator says; it may be the accumulator itself, or part of it."""
        return accumulator

    def snapshot(self, accumulator: Any) -> Any:
        """Return what an accumulator says that lives on, whatever becomes of it behind that."""
        return self.result(accumulator)

    def results(self, accumulators: list[Any]) -> list[Any]:
        """Return what many accumulators say."""
        return list(map(self.result, accumulators))


# Aggregates that keep every value, or what tells it from others: collect, count_distinct.

# HyperLogLog: how many different values there were, in 4 KiB at most.
#
# The estimator is the improved one of O. Ertl, "New cardinality estimation algorithms for
# HyperLogLog sketches" (2017), which needs no correction tables and no switch between ranges.

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
        """Return the number of different values, within :data:`STANDARD_ERROR`."""
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


class _SelectingAlgebra(Algebra):
    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._select = aggregation.function

    def _canonical(self, value: Any) -> bytes:
        """Return the bytes that equal values share, 1, 1.0 and True being three."""
        return encode_key(value if self._select is None else self._select(value))


class DistinctAlgebra(_SelectingAlgebra):
    """Counts different values by keeping each once."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        found = self._canonical(value)
        if accumulator is ABSENT:
            return {found}
        accumulator.add(found)
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        left |= right
        return left

    def result(self, accumulator: Any) -> Any:
        return len(accumulator)


class EstimateAlgebra(_SelectingAlgebra):
    """Estimates the number of different values."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        if accumulator is ABSENT:
            accumulator = HyperLogLog()
        accumulator.add(self._canonical(value))
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        left.merge(right)
        return left

    def result(self, accumulator: Any) -> Any:
        return accumulator.estimate()

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        return pa.array([sketch.to_bytes() for sketch in accumulators], pa.binary())

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        return list(map(HyperLogLog.from_bytes, data.to_pylist()))


class CollectAlgebra(Algebra):
    """Keeps all values, or the first few, in the order of arrival, in whichever they are added."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        if accumulator is ABSENT:
            return [(mark, value)]
        if mark < accumulator[-1][0]:
            insort_right(accumulator, (mark, value), key=_mark)
            return accumulator[: self.aggregation.limit]
        if len(accumulator) != self.aggregation.limit:
            accumulator.append((mark, value))
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        in_order = left[-1][0] <= right[0][0]
        left += right
        if not in_order:
            left.sort(key=_mark)
        return left[: self.aggregation.limit]

    def result(self, accumulator: Any) -> Any:
        return [value for _, value in accumulator]


class CollectDistinctAlgebra(Algebra):
    """Keeps each different value once, where it came first; values differ by their bytes."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        body = self.aggregation.value_serde.serialize(value)
        if accumulator is ABSENT:
            return {body: (mark, value)}
        if mark < next(reversed(accumulator.values()))[0]:
            return self.merge(accumulator, {body: (mark, value)})
        if len(accumulator) != self.aggregation.limit:
            accumulator.setdefault(body, (mark, value))
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        for body, entry in right.items():
            if body not in left or entry[0] < left[body][0]:
                left[body] = entry
        kept = sorted(left.items(), key=lambda item: _mark(item[1]))
        return dict(kept[: self.aggregation.limit])

    def result(self, accumulator: Any) -> Any:
        return [value for _, value in accumulator.values()]

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        entries = [list(held.values()) for held in accumulators]
        return self.aggregation.state_serde.serialize_many(entries)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        write = self.aggregation.value_serde.serialize
        lists = self.aggregation.state_serde.deserialize_many(data)
        return [{write(entry[1]): entry for entry in entries} for entries in lists]


def _mark(entry: tuple[int, Any]) -> int:
    return entry[0]


#: Algebras by kind, for the table of all.
COLLECTING: dict[str, Callable[[Aggregation], Algebra]] = {
    "collect": CollectAlgebra,
    "collect_distinct": CollectDistinctAlgebra,
    "count_distinct": DistinctAlgebra,
    "estimate_distinct": EstimateAlgebra,
}
