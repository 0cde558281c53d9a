"""Results of joins: one kind's share of all meetings, through the user's function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.runtime.joins.sides import PAIR
from headrace.runtime.processors import Processor
from headrace.runtime.user_code.calls import UserFunction
from headrace.topology.operators.joins import ALONE, Joined

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.processors import ProcessorContext

__all__ = ["JoinedProcessor"]


class JoinedProcessor(Processor[Joined]):
    """Calls the user's function for the meetings that the kind of join gives."""

    def __init__(self, operator: Joined, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)
        self._given = ALONE[operator.kind] | {PAIR}

    def process(self, chunk: Chunk) -> Chunk:
        """Pick the meetings and make results of them."""
        given = self._given
        picks = [i for i, found in enumerate(chunk.values) if found[0] in given]
        if len(picks) < len(chunk):
            chunk = chunk.take(np.array(picks, np.intp))
        columns = [[found[1] for found in chunk.values], [found[2] for found in chunk.values]]
        if self.operator.takes_key:
            columns.insert(0, chunk.key_list())
        kept, results = self._function.each(chunk, *columns)
        return kept.with_values(results)
