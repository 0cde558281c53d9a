"""Processors that bring streams together, part them, move them and wait for what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.keys import partitions_of
from headrace.runtime.async_calls import CallFailure, call_all
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.edges import Edge, RecordEdge
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code import Locator, UserFunction
from headrace.topology.operators import Operator
from headrace.topology.operators_flow import Branch, MapAsync, Merge, Output, Repartition

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FLOW", "RepartitionEdge"]

#: Spreads marks, which lie a message's size apart, over partitions (the golden ratio, 64 bits).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class PassingProcessor(Processor[Any]):
    """Passes records on; those of several parents in the order of their marks."""

    def process(self, chunk: Chunk) -> Chunk:
        return chunk


class BranchProcessor(Processor[Branch]):
    """Parts records by the first predicate that takes them."""

    def __init__(self, operator: Branch, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._predicates = [
            (name, UserFunction(operator, function, context.locator), takes_key)
            for name, function, takes_key in operator.predicates
        ]

    def process(self, chunk: Chunk) -> Chunk:
        rest = chunk
        for name, predicate, takes_key in self._predicates:
            columns = (rest.key_list(), rest.values) if takes_key else (rest.values,)
            found = predicate.over(rest.marks, *columns)
            taken, rest = rest.split(np.fromiter(map(bool, found), np.bool_, len(found)))
            self.give(name, taken)
        self.give(self.operator.default, rest)
        return Chunk.empty()


class RepartitionEdge(RecordEdge):
    """Sends records by their keys, or evenly, to some or all of the partitions."""

    def __init__(self, target: Repartition, port: int) -> None:
        super().__init__(target, port)
        self._evenly = target.evenly
        self._most = target.partitions

    def targets(self, keys: list[bytes], marks: Int64s, partitions: int) -> Int64s:
        """Choose the partition of each record."""
        count = partitions if self._most is None else min(self._most, partitions)
        if not self._evenly:
            return partitions_of(keys, count)
        mixed = (marks.astype(np.uint64) * _SPREAD) >> np.uint64(33)
        return (mixed % np.uint64(count)).astype(np.int64)


class RepartitionProcessor(PassingProcessor):
    """Passes on what was moved here."""

    @classmethod
    def edge(cls, operator: Repartition, port: int, locator: Locator) -> Edge:
        """Make the way that moves the records."""
        del locator
        return RepartitionEdge(operator, port)


class MapAsyncProcessor(Processor[MapAsync]):
    """Replaces values by what is awaited for them."""

    def __init__(self, operator: MapAsync, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def process(self, chunk: Chunk) -> Chunk:
        columns = (chunk.key_list(), chunk.values) if self.operator.takes_key else (chunk.values,)
        calls = list(zip(*columns, strict=True))
        try:
            values = call_all(self.operator.function, calls, self.operator.max_in_flight)
        except CallFailure as failure:
            mark = int(chunk.marks[failure.index])
            raise self._function.failure(failure.error, mark) from failure.error
        return chunk.with_values(values)


#: Operator to processor.
FLOW: Mapping[type[Operator], type[Processor[Any]]] = {
    Branch: BranchProcessor,
    MapAsync: MapAsyncProcessor,
    Merge: PassingProcessor,
    Output: PassingProcessor,
    Repartition: RepartitionProcessor,
}
