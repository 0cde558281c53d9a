"""One stage of a topology in one task: chunks through fused operators, to sinks and edges."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from headrace.keys import decode_keys
from headrace.runtime.aggregates import AggregateProcessor
from headrace.runtime.blocks import Block, BlockKind, Rows
from headrace.runtime.chunk import Chunk
from headrace.runtime.edges import make_edge
from headrace.runtime.processors import STATELESS, Processor, ProcessorContext
from headrace.runtime.sinks import SinkWriter
from headrace.topology.operators import Aggregate, Operator, Sink, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.commits import QueueMessages
    from headrace.runtime.watermarks import OperatorWatermark, QueueWatermark, Watermark
    from headrace.topology import StagePlan

__all__ = ["PROCESSORS", "StageContext", "StageRunner"]

#: Every operator that is neither source nor sink, and what runs it.
PROCESSORS: dict[type[Operator], type[Processor[Any]]] = {
    **STATELESS,
    Aggregate: AggregateProcessor,
}

Inputs = dict[str, dict[int, Chunk]]
"""Chunks by operator and number of the parent that they come from."""


class StageContext(ProcessorContext, Protocol):
    """What a stage asks of the task that runs it."""

    @property
    def partition(self) -> int:
        """Number of the task."""

    @property
    def partitions(self) -> int:
        """Partitions of the job."""

    def queues(self, topic: str) -> list[QueueName]:
        """Give the writable queues of a topic, in order."""

    def operator_watermark(self, operator: Operator) -> OperatorWatermark:
        """Give an operator's watermark as of the last commit."""


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
        self._emit = emit
        self._sinks = {
            operator.name: SinkWriter(operator, context.queues(operator.topic), context.partition)
            for operator in self._operators
            if isinstance(operator, Sink)
        }
        self._processors = {
            operator.name: PROCESSORS[type(operator)](operator, context)
            for operator in self._operators
            if not isinstance(operator, (Source, Sink))
        }
        self._edges = {
            (child.name, port): make_edge(child, port, context.locator)
            for operator in self._operators
            for child, port in _outputs(plan, operator)
            if plan.stage_of(child.name) != stage
        }
        self._watermarks = {
            operator.name: context.operator_watermark(operator)
            for operator in self._operators
            if operator.timed
        }
        #: Records that reached each operator.
        self.records: dict[str, int] = defaultdict(int)

    def feed(self, chunks: Mapping[str, Chunk]) -> None:
        """Run records that sources read through the stage."""
        self._step({name: {0: chunk} for name, chunk in chunks.items()}, (), finishing=False)

    def absorb(
        self,
        blocks: Mapping[tuple[str, int, BlockKind], list[bytes]],
        watermarks: Sequence[QueueWatermark],
    ) -> None:
        """Take everything that earlier stages sent, by operator, port and kind."""
        inputs: Inputs = defaultdict(dict)
        for (name, port, kind), payloads in blocks.items():
            rows = Rows.unpack(payloads)
            if kind is BlockKind.PARTIALS:
                processor = self._processors[name]
                assert isinstance(processor, AggregateProcessor)
                processor.absorb(rows)
                self.records[name] += len(rows)
            else:
                inputs[name][port] = self._records(name, port, rows)
        self._step(inputs, watermarks, finishing=False)

    def finish(self, partitions: int) -> Iterator[Block]:
        """End the batch: let every operator finish, then give what later stages get."""
        self._step({}, (), finishing=True)
        for (name, port), edge in self._edges.items():
            stage = self._plan.stage_of(name)
            for partition, rows in edge.flush(partitions):
                yield Block(partition, stage, edge.kind, name, port, rows.pack())

    def _records(self, name: str, port: int, rows: Rows) -> Chunk:
        serde = self._processors[name].operator.input_serde(port)
        return Chunk(
            decode_keys(rows.keys.to_pylist()),
            serde.deserialize_many(rows.values),
            rows.times,
            rows.marks,
            rows.headers,
        )

    def _step(
        self,
        given: Mapping[str, Mapping[int, Chunk]],
        watermarks: Sequence[QueueWatermark],
        *,
        finishing: bool,
    ) -> None:
        inbox: Inputs = defaultdict(dict)
        for name, chunks in given.items():
            inbox[name].update(chunks)
        for operator in self._operators:
            inputs = inbox.pop(operator.name, {})
            self.records[operator.name] += sum(map(len, inputs.values()))
            if isinstance(operator, Source):
                result = inputs.get(0, Chunk.empty())
            elif isinstance(operator, Sink):
                for messages in self._sinks[operator.name].messages(
                    Chunk.merge(list(inputs.values()))
                ):
                    self._emit(messages)
                continue
            else:
                result = self._run(operator, inputs, watermarks, finishing=finishing)
            if len(result):
                self._pass_on(operator, result, inbox)

    def _run(
        self,
        operator: Operator,
        inputs: Mapping[int, Chunk],
        watermarks: Sequence[QueueWatermark],
        *,
        finishing: bool,
    ) -> Chunk:
        processor = self._processors[operator.name]
        risen: list[Watermark] = []
        if operator.timed and watermarks:
            risen = self._watermarks[operator.name].advance(watermarks)
        result = processor.run(inputs, risen)
        return Chunk.merge([result, processor.finish()]) if finishing else result

    def _pass_on(self, operator: Operator, chunk: Chunk, inbox: Inputs) -> None:
        for child, port in _outputs(self._plan, operator):
            edge = self._edges.get((child.name, port))
            if edge is not None:
                edge.add(chunk)
            else:
                inbox[child.name][port] = chunk


def _outputs(plan: StagePlan, operator: Operator) -> Iterator[tuple[Operator, int]]:
    """Give an operator's children, each with the number that the operator has among its parents.

    A child that names the same parent twice, as a self-join does, comes twice.
    """
    for child in dict.fromkeys(plan.children(operator.name)):
        for port, parent in enumerate(child.parents):
            if parent == operator.name:
                yield child, port
