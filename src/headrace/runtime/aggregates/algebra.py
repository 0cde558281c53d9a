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
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from headrace.keys import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.runtime.chunk import Int64s
    from headrace.topology.aggregations import Aggregation


#: Stands for an accumulator that is not there yet; None may be a reducer's result.
ABSENT: Final = object()

#: What adding to an accumulator changes in it.  ``nothing``: there is a new one.  ``by users``:
#: their function may change anything.  ``in place``: the same one changes, but not by a value that
#: fails, and a value that an empty one takes never fails.
Change = Literal["nothing", "by users", "in place"]

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

    #: What becomes of the accumulator that ``add`` and ``remove`` are given.
    changes: ClassVar[Change] = "nothing"

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


# Several aggregates of the same values.

_LEAST_RISK: Final[tuple[Change, ...]] = ("nothing", "by users", "in place")


class RowAlgebra(Algebra):
    """Aggregates side by side: an accumulator is a list of theirs, a result a dict of theirs.

    A record on which one of them fails changes none.  So those that change nothing go first, then
    users' own, which get copies where another one may still fail, then those that were seen to
    take the value.

    Parameters
    ----------
    aggregation
        One whose parts these are.
    parts
        By the name of their results.
    """

    def __init__(self, aggregation: Aggregation, parts: Mapping[str, Algebra]) -> None:
        super().__init__(aggregation)
        # In the order of their names, so that a program may name them in another.
        names = sorted(parts)
        self._parts = [parts[name] for name in names]
        self._places = {name: names.index(name) for name in parts}
        risks = [_LEAST_RISK.index(part.changes) for part in self._parts]
        self._order = sorted(range(len(risks)), key=risks.__getitem__)
        users, kept = ([at for at in self._order if risks[at] == risk] for risk in (1, 2))
        self._tried = [self._parts[at] for at in kept] if len(users + kept) > 1 else []
        self._copied = frozenset(users if aggregation.updates else users[:-1])
        self._combines = not users

    @property
    def merges(self) -> bool:
        return all(part.merges for part in self._parts)

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        if accumulator is ABSENT:
            return [part.add(ABSENT, value, mark) for part in self._parts]
        for part in self._tried:
            part.add(ABSENT, value, mark)
        return self._each(accumulator, lambda part, held: part.add(held, value, mark))

    def remove(self, accumulator: Any, value: Any) -> Any:
        held = [ABSENT] * len(self._parts) if accumulator is ABSENT else accumulator
        left = self._each(held, lambda part, one: part.remove(one, value))
        return ABSENT if any(one is ABSENT for one in left) else left

    def _each(self, accumulator: list[Any], change: Callable[[Algebra, Any], Any]) -> list[Any]:
        changed = [*accumulator]
        for at in self._order:
            held = changed[at]
            changed[at] = change(
                self._parts[at], copy.deepcopy(held) if at in self._copied else held
            )
        return changed

    def merge(self, left: Any, right: Any) -> Any:
        pairs = zip(self._parts, left, right, strict=True)
        return [part.merge(one, other) for part, one, other in pairs]

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        """Add many values, to one aggregate after another where none of them fails."""
        if not self._combines:
            super().fold(accumulators, keys, values, marks)
            return
        # The iterators stay where they are until it is known that no value fails.
        columns = [list(copy.copy(column)) for column in (keys, values, marks)]
        try:
            changed = self._folded(accumulators, *columns)
        except Exception:  # noqa: BLE001 - some value is bad: find out which, one by one
            super().fold(accumulators, keys, values, marks)
        else:
            accumulators.update(changed)

    def _folded(
        self, accumulators: dict[Any, Any], keys: list[Any], values: list[Any], marks: list[int]
    ) -> dict[Any, Any]:
        news: list[dict[Any, Any]] = []
        for part in self._parts:
            news.append({})
            part.fold(news[-1], iter(keys), iter(values), iter(marks))
        distinct = list(dict.fromkeys(keys))
        olds = [accumulators.get(key, ABSENT) for key in distinct]
        rows = [[new[key] for new in news] for key in distinct]
        return dict(zip(distinct, self.merge_into(olds, rows), strict=True))

    def merge_groups(
        self, data: pa.BinaryArray, picks: Int64s, groups: Int64s, size: int
    ) -> list[Any]:
        columns = zip(self._parts, self._split(data), strict=True)
        return _rows([part.merge_groups(column, picks, groups, size) for part, column in columns])

    def merge_into(self, olds: list[Any], news: list[Any]) -> list[Any]:
        columns: list[list[Any]] = [[]] * len(self._parts)
        for at in self._order:
            held = [ABSENT if old is ABSENT else old[at] for old in olds]
            columns[at] = self._parts[at].merge_into(held, [new[at] for new in news])
        return _rows(columns)

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        columns = [
            part.encode([held[at] for held in accumulators]).to_pylist()
            for at, part in enumerate(self._parts)
        ]
        return self.aggregation.state_serde.serialize_many(list(zip(*columns, strict=True)))

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        columns = zip(self._parts, self._split(data), strict=True)
        return _rows([part.decode(column) for part, column in columns])

    def _split(self, data: pa.BinaryArray) -> list[pa.BinaryArray]:
        rows = self.aggregation.state_serde.deserialize_many(data)
        return [pa.array([row[at] for row in rows], pa.binary()) for at in range(len(self._parts))]

    def result(self, accumulator: Any) -> Any:
        return {name: self._parts[at].result(accumulator[at]) for name, at in self._places.items()}

    def snapshot(self, accumulator: Any) -> Any:
        return {
            name: self._parts[at].snapshot(accumulator[at]) for name, at in self._places.items()
        }


def _rows(columns: list[list[Any]]) -> list[list[Any]]:
    return list(map(list, zip(*columns, strict=True)))


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


# Aggregates that keep every value, or what tells it from others: collect, count_distinct.


class _SelectingAlgebra(Algebra):
    changes = "in place"

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

    changes = "in place"

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

    changes = "in place"

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
