"""Accumulators: what ``aggregate`` keeps per key."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from headrace.serdes import Serde

if TYPE_CHECKING:
    import pyarrow as pa


V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Accumulator(ABC, Generic[V_contra, R_co]):
    """Folds values of one type into a result of another, one accumulator per key.

    A subclass defines :meth:`add` and :meth:`result`.  If it also defines :meth:`merge`,
    the records of a key are combined before they move between stages, which is much faster;
    ``merge`` must not depend on which records were combined with which.

    An accumulator keeps its state in its attributes, which must be plain data unless
    ``aggregate`` was given a serde for them.

    Examples
    --------
    >>> class Average(Accumulator[float, float]):
    ...     def __init__(self) -> None:
    ...         self.total, self.count = 0.0, 0
    ...
    ...     def add(self, value: float) -> None:
    ...         self.total += value
    ...         self.count += 1
    ...
    ...     def merge(self, other: "Average") -> None:
    ...         self.total += other.total
    ...         self.count += other.count
    ...
    ...     def result(self) -> float:
    ...         return self.total / self.count
    >>> average = Average()
    >>> average.add(1.0), average.add(4.0), average.result()
    (None, None, 2.5)
    """

    @abstractmethod
    def add(self, value: V_contra) -> None:
        """Fold one value in."""

    @abstractmethod
    def result(self) -> R_co:
        """Return the result so far; more values may follow."""

    def merge(self, other: Self) -> None:
        """Fold in another accumulator of the same key; optional."""
        raise NotImplementedError

    def remove(self, value: V_contra) -> None:
        """Take out one value that was added; optional, for streams of updates."""
        raise NotImplementedError

    def fresh(self) -> Self:
        """Return a deep copy of this accumulator, which has not taken a value yet."""
        return copy.deepcopy(self)

    def state(self) -> Any:
        """Return what is stored: all attributes, by name."""
        attributes = self.__getstate__()
        if isinstance(attributes, tuple):
            return {**(attributes[0] or {}), **attributes[1]}
        return attributes or {}

    def restore(self, state: Any) -> None:
        """Restore what :meth:`state` returned; called on a fresh accumulator."""
        for name, value in state.items():
            setattr(self, name, value)


def mergeable(accumulator: Accumulator[Any, Any]) -> bool:
    """Return whether an accumulator can merge."""
    return type(accumulator).merge is not Accumulator.merge


def removable(accumulator: Accumulator[Any, Any]) -> bool:
    """Return whether values can be taken out of an accumulator."""
    return type(accumulator).remove is not Accumulator.remove


@dataclass(frozen=True, slots=True)
class Copies:
    """Makes accumulators from a prototype."""

    prototype: Accumulator[Any, Any]

    def __call__(self) -> Accumulator[Any, Any]:
        """Make a fresh accumulator."""
        return self.prototype.fresh()


class AccumulatorSerde(Serde[Accumulator[Any, Any]]):
    """Writes the state of an accumulator and reads it into a fresh one.

    Parameters
    ----------
    make
        Makes a fresh accumulator.
    states
        Writes what :meth:`Accumulator.state` returns.
    """

    def __init__(self, make: Callable[[], Accumulator[Any, Any]], states: Serde[Any]) -> None:
        self._make = make
        self._states = states

    def __repr__(self) -> str:
        return repr(self._states)

    def serialize(self, value: Accumulator[Any, Any]) -> bytes:
        """Write one accumulator."""
        return self._states.serialize(value.state())

    def deserialize(self, data: bytes) -> Accumulator[Any, Any]:
        """Read one accumulator."""
        return self._restored(self._states.deserialize(data))

    def serialize_many(self, values: list[Accumulator[Any, Any]]) -> pa.BinaryArray:
        """Write many accumulators."""
        return self._states.serialize_many([value.state() for value in values])

    def deserialize_many(self, data: pa.BinaryArray) -> list[Accumulator[Any, Any]]:
        """Read many accumulators."""
        return list(map(self._restored, self._states.deserialize_many(data)))

    def _restored(self, state: Any) -> Accumulator[Any, Any]:
        accumulator = self._make()
        accumulator.restore(state)
        return accumulator
