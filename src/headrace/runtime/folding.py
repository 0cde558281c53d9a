"""Folding records into accumulators, with errors that name the record."""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING, Any

from headrace.runtime.algebras import algebra_of
from headrace.runtime.user_code import UserFunction

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code import Locator
    from headrace.topology.aggregations import Aggregation
    from headrace.topology.operators import Operator

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

    def fold(self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk) -> None:
        """Add the values of a chunk, each to the accumulator of its key.

        Keys are whatever the holder tells accumulators apart by.
        """
        marks = chunk.marks.tolist()
        values = iter(chunk.values)
        try:
            self.algebra.fold(accumulators, iter(keys), values, iter(marks))
        except Exception as error:
            failed = len(marks) - length_hint(values) - 1
            raise self.failure(error, marks[failed]) from error

    def failure(self, error: Exception, mark: int) -> Exception:
        """Make the error that names the record with a mark."""
        return self._function.failure(error, mark)
