"""Processors of the stateless operators, and what every processor is.

A processor is built from its operator, in the process that runs it, for one task of one batch.
It takes a chunk and returns a chunk; nothing here knows of Spark, sockets or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import SerializationError
from headrace.keys import encode_keys, partitions_of
from headrace.runtime.chunk import NEVER, Chunk, Int64s
from headrace.runtime.control import BlockKind, Control, Rows
from headrace.runtime.user_code import Locator, UserFunction, salvaged, writing
from headrace.topology.operators.core import (
    FlatMap,
    FlatMapValues,
    KeyBy,
    Map,
    MapValues,
    Operator,
    Peek,
    ToStream,
    Where,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from headrace.protocol.transactions import Position, QueueName
    from headrace.runtime.bolts.instances import Instances
    from headrace.runtime.event_time.watermarks import (
        OperatorWatermark,
        QueueWatermark,
        SourceWatermarks,
        Watermark,
    )
    from headrace.runtime.state.interface import StateStore
    from headrace.runtime.state.layouts import StateLayout
    from headrace.topology import StagePlan


# Edges that cross a shuffle: records, or what was combined of them, to the partition of a key.


class Packed(Protocol):
    """What an edge sends to one partition."""

    def pack(self, sender: int) -> bytes:
        """Encode it, behind the number of the partition that sends it."""


class Edge(Protocol):
    """The way from one operator to another over a shuffle."""

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Packed]]:
        """Return everything taken so far, by kind and partition."""


class EdgeCombiner(Protocol):
    """Makes partial results of records before they are shuffled."""

    def add(self, chunk: Chunk) -> None:
        """Fold records in."""

    def flush(self) -> Rows | None:
        """Return what was combined."""


class RecordEdge:
    """Sends every record."""

    def __init__(self, target: Operator, port: int, locator: Locator) -> None:
        self._target = target
        self._locator = locator
        self._serde = target.input_serde(port)
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Yield everything taken so far, by kind and partition."""
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return
        try:
            keys, values = self._encoded(chunk)
        except SerializationError:
            if self._target.on_error == "fail":
                raise
            chunk = salvaged(self._target, chunk, self._encoded, self._locator)
            keys, values = self._encoded(chunk)
        rows = Rows(
            pa.array(keys, pa.binary()),
            values,
            chunk.times,
            chunk.marks,
            chunk.headers,
            chunk.late_below,
            chunk.retracts,
        )
        for partition, part in rows.split(self.targets(keys, chunk.marks, partitions)):
            yield BlockKind.RECORDS, partition, part

    def targets(self, keys: list[bytes], marks: Int64s, partitions: int) -> Int64s:
        """Choose the partition of each record."""
        del marks
        return partitions_of(keys, partitions)

    def _encoded(self, chunk: Chunk) -> tuple[list[bytes], pa.BinaryArray]:
        with writing(self._target, f"what it shuffles (serde {self._serde!r})"):
            return encode_keys(chunk.key_list()), self._serde.serialize_many(chunk.values)


