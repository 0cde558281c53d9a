"""The table of aggregates: how each kind adds, merges and takes back."""

from __future__ import annotations

import copy
from collections import Counter
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.columns.aggregates import CellsOf, merge_cells
from headrace.keys import encode_key
from headrace.runtime.aggregates.algebra import ABSENT, COLLECTING, Algebra, RowAlgebra, apart
from headrace.topology import mergeable
from headrace.topology.errors import add_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headrace.runtime.chunk import Int64s
    from headrace.topology.aggregations import Aggregation


# Aggregates over columns for whoever keeps accumulators record by record, as windows do.


class ColumnAlgebra(Algebra):
    """Cells of measures; each record has cells of its own, and they merge."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        cells: Any = aggregation.function
        self._cells: CellsOf = cells
        self._merge = merge_cells(
            [way for measure in self._cells.measures for way in measure.cells], add_numbers
        )

    def add(self, accumulator: Any, value: Any, mark: int) -> Any:
        """Return the cells with those of one more record."""
        del mark
        cells = self._cells(value)
        return cells if accumulator is ABSENT else self._merge(accumulator, cells)

    def merge(self, left: Any, right: Any) -> Any:
        """Return the cells of the records of both."""
        return self._merge(left, right)

    def fold(
        self,
        accumulators: dict[Any, Any],
        keys: Iterator[Any],
        values: Iterator[Any],
        marks: Iterator[int],
    ) -> None:
        """Add many records at once, or one by one where some value fails."""
        try:
            # The iterators stay where they are until it is known that no value fails.
            rows = self._cells.of_many(list(copy.copy(values)))
        except Exception:  # noqa: BLE001 - some value is bad: find out which, one by one
            super().fold(accumulators, keys, values, marks)
            return
        get, merge = accumulators.get, self._merge
        for key, cells, _, _ in zip(keys, rows, values, marks, strict=True):
            before = get(key, ABSENT)
            accumulators[key] = cells if before is ABSENT else merge(before, cells)

    def result(self, accumulator: Any) -> Any:
        """Return the measures by name."""
        return self._cells.result(accumulator)


# Aggregates that keep the records with the least or greatest numbers: min, max, top.


class _Ranked(NamedTuple):
    number: Any
    mark: int
    value: Any


def is_number(value: Any) -> bool:
    """Return whether a value is not NaN, which comes behind all numbers.

    >>> is_number(float("inf")), is_number(float("nan")), is_number("text")
    (True, False, True)
    """
    return bool(value == value)  # noqa: PLR0124 - what only NaN is not


def _less(left: _Ranked, right: _Ranked) -> bool:
    """Return whether the left record comes first: a smaller number, or an equal and earlier one."""
    if left.number < right.number:
        return True
    return _comes_first(left, right) and not right.number < left.number


def _greater(left: _Ranked, right: _Ranked) -> bool:
    """Return whether the left record comes first: a greater number, or an equal and earlier one."""
    if right.number < left.number:
        return True
    return _comes_first(left, right) and not left.number < right.number


def _comes_first(left: _Ranked, right: _Ranked) -> bool:
    """Return whether the left of two records comes first when neither number is better."""
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
        if place == self.aggregation.limit:
            return accumulator
        return [*accumulator[:place], new, *accumulator[place:]][: self.aggregation.limit]

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


# Aggregates fed by updates: what they keep lets every value be taken back.


class _UpdatedAlgebra(Algebra):
    """Has state of its own, and is never combined: a group of updates is small already."""

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

    changes = "by users"

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

    changes = "in place"

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
        """Return what a value is sorted by, NaN above or below all numbers."""
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

    changes = "by users"

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

    changes = "by users"

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
    """Return the arithmetic of an aggregation."""
    if aggregation.kind == "row":
        return RowAlgebra(aggregation, {name: algebra_of(part) for name, part in aggregation.parts})
    return (UPDATED if aggregation.updates else ALGEBRAS)[aggregation.kind](aggregation)
