"""Accumulators of many parts in a row, at a cost that hardly grows with their number."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.aggregates.algebra import Algebra
    from headrace.runtime.windows.parts import RecordGroup


class MergedParts:
    """Merges runs of the parts of a key; what runs have in common is merged once.

    Parameters
    ----------
    algebra
        Merges accumulators.
    parts
        All parts of the key, in order; some at the front may go, and others come behind.
    """

    def __init__(self, algebra: Algebra, parts: Sequence[RecordGroup]) -> None:
        self._algebra = algebra
        self._parts = parts
        #: Number of the first part: those that went were counted, too.
        self._first = 0
        #: Accumulators of ``2 ** level`` parts that begin at a multiple of that.
        self._merged: dict[tuple[int, int], Any] = {}

    def forget(self, count: int) -> None:
        """Forget parts at the front."""
        self._first += count
        if len(self._merged) > 2 * len(self._parts):
            first = self._first
            self._merged = {
                (level, place): accumulator
                for (level, place), accumulator in self._merged.items()
                if place << level >= first
            }

    def run(self, start: int, stop: int, settled: int) -> Any:
        """Return an accumulator of its own of the parts from ``start`` to before ``stop``.

        Those before ``settled`` never change any more.
        """
        at, end, fixed = (self._first + place for place in (start, stop, settled))
        found: list[Any] = []
        while at < end:
            level = 0
            while at % (2 << level) == 0 and at + (2 << level) <= min(end, fixed):
                level += 1
            found.append(self._of(level, at >> level))
            at += 1 << level
        merged = copy.deepcopy(found[0])
        for one in found[1:]:
            merged = self._algebra.merge(merged, copy.deepcopy(one))
        return merged

    def _of(self, level: int, place: int) -> Any:
        if not level:
            return self._parts[place - self._first].accumulator
        known = (level, place)
        if known not in self._merged:
            left, right = self._of(level - 1, 2 * place), self._of(level - 1, 2 * place + 1)
            # Merging may change what it is given, and the halves are needed again.
            self._merged[known] = self._algebra.merge(copy.deepcopy(left), copy.deepcopy(right))
        return self._merged[known]