class CombinedEdge:
    """Sends what a combiner makes of the records: one partial result per key and task."""

    def __init__(self, combiner: EdgeCombiner) -> None:
        self._combiner = combiner

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        self._combiner.add(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Yield everything taken so far, by kind and partition."""
        rows = self._combiner.flush()
        if rows is None:
            return
        for partition, part in rows.split(partitions_of(rows.keys.to_pylist(), partitions)):
            yield BlockKind.PARTIALS, partition, part


OperatorT = TypeVar("OperatorT", bound=Operator)


class ProcessorContext(Protocol):
    """What a processor may ask of its surroundings."""

    @property
    def locator(self) -> Locator:
        """What tells where a record comes from."""

    @property
    def partition(self) -> int:
        """Number of the task."""

    @property
    def partitions(self) -> int:
        """Partitions of the job."""

    @property
    def control(self) -> Control:
        """What the driver tells of the batch."""

    @property
    def epoch_and_batch(self) -> tuple[int, int]:
        """Numbers of the driver and of the batch."""

    @property
    def attempt(self) -> int:
        """Number of the attempt: no other one of the batch has it."""

    @property
    def plan(self) -> StagePlan:
        """The topology, cut into stages."""

    @property
    def instances(self) -> Instances:
        """Users' components that this process keeps from batch to batch."""

    @property
    def positions(self) -> dict[str, Position]:
        """Where outside systems have been read to, for the commit to keep."""

    @property
    def counters(self) -> dict[str, int]:
        """What is counted for the job's statistics, by name."""

    @property
    def wall_clock(self) -> int:
        """Wall clock of the batch, ms since 1970."""

    @property
    def max_future(self) -> int | None:
        """How far ahead a record may move watermarks where its operator does not say, ms."""

    @property
    def source_queues(self) -> Sequence[QueueName]:
        """Queues that the task reads, as the numbers in chunks of the first stage count them."""

    def event_clock(self, operator: Operator, lateness: timedelta) -> SourceWatermarks | None:
        """Make the clock of an operator that sets its records' times; None if nobody asks."""

    def tell_time(self, found: list[QueueWatermark], current: Mapping[str, int]) -> None:
        """Note how a clock moved, for every later stage, and how far it is, for the commit."""

    def retracts(self, operator: Operator) -> bool:
        """Return whether an operator must send the old value before each new one."""

    def settled(self, operator: Operator) -> int:
        """Return up to which event time an operator had done all there was to do, ms.

        ``NEVER`` in the first batch of an epoch: others may have changed the state.
        """

    def settled_clock(self) -> tuple[int, int]:
        """Return the same for the wall clock, and how far it had come in the batch before."""

    def store(self, operator: Operator) -> StateStore:
        """Open the operator's state store for this partition."""

    def operator_watermark(self, operator: Operator) -> OperatorWatermark:
        """Return an operator's watermark as of the last commit."""


class Processor(Generic[OperatorT]):
    """The running instance of an operator in one task.

    Parameters
    ----------
    operator
        What to do.
    context
        Where state and places of records come from.
    """

    #: How it lays out its store, so that others can read it and move it.
    layout: ClassVar[StateLayout | None] = None
    #: Whether it wants the bytes of the values that a shuffle brings beside the values.
    keeps_bytes: ClassVar[bool] = False

    def __init__(self, operator: OperatorT, context: ProcessorContext) -> None:
        self.operator = operator
        self.context = context
        #: How far event time had come before what is handled next, ms; the stage keeps it.
        self.event_time = NEVER
        #: When it wants a batch by the wall clock, also without a record, ms since 1970; read
        #: after :meth:`finish`, in every batch anew.
        self.due: int | None = None
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
        """Handle records in the order of their marks, and return the results."""
        raise NotImplementedError

    def finish(self) -> Chunk:
        """End the batch, and return results that are due once per batch."""
        return Chunk.empty()

    def reached(self, ends: Mapping[QueueName, int]) -> None:
        """Learn, behind :meth:`finish`, where the batch ends in each queue that the job reads.

        One task of the first stage does.
        """

    @classmethod
    def edge(cls, operator: OperatorT, port: int, context: ProcessorContext) -> Edge:
        """Make the way to the operator from parent number ``port`` over a shuffle.

        The context is that of the task that sends.
        """
        return RecordEdge(operator, port, context.locator)

    def absorb(self, rows: Rows) -> None:
        """Take what a combiner made of records before they were shuffled."""
        raise NotImplementedError(f"operator {self.operator.name} combines nothing")

    def give(self, output: str, chunk: Chunk) -> None:
        """Send records to the children that take an output with a name."""
        if len(chunk):
            self._side.setdefault(output, []).append(chunk)

    def take_side(self) -> dict[str, Chunk]:
        """Return what was sent to named outputs since the last time."""
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
        """Advance event time to the watermark, and return what this fires."""
        raise NotImplementedError


class _FunctionProcessor(Processor[OperatorT]):
    attribute: ClassVar[str] = "function"

    def __init__(self, operator: OperatorT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.function = UserFunction(operator, getattr(operator, self.attribute), context.locator)
        self._takes_key = getattr(operator, "takes_key", False)

    def called(self, chunk: Chunk) -> tuple[Chunk, list[Any]]:
        """Call the function for each value, or for key and value where it takes both."""
        if self._takes_key:
            return self.function.each(chunk, chunk.key_list(), chunk.values)
        return self.function.each(chunk, chunk.values)


class MapValuesProcessor(_FunctionProcessor[MapValues]):
    """Replaces values."""

    def process(self, chunk: Chunk) -> Chunk:
        kept, values = self.called(chunk)
        return kept.with_values(values)


class MapProcessor(_FunctionProcessor[Map]):
    """Replaces keys and values."""

    def process(self, chunk: Chunk) -> Chunk:
        return _with_pairs(self.function, *self.called(chunk))


class FlatMapValuesProcessor(_FunctionProcessor[FlatMapValues]):
    """A processor that forwards any number of values for one."""

    def process(self, chunk: Chunk) -> Chunk:
        return _flattened(self.function, *self.called(chunk))


class FlatMapProcessor(_FunctionProcessor[FlatMap]):
    """A processor that forwards any number of records for one."""

    def process(self, chunk: Chunk) -> Chunk:
        wide = _flattened(self.function, *self.called(chunk))
        return _with_pairs(self.function, wide, wide.values)


class WhereProcessor(_FunctionProcessor[Where]):
    """Keeps some records."""

    def process(self, chunk: Chunk) -> Chunk:
        kept, found = self.called(chunk)
        kept, found = self.function.each(kept, found, step=bool)
        indices = np.flatnonzero(np.array(found, np.bool_))
        return kept if len(indices) == len(kept) else kept.take(indices)


class PeekProcessor(_FunctionProcessor[Peek]):
    """Looks at records."""

    def process(self, chunk: Chunk) -> Chunk:
        if chunk.retracts is None:
            return self.called(chunk)[0]
        olds, news = chunk.split(chunk.retracts)
        return Chunk.merge([olds, self.called(news)[0]])


class KeyByProcessor(_FunctionProcessor[KeyBy]):
    """Sets keys."""

    attribute = "selector"

    def process(self, chunk: Chunk) -> Chunk:
        kept, keys = self.called(chunk)
        return kept.with_keys(keys)


class ToStreamProcessor(Processor[ToStream]):
    """Passes updates on."""

    def process(self, chunk: Chunk) -> Chunk:
        return chunk


def _flattened(function: UserFunction, chunk: Chunk, groups: list[Any]) -> Chunk:
    """Return a record for each item that the function returned; None counts as none."""
    if not all(type(group) is list for group in groups):
        chunk, groups = function.each(chunk, groups, step=_listed)
    counts = np.fromiter(map(len, groups), np.intp, len(groups))
    return chunk.repeat(counts, list(chain.from_iterable(groups)))


def _listed(items: Iterable[Any] | None) -> list[Any]:
    return [] if items is None else list(items)


def _with_pairs(function: UserFunction, chunk: Chunk, pairs: list[Any]) -> Chunk:
    keys: list[Any] = []
    values: list[Any] = []
    try:
        for key, value in pairs:
            keys.append(key)
            values.append(value)
    except (TypeError, ValueError):
        chunk, good = function.each(chunk, pairs, step=_pair)
        keys, values = [key for key, _ in good], [value for _, value in good]
    return chunk.with_values(values).with_keys(keys)


def _pair(given: Any) -> tuple[Any, Any]:
    try:
        key, value = given
    except (TypeError, ValueError):
        message = f"the function must give (key, value), got {given!r:.200}"
        raise TypeError(message) from None
    return key, value


#: Operator to processor: a new stateless operator is a class above and a line here.
STATELESS: dict[type[Operator], type[Processor[Any]]] = {
    Where: WhereProcessor,
    FlatMap: FlatMapProcessor,
    FlatMapValues: FlatMapValuesProcessor,
    KeyBy: KeyByProcessor,
    Map: MapProcessor,
    MapValues: MapValuesProcessor,
    Peek: PeekProcessor,
    ToStream: ToStreamProcessor,
}
