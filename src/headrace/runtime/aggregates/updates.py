"""Aggregates fed by updates: what they keep lets every value be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.keys import encode_key
from headrace.runtime.aggregates.algebra import ABSENT, Algebra, apart
from headrace.runtime.aggregates.ranked import is_number
from headrace.topology import add_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from headrace.topology.aggregations import Aggregation

__all__ = ["UPDATED"]


class _UpdatedAlgebra(Algebra):
    """Has state of its own, and is never combined: a group of updates is small already."""

    removes = True

    @property
    def merges(self) -> bool:
        return False

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._select = aggregation.function

    def _selected(self, value: Any) -> Any:
        return value if self._select is None else self._select(value)


class UpdatedCountAlgebra(_UpdatedAlgebra):
    """Counts values."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del value, mark
        return 1 if accumulator is ABSENT else accumulator + 1

    def remove(self, accumulator: Any, value: Any) -> Any:
        del value
        return _held(accumulator) - 1 or ABSENT

    def merge(self, left: Any, right: Any) -> Any:
        return left + right


class UpdatedSumAlgebra(_UpdatedAlgebra):
    """Keeps the number of values beside their sum: a sum of nothing must go."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        count, total = (0, 0) if accumulator is ABSENT else accumulator
        return count + 1, add_numbers(total, self._selected(value))

    def remove(self, accumulator: Any, value: Any) -> Any:
        count, total = _held(accumulator)
        return (count - 1, add_numbers(total, -self._selected(value))) if count > 1 else ABSENT

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], add_numbers(left[1], right[1])

    def result(self, accumulator: Any) -> Any:
        count, total = accumulator
        return total / count if self.aggregation.kind == "avg" else total


class UpdatedCustomAlgebra(_UpdatedAlgebra):
    """Folds values into accumulators of the user's own class, and takes them out again."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        make = self.aggregation.accumulator
        assert make is not None
        count, held = (0, make()) if accumulator is ABSENT else accumulator
        held.add(value)
        return count + 1, held

    def remove(self, accumulator: Any, value: Any) -> Any:
        count, held = _held(accumulator)
        held.remove(value)
        return (count - 1, held) if count > 1 else ABSENT

    def merge(self, left: Any, right: Any) -> Any:
        left[1].merge(right[1])
        return left[0] + right[0], left[1]

    def result(self, accumulator: Any) -> Any:
        return accumulator[1].result()

    def snapshot(self, accumulator: Any) -> Any:
        return apart(self.result(accumulator))

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        entries = [[accumulator] for accumulator in accumulators]
        return self.aggregation.state_serde.serialize_many(entries)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        return [entry for (entry,) in self.aggregation.state_serde.deserialize_many(data)]


class MultisetAlgebra(_UpdatedAlgebra):
    """Keeps all values by their bytes, with how many there are of each.

    Which of several updates came first depends on how records were cut into batches; so equal
    ones stand in the order of their bytes here.
    """

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        body = self.aggregation.value_serde.serialize(value)
        counts = {} if accumulator is ABSENT else accumulator
        counts[body] = counts.get(body, 0) + 1
        return counts

    def remove(self, accumulator: Any, value: Any) -> Any:
        body = self.aggregation.value_serde.serialize(value)
        counts = _held(accumulator)
        left = _held(counts.get(body, ABSENT)) - 1
        if left:
            counts[body] = left
        else:
            del counts[body]
        return counts or ABSENT

    def merge(self, left: Any, right: Any) -> Any:
        for body, count in right.items():
            left[body] = left.get(body, 0) + count
        return left

    def result(self, accumulator: Any) -> Any:
        read = self.aggregation.value_serde.deserialize
        found = [(read(body), count) for body, count in sorted(accumulator.items())]
        match self.aggregation.kind:
            case "count_distinct":
                return len({encode_key(self._selected(value)) for value, _ in found})
            case "min":
                return min((value for value, _ in found), key=lambda v: self._rank(v, nan=True))
            case "max":
                return max((value for value, _ in found), key=lambda v: self._rank(v, nan=False))
            case "top":
                found.sort(key=lambda entry: self._rank(entry[0], nan=False), reverse=True)
        distinct = self.aggregation.kind == "collect_distinct"
        values = [value for value, count in found for _ in range(1 if distinct else count)]
        return values[: self.aggregation.limit]

    def _rank(self, value: Any, *, nan: bool) -> tuple[bool, Any]:
        """Give what a value is sorted by, NaN above or below all numbers."""
        number = self._selected(value)
        return (not nan, number) if is_number(number) else (nan, 0)

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        entries = [
            [(count, body) for body, count in sorted(counts.items())] for counts in accumulators
        ]
        return self.aggregation.state_serde.serialize_many(entries)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        lists = self.aggregation.state_serde.deserialize_many(data)
        return [{body: count for count, body in entries} for entries in lists]


def _held(accumulator: Any) -> Any:
    if accumulator is ABSENT:
        message = (
            "an update takes back a value that was never given: functions in front of an aggregate"
            " of updates must give the same for the same value"
        )
        raise ValueError(message)
    return accumulator


#: Algebras by kind, for aggregations of updates.
UPDATED: dict[str, Callable[[Aggregation], Algebra]] = {
    "avg": UpdatedSumAlgebra,
    "collect": MultisetAlgebra,
    "collect_distinct": MultisetAlgebra,
    "count": UpdatedCountAlgebra,
    "count_distinct": MultisetAlgebra,
    "custom": UpdatedCustomAlgebra,
    "max": MultisetAlgebra,
    "min": MultisetAlgebra,
    "sum": UpdatedSumAlgebra,
    "top": MultisetAlgebra,
}
