"""Calling the user's functions of the value, or of key and value, for whole chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.user_code.calls import Locator, UserFunction

if TYPE_CHECKING:
    from headrace.runtime.chunk import Bools, Chunk
    from headrace.topology.operators.core import Operator, RecordFunction

__all__ = ["RecordCalls"]


class RecordCalls:
    """One function of the records that reach an operator.

    Parameters
    ----------
    operator
        The operator that it belongs to, named in errors.
    function
        What to call, and with what.
    locator
        Turns a record's mark into its place, for errors.
    """

    def __init__(self, operator: Operator, function: RecordFunction, locator: Locator) -> None:
        self._takes_key = function.takes_key
        self._function = UserFunction(operator, function.function, locator)

    def each(self, chunk: Chunk) -> tuple[Chunk, list[Any]]:
        """Call the function for each record; give those that it could handle, and results."""
        if self._takes_key:
            return self._function.each(chunk, chunk.key_list(), chunk.values)
        return self._function.each(chunk, chunk.values)

    def truths(self, chunk: Chunk) -> tuple[Chunk, Bools]:
        """Call the function for each record and tell for which it is true."""
        kept, found = self._function.each(*self.each(chunk), step=bool)
        return kept, np.array(found, np.bool_)
