"""Folding records into accumulators, with errors that name the record."""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING, Any

from headrace.runtime.aggregates.algebras import ABSENT, algebra_of
from headrace.runtime.user_code.calls import UserFunction

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code.calls import Locator
    from headrace.topology.aggregations import Aggregation
    from headrace.topology.operators.core import Operator

__all__ = ["Folder"]


class Folder:
    """An aggregation at work in one operator.

    Parameters
    ----------
    operator
        Named in errors.
    aggregation
        What to do with the values.
    locator
        Tells where a record comes from, for errors of user functions.
    """

    def __init__(self, operator: Operator, aggregation: Aggregation, locator: Locator) -> None:
        self.algebra = algebra_of(aggregation)
        self._function = UserFunction(operator, aggregation.function or self.algebra.add, locator)

    def fold(self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk) -> list[int]:
        """Add the values of a chunk, each to the accumulator of its key.

        Keys are whatever the holder tells accumulators apart by.  Gives the indices of the records
        that the operator's policy took out.
        """
        if chunk.retracts is not None:
            return self._fold_updates(accumulators, keys, chunk)
        marks = chunk.marks.tolist()
        columns = iter(keys), iter(chunk.values), iter(marks)
        bad: list[int] = []
        while True:
            try:
                self.algebra.fold(accumulators, *columns)
            except Exception as error:  # noqa: BLE001 - user functions raise what they like
                bad.append(len(marks) - length_hint(columns[1]) - 1)
                self.take_out(error, marks[bad[-1]])
            else:
                return bad

    def _fold_updates(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk
    ) -> list[int]:
        """Add values and take values back; a key without values has no accumulator."""
        assert chunk.retracts is not None
        bad: list[int] = []
        add, remove = self.algebra.add, self.algebra.remove
        columns = keys, chunk.values, chunk.marks.tolist(), chunk.retracts.tolist()
        for index, (key, value, mark, back) in enumerate(zip(*columns, strict=True)):
            held = accumulators.get(key, ABSENT)
            try:
                new = remove(held, value) if back else add(held, value, mark)
            except Exception as error:  # noqa: BLE001 - user functions raise what they like
                bad.append(index)
                self.take_out(error, mark)
                continue
            if new is ABSENT:
                accumulators.pop(key, None)
            else:
                accumulators[key] = new
        return bad

    def take_out(self, error: Exception, mark: int) -> None:
        """Follow the operator's policy with a record that failed."""
        self._function.take_out(error, mark)

    def failure(self, error: Exception, mark: int) -> Exception:
        """Make the error that names the record with a mark."""
        return self._function.failure(error, mark)
