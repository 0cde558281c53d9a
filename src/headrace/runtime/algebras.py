"""How each kind of aggregate adds, merges and writes its accumulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.topology import add_numbers, mergeable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code import UserFunction
    from headrace.topology.operators import Aggregate

__all__ = ["ALGEBRAS", "Algebra"]

_ABSENT = object()
#: Types whose ``+`` is exact, or as inexact as their user expects.
_PLAIN_NUMBERS = {int, float}


class Algebra(ABC):
    """Arithmetic of one aggregate operator.

    Parameters
    ----------
    operator
        Serdes and user functions.
    """

    def __init__(self, operator: Aggregate) -> None:
        self.operator = operator

    @property
    def merges(self) -> bool:
        """Whether accumulators merge, so that records may be combined before the shuffle."""
        return True

    @abstractmethod
    def fold_one(self, accumulators: Mapping[Any, Any], key: Any, value: Any) -> Any:
        """Give the key's accumulator with one more value in it."""

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """Give the accumulator of the values of both."""

    def fold(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk, function: UserFunction
    ) -> None:
        """Add many values; ``function`` is :meth:`fold_one` with errors that name the record."""
        call = function.call
        for key, value, mark in zip(keys, chunk.values, chunk.marks.tolist(), strict=True):
            accumulators[key] = call(mark, accumulators, key, value)

    def merge_all(self, keys: list[bytes], partials: list[Any]) -> dict[bytes, Any]:
        """Merge partials of equal keys."""
        merged: dict[bytes, Any] = {}
        merge = self.merge
        for key, partial in zip(keys, partials, strict=True):
            before = merged.get(key, _ABSENT)
            merged[key] = partial if before is _ABSENT else merge(before, partial)
        return merged

    def merge_olds(self, olds: Sequence[bytes | None], news: list[Any]) -> list[Any]:
        """Merge what the state store held with what a batch brought."""
        merge = self.merge
        return [
            new if old is None else merge(old, new)
            for old, new in zip(self.decode_olds(olds), news, strict=True)
        ]

    def decode_olds(self, olds: Sequence[bytes | None]) -> list[Any]:
        """Read accumulators from the state store; None where there is none."""
        held = [old for old in olds if old is not None]
        found = iter(self.decode(pa.array(held, pa.binary())))
        return [None if old is None else next(found) for old in olds]

    def encode(self, accumulators: list[Any]) -> pa.BinaryArray:
        """Write accumulators."""
        return self.operator.state_serde.serialize_many(accumulators)

    def decode(self, data: pa.BinaryArray) -> list[Any]:
        """Read accumulators."""
        return self.operator.state_serde.deserialize_many(data)

    def result(self, accumulator: Any) -> Any:
        """Give what an accumulator says."""
        return accumulator

    def results(self, accumulators: list[Any]) -> list[Any]:
        """Give what many accumulators say."""
        return accumulators


class CountAlgebra(Algebra):
    """Counts records."""

    def fold_one(self, accumulators: Mapping[Any, Any], key: Any, value: Any) -> int:
        del value
        return int(accumulators.get(key, 0)) + 1

    def fold(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk, function: UserFunction
    ) -> None:
        del chunk, function
        counted = Counter(keys)
        if not accumulators:
            accumulators.update(counted)
            return
        get = accumulators.get
        accumulators.update([(key, get(key, 0) + count) for key, count in counted.items()])

    def merge(self, left: int, right: int) -> int:
        return left + right

    def merge_all(self, keys: list[bytes], partials: list[Any]) -> dict[bytes, Any]:
        merged: dict[bytes, Any] = {}
        get = merged.get
        for key, partial in zip(keys, partials, strict=True):
            merged[key] = get(key, 0) + partial
        return merged


class SumAlgebra(Algebra):
    """Adds values up; ``function`` of the operator picks the number where it is given."""

    def fold_one(self, accumulators: Mapping[Any, Any], key: Any, value: Any) -> Any:
        select = self.operator.function
        number = value if select is None else select(value)
        return add_numbers(accumulators.get(key, 0), number)

    def fold(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk, function: UserFunction
    ) -> None:
        if self.operator.function is not None or not set(map(type, chunk.values)) <= _PLAIN_NUMBERS:
            super().fold(accumulators, keys, chunk, function)
            return
        get = accumulators.get
        for key, number in zip(keys, chunk.values, strict=True):
            accumulators[key] = get(key, 0) + number

    def merge(self, left: Any, right: Any) -> Any:
        return add_numbers(left, right)


class ReduceAlgebra(Algebra):
    """Folds a value into the one before by the user's function, in the order of arrival."""

    @property
    def merges(self) -> bool:
        return False

    def fold_one(self, accumulators: Mapping[Any, Any], key: Any, value: Any) -> Any:
        before = accumulators.get(key, _ABSENT)
        assert self.operator.function is not None
        return value if before is _ABSENT else self.operator.function(before, value)

    def merge(self, left: Any, right: Any) -> Any:
        raise NotImplementedError


class CustomAlgebra(Algebra):
    """Folds values into accumulators of the user's own class."""

    @property
    def merges(self) -> bool:
        assert self.operator.accumulator is not None
        return mergeable(self.operator.accumulator())

    def fold_one(self, accumulators: Mapping[Any, Any], key: Any, value: Any) -> Any:
        accumulator = accumulators.get(key)
        if accumulator is None:
            assert self.operator.accumulator is not None
            accumulator = self.operator.accumulator()
        accumulator.add(value)
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        left.merge(right)
        return left

    def result(self, accumulator: Any) -> Any:
        return accumulator.result()

    def results(self, accumulators: list[Any]) -> list[Any]:
        return [accumulator.result() for accumulator in accumulators]


#: A new kind of aggregate is a class above and a line here.
ALGEBRAS: dict[str, Callable[[Aggregate], Algebra]] = {
    "count": CountAlgebra,
    "custom": CustomAlgebra,
    "reduce": ReduceAlgebra,
    "sum": SumAlgebra,
}
