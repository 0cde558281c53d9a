"""What every kind of aggregate can do with its accumulators, for whoever keeps them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
