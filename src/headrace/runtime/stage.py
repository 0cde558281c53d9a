"""One stage of a topology in one task: chunks through fused operators, to sinks and edges."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.keys import decode_keys, encode_keys, key_hashes
from headrace.runtime.aggregates import AggregateProcessor, Combiner, combines
from headrace.runtime.blocks import Block, BlockKind, Rows
from headrace.runtime.chunk import Chunk
from headrace.runtime.processors import STATELESS, Processor, ProcessorContext
from headrace.runtime.sinks import SinkWriter
from headrace.topology.operators import Aggregate, Operator, Sink, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.commits import QueueMessages
    from headrace.runtime.user_code import Locator
    from headrace.topology import StagePlan

__all__ = ["PROCESSORS", "StageRunner"]

#: Every operator that is neither source nor sink, and what runs it.
PROCESSORS: Mapping[type[Operator], type[Processor[Any]]] = {
    **STATELESS,
    Aggregate: AggregateProcessor,
}


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


class StageRunner:
    """Runs the operators of one stage, each once per chunk, in topological order.

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
            child.name: _edge(child, context.locator)
            for operator in self._operators
            for child in plan.children(operator.name)
            if plan.stage_of(child.name) != stage
        }
        #: Records that reached each operator.
        self.records: dict[str, int] = defaultdict(int)

    def feed(self, inputs: Mapping[str, Chunk]) -> None:
        """Run records through the stage; for a source, the records that it read."""
        self._run(inputs, finishing=False)

    def absorb(self, operator: str, kind: BlockKind, rows: Rows) -> None:
        """Take rows that an earlier stage sent to an operator of this one."""
        processor = self._processors[operator]
        if kind is BlockKind.PARTIALS:
            assert isinstance(processor, AggregateProcessor)
            processor.absorb(rows)
            return
        target = processor.operator
        chunk = Chunk(
            decode_keys(rows.keys.to_pylist()),
            target.value_serde.deserialize_many(rows.values),
            rows.times,
            rows.marks,
            rows.headers,
        )
        self.feed({operator: chunk})

    def finish(self, partitions: int) -> Iterator[Block]:
        """End the batch: let every operator finish, then give what later stages get."""
        self._run({}, finishing=True)
        for name, edge in self._edges.items():
            for partition, rows in edge.flush(partitions):
                stage = self._plan.stage_of(name)
                yield Block(partition, stage, edge.kind, name, rows.pack())

    def _run(self, inputs: Mapping[str, Chunk], *, finishing: bool) -> None:
        inbox: dict[str, list[Chunk]] = defaultdict(list)
        for name, chunk in inputs.items():
            inbox[name].append(chunk)
        for operator in self._operators:
            chunk = Chunk.merge(inbox.pop(operator.name, []))
            self.records[operator.name] += len(chunk)
            if isinstance(operator, Sink):
                for messages in self._sinks[operator.name].messages(chunk):
                    self._emit(messages)
                continue
            self._pass_on(operator, self._process(operator, chunk, finishing=finishing), inbox)

    def _process(self, operator: Operator, chunk: Chunk, *, finishing: bool) -> Chunk:
        if isinstance(operator, Source):
            return chunk
        processor = self._processors[operator.name]
        result = processor.process(chunk) if len(chunk) else chunk
        return Chunk.merge([result, processor.finish()]) if finishing else result

    def _pass_on(self, operator: Operator, chunk: Chunk, inbox: dict[str, list[Chunk]]) -> None:
        if not len(chunk):
            return
        for child in self._plan.children(operator.name):
            if child.name in self._edges:
                self._edges[child.name].add(chunk)
            else:
                inbox[child.name].append(chunk)


class _RecordEdge:
    """Sends every record to the partition of its key."""

    kind = BlockKind.RECORDS

    def __init__(self, target: Aggregate) -> None:
        self._target = target
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[int, Rows]]:
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return iter(())
        keys = encode_keys(chunk.key_list())
        rows = Rows(
            pa.array(keys, pa.binary()),
            self._target.value_serde.serialize_many(chunk.values),
            chunk.times,
            chunk.marks,
            chunk.headers,
        )
        return iter(rows.split(key_hashes(keys).astype("int64") % partitions))


class _CombinedEdge:
    """Sends one partial accumulator per key and task."""

    kind = BlockKind.PARTIALS

    def __init__(self, target: Aggregate, locator: Locator) -> None:
        self._combiner = Combiner(target, locator)

    def add(self, chunk: Chunk) -> None:
        self._combiner.add(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[int, Rows]]:
        rows = self._combiner.flush()
        if rows is None:
            return iter(())
        hashes = key_hashes(rows.keys.to_pylist())
        return iter(rows.split(hashes.astype("int64") % partitions))


def _edge(target: Operator, locator: Locator) -> _RecordEdge | _CombinedEdge:
    assert isinstance(target, Aggregate), target
    return _CombinedEdge(target, locator) if combines(target) else _RecordEdge(target)
