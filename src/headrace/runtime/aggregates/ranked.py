"""Aggregates that keep the records with the least or greatest numbers: min, max, top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.runtime.aggregates.algebra import ABSENT, Algebra

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from headrace.topology.aggregations import Aggregation

__all__ = ["RANKING", "is_number"]


class _Ranked(NamedTuple):
    number: Any
    mark: int
    value: Any


def is_number(value: Any) -> bool:
    """Tell whether a value is not NaN, which comes behind all numbers.

    >>> is_number(float("inf")), is_number(float("nan")), is_number("text")
    (True, False, True)
    """
    return bool(value == value)  # noqa: PLR0124 - what only NaN is not


def _less(left: _Ranked, right: _Ranked) -> bool:
    """Tell whether the left record comes before: a smaller number, or the same and earlier."""
    if left.number < right.number:
        return True
    return _comes_first(left, right) and not right.number < left.number


def _greater(left: _Ranked, right: _Ranked) -> bool:
    """Tell whether the left record comes before: a greater number, or the same and earlier."""
    if right.number < left.number:
        return True
    return _comes_first(left, right) and not left.number < right.number


def _comes_first(left: _Ranked, right: _Ranked) -> bool:
    """Tell whether the left of two records of which no number is better comes before."""
    left_counts, right_counts = is_number(left.number), is_number(right.number)
    return left.mark < right.mark if left_counts == right_counts else left_counts


class _RankingAlgebra(Algebra):
    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._select = aggregation.function
        self._before = _less if aggregation.kind == "min" else _greater

    def _ranked(self, value: Any, mark: int) -> _Ranked:
        return _Ranked(value if self._select is None else self._select(value), mark, value)


class ExtremeAlgebra(_RankingAlgebra):
    """Keeps the record with the least, or the greatest, number; of equal ones the first."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        new = self._ranked(value, mark)
        return new if accumulator is ABSENT or self._before(new, accumulator) else accumulator

    def merge(self, left: Any, right: Any) -> Any:
        return right if self._before(right, left) else left

    def result(self, accumulator: Any) -> Any:
        return accumulator.value

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        entries = [[(held.mark, held.value)] for held in accumulators]
        return self.aggregation.state_serde.serialize_many(entries)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        lists = self.aggregation.state_serde.deserialize_many(data)
        return [self._ranked(value, mark) for ((mark, value),) in lists]


class TopAlgebra(_RankingAlgebra):
    """Keeps the records with the greatest numbers, best first; of equal ones the first."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        new = self._ranked(value, mark)
        if accumulator is ABSENT:
            return [new]
        place, before = len(accumulator), self._before
        while place and before(new, accumulator[place - 1]):
            place -= 1
        accumulator.insert(place, new)
        del accumulator[self.aggregation.limit :]
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        merged: list[_Ranked] = []
        lefts, rights = left[::-1], right[::-1]
        while (lefts or rights) and len(merged) != self.aggregation.limit:
            from_right = not lefts or (bool(rights) and self._before(rights[-1], lefts[-1]))
            merged.append((rights if from_right else lefts).pop())
        return merged

    def result(self, accumulator: Any) -> Any:
        return [held.value for held in accumulator]

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        entries = [[(held.mark, held.value) for held in ranked] for ranked in accumulators]
        return self.aggregation.state_serde.serialize_many(entries)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        lists = self.aggregation.state_serde.deserialize_many(data)
        return [[self._ranked(value, mark) for mark, value in entries] for entries in lists]


#: Algebras by kind, for the table of all.
RANKING: dict[str, Callable[[Aggregation], Algebra]] = {
    "max": ExtremeAlgebra,
    "min": ExtremeAlgebra,
    "top": TopAlgebra,
}
