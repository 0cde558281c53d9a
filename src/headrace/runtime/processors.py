"""Processors of the stateless operators, and what every processor is.

A processor is built from its operator, in the process that runs it, for one task of one batch.
It takes a chunk and gives a chunk; nothing here knows of Spark, sockets or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.runtime.chunk import NEVER, Chunk
from headrace.runtime.edges import Edge, RecordEdge
from headrace.runtime.user_code import Locator, UserFunction
from headrace.topology.operators import (
    Filter,
    FlatMap,
    FlatMapValues,
    KeyBy,
    Map,
    MapValues,
    Operator,
    Peek,
    ToStream,
)

if TYPE_CHECKING:
    from headrace.runtime.blocks import Rows
    from headrace.runtime.state import StateStore
    from headrace.runtime.watermarks import OperatorWatermark, Watermark

__all__ = ["STATELESS", "Processor", "ProcessorContext", "TimedProcessor"]

OperatorT = TypeVar("OperatorT", bound=Operator)


class ProcessorContext(Protocol):
    """What a processor may ask of its surroundings."""

    @property
    def locator(self) -> Locator:
        """Tells where a record comes from."""

    @property
    def partition(self) -> int:
        """Number of the task."""

    @property
    def counters(self) -> dict[str, int]:
        """What is counted for the job's statistics, by name."""

    def store(self, operator: Operator) -> StateStore:
        """Open the operator's state store for this partition."""

    def operator_watermark(self, operator: Operator) -> OperatorWatermark:
        """Give an operator's watermark as of the last commit."""


class Processor(Generic[OperatorT]):
    """The running instance of an operator in one task.

    Parameters
    ----------
    operator
        What to do.
    context
        Where state and places of records come from.
    """

    def __init__(self, operator: OperatorT, context: ProcessorContext) -> None:
        self.operator = operator
        self.context = context
        #: How far event time had come before what is handled next, ms; the stage keeps it.
        self.event_time = NEVER
        self._side: dict[str, list[Chunk]] = {}

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle what came from each parent, by its number, and the rise of event time.

        Here the parents' records are merged and time is ignored; an operator that tells its
        parents apart, as a join does, overrides this.
        """
        del watermarks
        chunk = Chunk.merge(list(inputs.values()))
        return self.process(chunk) if len(chunk) else chunk

    def process(self, chunk: Chunk) -> Chunk:
        """Handle records in the order of their marks and give the results."""
        raise NotImplementedError

    def finish(self) -> Chunk:
        """End the batch: give results that are due once per batch."""
        return Chunk.empty()

    @classmethod
    def edge(cls, operator: OperatorT, port: int, context: ProcessorContext) -> Edge:
        """Make the way to the operator from parent number ``port`` over a shuffle.

        The context is that of the task that sends.
        """
        del context
        return RecordEdge(operator, port)

    def absorb(self, rows: Rows) -> None:
        """Take what a combiner made of records before they were shuffled."""
        raise NotImplementedError(f"operator {self.operator.name} combines nothing")

    def give(self, output: str, chunk: Chunk) -> None:
        """Send records to the children that take an output with a name."""
        if len(chunk):
            self._side.setdefault(output, []).append(chunk)

    def take_side(self) -> dict[str, Chunk]:
        """Give what was sent to named outputs since the last time."""
        taken, self._side = self._side, {}
        return {output: Chunk.merge(chunks) for output, chunks in taken.items()}


class TimedProcessor(Processor[OperatorT]):
    """A processor that acts when event time moves on: records and time in the order of marks."""

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle records up to each watermark's mark, then the watermark."""
        chunk = Chunk.merge(list(inputs.values()))
        results: list[Chunk] = []
        at = 0
        for watermark in watermarks:
            end = int(np.searchsorted(chunk.marks, watermark.mark, side="right"))
            if end > at:
                results.append(self.process(chunk.take(np.arange(at, end))))
            results.append(self.advance(watermark))
            self.event_time = watermark.time
            at = max(at, end)
        if at < len(chunk):
            results.append(self.process(chunk.take(np.arange(at, len(chunk)))))
        return Chunk.merge(results)

    def advance(self, watermark: Watermark) -> Chunk:
        """Let event time come to the watermark and give what this fires."""
        raise NotImplementedError


