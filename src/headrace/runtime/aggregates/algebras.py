"""The table of aggregates: how each kind adds, merges and takes back."""

from __future__ import annotations

from collections import Counter
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.aggregates.algebra import ABSENT, Algebra, apart
from headrace.runtime.aggregates.columns_kept import ColumnAlgebra
from headrace.runtime.aggregates.ranked import RANKING
from headrace.runtime.aggregates.sets import COLLECTING
from headrace.runtime.aggregates.updates import UPDATED
from headrace.topology import add_numbers, mergeable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headrace.runtime.chunk import Int64s
    from headrace.topology.aggregations import Aggregation

__all__ = ["ABSENT", "ALGEBRAS", "Algebra", "algebra_of"]

#: Types whose ``+`` is exact, or as inexact as their user expects.
_PLAIN_NUMBERS = {int, float}
_LEAST_OVERFLOW = 1 << 63


class _NumberAlgebra(Algebra):
    """Keeps a number, to which others are added."""

    def merge_groups(
        self, data: pa.BinaryArray, picks: Int64s, groups: Int64s, size: int
    ) -> list[Any]:
        partials = self.decode(data)
        if set(map(type, partials)) != {int}:
            return super().merge_groups(data, picks, groups, size)
        try:
            numbers = np.array(partials, np.int64)
        except OverflowError:
            return super().merge_groups(data, picks, groups, size)
        most = max(abs(int(numbers.max())), abs(int(numbers.min())))
        if most * len(picks) >= _LEAST_OVERFLOW:
            return super().merge_groups(data, picks, groups, size)
        sums = np.zeros(size, np.int64)
        np.add.at(sums, groups, numbers[picks])
        found: list[Any] = sums.tolist()
        return found

    def merge_into(self, olds: list[Any], news: list[Any]) -> list[Any]:
        if set(map(type, olds)) | set(map(type, news)) != {int}:
            return super().merge_into(olds, news)
        return list(map(add, olds, news))

    def results(self, accumulators: list[Any]) -> list[Any]:
        return accumulators


class CountAlgebra(_NumberAlgebra):
    """Counts records."""

    removes = True

    def add(self, accumulator: Any, value: Any, mark: int) -> int:
        del value, mark
        return 1 if accumulator is ABSENT else accumulator + 1

    def remove(self, accumulator: Any, value: Any) -> Any:
        del value
        return accumulator - 1 or ABSENT

    def merge(self, left: int, right: int) -> int:
        return left + right

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        del values, marks
        counted = Counter(keys)
        if not accumulators:
            accumulators.update(counted)
            return
        get = accumulators.get
        accumulators.update([(key, get(key, 0) + count) for key, count in counted.items()])


class SumAlgebra(_NumberAlgebra):
    """Adds values up; ``function`` picks the number where it is given."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        select = self.aggregation.function
        number = value if select is None else select(value)
        return add_numbers(0 if accumulator is ABSENT else accumulator, number)

    def merge(self, left: Any, right: Any) -> Any:
        return add_numbers(left, right)

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        get, select, plain = accumulators.get, self.aggregation.function, _PLAIN_NUMBERS
        for key, value, _ in zip(keys, values, marks, strict=True):
            number = value if select is None else select(value)
            before = get(key, 0)
            if type(number) in plain and type(before) in plain:
                accumulators[key] = before + number
            else:
                accumulators[key] = add_numbers(before, number)


class AvgAlgebra(Algebra):
    """Keeps how many numbers there were, and their sum, exactly where sums are exact."""

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        select = self.aggregation.function
        number = value if select is None else select(value)
        count, total = (0, 0) if accumulator is ABSENT else accumulator
        return count + 1, add_numbers(total, number)

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], add_numbers(left[1], right[1])

    def result(self, accumulator: Any) -> Any:
        count, total = accumulator
        return total / count


class ReduceAlgebra(Algebra):
    """Folds a value into the one before by the user's function, in the order of arrival."""

    @property
    def merges(self) -> bool:
        return False

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        assert self.aggregation.function is not None
        # A reducer may change what it is given first, which must not be the record's own value.
        return (
            apart(value) if accumulator is ABSENT else self.aggregation.function(accumulator, value)
        )

    def merge(self, left: Any, right: Any) -> Any:
        """Reduce two results, the earlier one on the left, as sessions that meet need it."""
        assert self.aggregation.function is not None
        return self.aggregation.function(left, right)

    def snapshot(self, accumulator: Any) -> Any:
        return apart(accumulator)

    def results(self, accumulators: list[Any]) -> list[Any]:
        return accumulators


class CustomAlgebra(Algebra):
    """Folds values into accumulators of the user's own class."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        assert aggregation.accumulator is not None
        self._make = aggregation.accumulator

    @property
    def merges(self) -> bool:
        return mergeable(self._make())

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        del mark
        if accumulator is ABSENT:
            accumulator = self._make()
        accumulator.add(value)
        return accumulator

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        get, make = accumulators.get, self._make
        for key, value, _ in zip(keys, values, marks, strict=True):
            accumulator = get(key)
            if accumulator is not None:
                accumulator.add(value)
                continue
            accumulator = make()
            accumulator.add(value)
            accumulators[key] = accumulator

    def merge(self, left: Any, right: Any) -> Any:
        left.merge(right)
        return left

    def result(self, accumulator: Any) -> Any:
        return accumulator.result()

    def snapshot(self, accumulator: Any) -> Any:
        return apart(accumulator.result())

    def results(self, accumulators: list[Any]) -> list[Any]:
        return [accumulator.result() for accumulator in accumulators]


#: A new kind of aggregate is a class and a line here.
ALGEBRAS: dict[str, Callable[[Aggregation], Algebra]] = {
    **COLLECTING,
    **RANKING,
    "avg": AvgAlgebra,
    "columns": ColumnAlgebra,
    "count": CountAlgebra,
    "custom": CustomAlgebra,
    "reduce": ReduceAlgebra,
    "sum": SumAlgebra,
}


def algebra_of(aggregation: Aggregation) -> Algebra:
    """Give the arithmetic of an aggregation."""
    return (UPDATED if aggregation.updates else ALGEBRAS)[aggregation.kind](aggregation)
