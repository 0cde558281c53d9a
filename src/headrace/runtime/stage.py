"""One stage of a topology in one task: chunks through fused operators, to sinks and edges."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from headrace.keys import decode_keys
from headrace.runtime.aggregates.columns import COLUMNS
from headrace.runtime.aggregates.running import AggregateProcessor
from headrace.runtime.batches.writing import BatchSinkWriter
from headrace.runtime.blocks import Block, BlockKind, Rows
from headrace.runtime.bolts.frames import TupleFrame, unpack_frames
from headrace.runtime.bolts.registry import BOLTS
from headrace.runtime.chunk import NEVER, Chunk
from headrace.runtime.edges import Edge, RecordEdge
from headrace.runtime.event_time.timestamps import SelectTimestampProcessor
from headrace.runtime.flow import FLOW
from headrace.runtime.joins import JOINS
from headrace.runtime.low_level import PROCESSES
from headrace.runtime.outside import OUTSIDE, FeedWriter
from headrace.runtime.processors import STATELESS, Processor, ProcessorContext
from headrace.runtime.sinks import SinkWriter
from headrace.runtime.through import ThroughWriter
from headrace.runtime.windows import WINDOWS
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.core import Aggregate, Operator, Sink, Source
from headrace.topology.operators.outside import FeedSink
from headrace.topology.operators.through import Through
from headrace.topology.operators.times import SelectTimestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.commit.transactions import QueueMessages
    from headrace.runtime.event_time.watermarks import TaskWatermark, Watermark
    from headrace.topology import StagePlan

__all__ = ["PROCESSORS", "StageContext", "StageRunner"]

#: Every operator that is neither source nor sink, and what runs it.
PROCESSORS: dict[type[Operator], type[Processor[Any]]] = {
    **STATELESS,
    **FLOW,
    **PROCESSES,
    **JOINS,
    SelectTimestamp: SelectTimestampProcessor,
    Aggregate: AggregateProcessor,
    **COLUMNS,
    **WINDOWS,
    **BOLTS,
    **OUTSIDE,
}

Inputs = dict[str, dict[int, Chunk]]
"""Chunks by operator and number of the parent that they come from."""


class StageContext(ProcessorContext, Protocol):
    """What a stage asks of the task that runs it."""

    def queues(self, topic: str) -> list[QueueName]:
        """Give the writable queues of a topic, in order."""


class StageRunner:
    """Runs the operators of one stage, each once per step, in topological order.

    Parameters
    ----------
    plan
        The topology, cut into stages.
    stage
        Number of the stage.
    context
        State, places and numbers of the task.
    emit
        Takes what sinks produce.
    """

    def __init__(
        self,
        plan: StagePlan,
        stage: int,
        context: StageContext,
        emit: Callable[[QueueMessages], None],
    ) -> None:
        self._plan = plan
        self._operators = plan.stages[stage].operators
        self._partition = context.partition
        self._attempt = context.attempt
        self._emit = emit
        self._sinks = {
            operator.name: _writer(operator, context)
            for operator in self._operators
            if isinstance(operator, Sink)
        }
        self._processors = {
            operator.name: PROCESSORS[type(operator)](operator, context)
            for operator in self._operators
            if not isinstance(operator, (Source, Sink))
        }
        self._edges = {
            (child.name, port): _edge(child, port, context)
            for operator in self._operators
            if not isinstance(operator, Sink)
            for child, port in _outputs(plan, operator)
            if plan.stage_of(child.name) != stage
        }
        self._watermarks = {
            operator.name: context.operator_watermark(operator)
            for operator in self._operators
            if operator.timed
        }
        #: Whether the batch has begun for the operators.
        self._begun = False
        #: Records that reached each operator, and those that it gave.
        self.records: dict[str, int] = defaultdict(int)
        self.given: dict[str, int] = defaultdict(int)
        #: Tuples that left over a shuffle, and that came by one, by bolt and port.
        self.tuples_sent: dict[str, int] = defaultdict(int)
        self.tuples_taken: dict[str, int] = defaultdict(int)

    def feed(self, chunks: Mapping[str, Chunk]) -> None:
        """Run records that sources read through the stage."""
        self._step({name: {0: chunk} for name, chunk in chunks.items()}, (), finishing=False)

    def absorb(
        self,
        blocks: Mapping[tuple[str, int, BlockKind], list[bytes]],
        watermarks: Sequence[TaskWatermark],
    ) -> None:
        """Take everything that earlier stages sent, by operator, port and kind."""
        inputs: Inputs = defaultdict(dict)
        for (name, port, kind), payloads in sorted(blocks.items()):
            if kind is BlockKind.TUPLES:
                inputs[name][port] = chunk = unpack_frames(payloads)
                self.tuples_taken[f"{name}:{port}"] += len(chunk)
                continue
            rows = Rows.unpack(payloads)
            if kind is BlockKind.PARTIALS:
                self._processors[name].absorb(rows)
                self.records[name] += len(rows)
            else:
                inputs[name][port] = self._records(name, port, rows.by_mark())
        self._step(inputs, watermarks, finishing=False)

    def finish(self, partitions: int) -> Iterator[Block]:
        """End the batch: let every operator finish, then give what later stages get."""
        self._step({}, (), finishing=True)
        for (name, port), edge in self._edges.items():
            stage = self._plan.stage_of(name)
            for kind, partition, rows in edge.flush(partitions):
                if isinstance(rows, TupleFrame):
                    self.tuples_sent[f"{name}:{port}"] += len(rows)
                payload = rows.pack(self._partition)
                yield Block(partition, stage, kind, name, port, payload, self._attempt)

    def reached(self, ends: Mapping[QueueName, int]) -> None:
        """Tell the operators where the batch ends in each queue that the job reads."""
        for processor in self._processors.values():
            processor.reached(ends)

    @property
    def progress(self) -> dict[str, int]:
        """How far event time has come for each timed operator that it has reached."""
        times = {name: watermark.time for name, watermark in self._watermarks.items()}
        return {name: time for name, time in times.items() if time != NEVER}

    @property
    def due(self) -> int | None:
        """When some operator wants a batch by the wall clock, ms since 1970."""
        times = [processor.due for processor in self._processors.values()]
        return min((time for time in times if time is not None), default=None)

    def _records(self, name: str, port: int, rows: Rows) -> Chunk:
        (operator,) = (operator for operator in self._operators if operator.name == name)
        serde = operator.input_serde(port)
        processor = self._processors.get(name)
        keeps_bytes = processor is not None and processor.keeps_bytes
        return Chunk(
            decode_keys(rows.keys.to_pylist()),
            serde.deserialize_many(rows.values),
            rows.times,
            rows.marks,
            rows.headers,
            rows.late_below,
            rows.retracts,
            raws=rows.values if keeps_bytes else None,
        )

    def _step(
        self,
        given: Mapping[str, Mapping[int, Chunk]],
        watermarks: Sequence[TaskWatermark],
        *,
        finishing: bool,
    ) -> None:
        inbox: Inputs = defaultdict(dict)
        for name, chunks in given.items():
            inbox[name].update(chunks)
        begun, self._begun = self._begun, True
        for operator in self._operators:
            inputs = _by_parent(inbox.pop(operator.name, {}))
            self.records[operator.name] += sum(map(len, inputs.values()))
            if isinstance(operator, Source):
                result = inputs.get(0, Chunk.empty())
            elif isinstance(operator, Sink):
                for messages in self._sinks[operator.name].messages(
                    Chunk.merge(list(inputs.values()))
                ):
                    self.given[operator.name] += len(messages)
                    self._emit(messages)
                continue
            else:
                processor = self._processors[operator.name]
                risen = self._rises(operator, processor, watermarks, begun=begun)
                result = processor.run(inputs, risen)
                if finishing:
                    result = Chunk.merge([result, processor.finish()])
                for output, chunk in processor.take_side().items():
                    self._pass_on(operator, chunk, inbox, output)
            if len(result):
                self._pass_on(operator, result, inbox)

    def _rises(
        self,
        operator: Operator,
        processor: Processor[Any],
        watermarks: Sequence[TaskWatermark],
        *,
        begun: bool,
    ) -> list[Watermark]:
        """Tell how event time rises for an operator in this step."""
        watermark = self._watermarks.get(operator.name)
        if watermark is None:
            return []
        processor.event_time = watermark.time
        first = [] if begun else watermark.begin()
        return [*first, *watermark.advance(watermarks)]

    def _pass_on(self, operator: Operator, chunk: Chunk, inbox: Inputs, output: str = "") -> None:
        news = chunk.without_retractions()
        takers = [each for each in _outputs(self._plan, operator) if each[0].output == output]
        if takers or not output:
            self.given[operator.name] += len(news)
        for child, port in takers:
            given = chunk if child.name in self._plan.taking_back else news
            edge = self._edges.get((child.name, port))
            if edge is not None:
                edge.add(given)
            else:
                inbox[child.name][port] = given


def _writer(sink: Sink, context: StageContext) -> SinkWriter | FeedWriter:
    if isinstance(sink, FeedSink):
        return FeedWriter(sink, context)
    if isinstance(sink, BatchSink):
        return BatchSinkWriter(sink, context)
    return (ThroughWriter if isinstance(sink, Through) else SinkWriter)(sink, context)


def _edge(child: Operator, port: int, context: StageContext) -> Edge:
    if isinstance(child, Sink):
        return RecordEdge(child, port, context.locator)
    return PROCESSORS[type(child)].edge(child, port, context)


def _by_parent(inputs: Mapping[int, Chunk]) -> dict[int, Chunk]:
    """Order the parents' chunks: records of one cause are merged in the order of the parents."""
    return {port: inputs[port] for port in sorted(inputs)}


def _outputs(plan: StagePlan, operator: Operator) -> Iterator[tuple[Operator, int]]:
    """Give an operator's children, each with the number that the operator has among its parents.

    A child that names the same parent twice, as a self-join does, comes twice.
    """
    children = {child.name: child for child in plan.children(operator.name)}
    for child in children.values():
        for port, parent in enumerate(child.parents):
            if parent == operator.name:
                yield child, port
