"""Aggregates that keep every value, or what tells it from others: collect, count_distinct."""

from __future__ import annotations

from bisect import insort_right
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.keys import encode_key
from headrace.runtime.aggregates.algebra import ABSENT, Algebra
from headrace.runtime.aggregates.hyperloglog import HyperLogLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.topology.aggregations import Aggregation

__all__ = ["COLLECTING"]


class _SelectingAlgebra(Algebra):
    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._select = aggregation.function

    def _canonical(self, value: Any) -> bytes:
        """Give the bytes that equal values share, 1, 1.0 and True being three."""
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