class _FunctionProcessor(Processor[OperatorT]):
    attribute: ClassVar[str] = "function"

    def __init__(self, operator: OperatorT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.function = UserFunction(operator, getattr(operator, self.attribute), context.locator)


class MapValuesProcessor(_FunctionProcessor[MapValues]):
    """Replaces values."""

    def process(self, chunk: Chunk) -> Chunk:
        return chunk.with_values(self.function.over(chunk.marks, chunk.values))


class MapProcessor(_FunctionProcessor[Map]):
    """Replaces keys and values."""

    def process(self, chunk: Chunk) -> Chunk:
        pairs = self.function.over(chunk.marks, chunk.key_list(), chunk.values)
        keys, values = _split_pairs(self.function, chunk, pairs)
        return chunk.with_values(values).with_keys(keys)


class FlatMapValuesProcessor(_FunctionProcessor[FlatMapValues]):
    """Gives any number of values for one."""

    def process(self, chunk: Chunk) -> Chunk:
        counts, items = _flattened(
            self.function, chunk, self.function.over(chunk.marks, chunk.values)
        )
        return chunk.repeat(counts, items)


class FlatMapProcessor(_FunctionProcessor[FlatMap]):
    """Gives any number of records for one."""

    def process(self, chunk: Chunk) -> Chunk:
        groups = self.function.over(chunk.marks, chunk.key_list(), chunk.values)
        counts, pairs = _flattened(self.function, chunk, groups)
        wide = chunk.repeat(counts, pairs)
        keys, values = _split_pairs(self.function, wide, pairs)
        return wide.with_values(values).with_keys(keys)


class FilterProcessor(_FunctionProcessor[Filter]):
    """Keeps some records."""

    def process(self, chunk: Chunk) -> Chunk:
        kept = self.function.over(chunk.marks, chunk.values)
        indices = np.flatnonzero(np.fromiter(map(bool, kept), np.bool_, len(kept)))
        return chunk if len(indices) == len(chunk) else chunk.take(indices)


class PeekProcessor(_FunctionProcessor[Peek]):
    """Looks at records."""

    def process(self, chunk: Chunk) -> Chunk:
        self.function.over(chunk.marks, chunk.values)
        return chunk


class KeyByProcessor(_FunctionProcessor[KeyBy]):
    """Sets keys."""

    attribute = "selector"

    def process(self, chunk: Chunk) -> Chunk:
        return chunk.with_keys(self.function.over(chunk.marks, chunk.values))


class ToStreamProcessor(Processor[ToStream]):
    """Passes updates on."""

    def process(self, chunk: Chunk) -> Chunk:
        return chunk


def _flattened(
    function: UserFunction, chunk: Chunk, groups: list[Any]
) -> tuple[npt.NDArray[np.intp], list[Any]]:
    if not all(type(group) is list for group in groups):
        groups = function.listed(chunk.marks, groups)
    counts = np.fromiter(map(len, groups), np.intp, len(groups))
    return counts, list(chain.from_iterable(groups))


def _split_pairs(
    function: UserFunction, chunk: Chunk, pairs: list[Any]
) -> tuple[list[Any], list[Any]]:
    keys: list[Any] = []
    values: list[Any] = []
    for index, pair in enumerate(pairs):
        try:
            key, value = pair
        except (TypeError, ValueError):
            error = TypeError(f"the function must give (key, value), got {pair!r:.200}")
            raise function.failure(error, int(chunk.marks[index])) from None
        keys.append(key)
        values.append(value)
    return keys, values


#: Operator to processor: a new stateless operator is a class above and a line here.
STATELESS: dict[type[Operator], type[Processor[Any]]] = {
    Filter: FilterProcessor,
    FlatMap: FlatMapProcessor,
    FlatMapValues: FlatMapValuesProcessor,
    KeyBy: KeyByProcessor,
    Map: MapProcessor,
    MapValues: MapValuesProcessor,
    Peek: PeekProcessor,
    ToStream: ToStreamProcessor,
}
