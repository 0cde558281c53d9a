"""Processors that bring streams together, part them, move them and wait for what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.keys import partitions_of
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.edges import Edge, RecordEdge
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code.asynchronous import call_all
from headrace.runtime.user_code.calls import Locator, UserFunction, without_bad
from headrace.runtime.user_code.records import RecordCalls
from headrace.topology.operators.flow import Branch, MapAsync, Merge, Output, Repartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.topology.operators.core import Operator

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
            (name, RecordCalls(operator, function, context.locator))
            for name, function in operator.predicates
        ]

    def process(self, chunk: Chunk) -> Chunk:
        rest = chunk
        for name, predicate in self._predicates:
            kept, found = predicate.truths(rest)
            taken, rest = kept.split(found)
            self.give(name, taken)
        self.give(self.operator.default, rest)
        return Chunk.empty()


class RepartitionEdge(RecordEdge):
    """Sends records by their keys, or evenly, to some or all of the partitions."""

    def __init__(self, target: Repartition, port: int, locator: Locator) -> None:
        super().__init__(target, port, locator)
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
    def edge(cls, operator: Repartition, port: int, context: ProcessorContext) -> Edge:
        """Make the way that moves the records."""
        return RepartitionEdge(operator, port, context.locator)


class MapAsyncProcessor(Processor[MapAsync]):
    """Replaces values by what is awaited for them."""

    def __init__(self, operator: MapAsync, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def process(self, chunk: Chunk) -> Chunk:
        columns = (chunk.key_list(), chunk.values) if self.operator.takes_key else (chunk.values,)
        calls = list(zip(*columns, strict=True))
        operator = self.operator
        stops = operator.on_error == "fail"
        values, failures = call_all(operator.function, calls, operator.max_in_flight, stops=stops)
        if not failures:
            return chunk.with_values(values)
        bad = sorted(failures)
        for index in bad:
            self._function.take_out(failures[index], int(chunk.marks[index]))
        return without_bad(chunk.with_values(values), bad)


#: Operator to processor.
FLOW: Mapping[type[Operator], type[Processor[Any]]] = {
    Branch: BranchProcessor,
    MapAsync: MapAsyncProcessor,
    Merge: PassingProcessor,
    Output: PassingProcessor,
    Repartition: RepartitionProcessor,
}
