"""One stage of a topology in one task: chunks through fused operators, to sinks and edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import EXACT_KEY, KEYS, decode_keys, keys_from_columns, partitions_of
from headrace.protocol.properties import encode_properties
from headrace.runtime.aggregates.running import AggregateProcessor
from headrace.runtime.batches.cutting import BatchSinkWriter
from headrace.runtime.bolts.bolts import TupleFrame, unpack_frames
from headrace.runtime.bolts.spouts import BOLTS
from headrace.runtime.chunk import NEVER, Chunk, Int64s
from headrace.runtime.columns import COLUMNS
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.control import Block, BlockKind, Control, Rows
from headrace.runtime.event_time.watermarks import (
    QueueWatermark,
    TaskWatermark,
    Watermark,
    origin_name,
)
from headrace.runtime.joins import JOINS
from headrace.runtime.low_level import PROCESSES
from headrace.runtime.outside import OUTSIDE, FeedWriter
from headrace.runtime.processors import STATELESS, Edge, Processor, ProcessorContext, RecordEdge
from headrace.runtime.sinks import SinkWriter
from headrace.runtime.sources.messages import SelectTimestampProcessor, SourceReader, TaskPort
from headrace.runtime.user_code import Locator, RecordCalls, UserFunction, call_all, without_bad
from headrace.runtime.windows import WINDOWS
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.core import (
    LATE_BELOW,
    NO_VALUE,
    RETRACTS,
    SENDER,
    TIME,
    WATERMARK,
    Aggregate,
    FeedSink,
    Operator,
    SelectTimestamp,
    Sink,
    Source,
    Through,
    ThroughSource,
)
from headrace.topology.operators.flow import Branch, MapAsync, Merge, Output, Repartition

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName
    from headrace.topology import StagePlan


# Processors that bring streams together, part them, move them and wait for what they call.

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


# Records and watermarks on their way through a topic of the job's own: see decision 0009.
#
# Records are messages as any sink writes them; what only the job needs stands in properties of the
# few messages that have it.  Watermarks are messages of their own, written by one task per batch.

_TIME = TIME.encode()


class ThroughWriter(SinkWriter):
    """Turns records into messages of a topic that the next batch reads."""

    def _properties(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, Int64s]:
        properties, numbers = super()._properties(chunk, queues)
        times = chunk.times.tolist()
        encoded = [
            b"%b%b\x01%d\x02" % (data, _TIME, time)
            for data, time in zip(properties.to_pylist(), times, strict=True)
        ]
        for index, data in _rare_properties(chunk).items():
            encoded[index] += data
        return pa.array(encoded, pa.binary()), numbers


def _rare_properties(chunk: Chunk) -> dict[int, bytes]:
    """Return the properties of the records that key, value, time and headers do not describe."""
    more: dict[int, dict[str, str]] = {}
    if chunk.late_below is not None:
        for index in np.flatnonzero(chunk.late()).tolist():
            more[index] = {LATE_BELOW: str(chunk.late_below[index])}
    if chunk.retracts is not None:
        for index in np.flatnonzero(chunk.retracts).tolist():
            more.setdefault(index, {})[RETRACTS] = "1"
    for index, value in enumerate(chunk.values):
        if value is None:
            more.setdefault(index, {})[NO_VALUE] = "1"
    return {index: encode_properties(properties) for index, properties in more.items()}


class ThroughReader(SourceReader):
    """Reads back what a :class:`ThroughWriter` wrote, and the watermarks between it.

    Parameters
    ----------
    source, task, forwards_headers
        As :class:`SourceReader` takes them.
    job
        The job, whose own watermarks count alone.
    """

    def __init__(
        self, source: ThroughSource, task: TaskPort, *, job: str, forwards_headers: bool
    ) -> None:
        super().__init__(source, task, forwards_headers=forwards_headers)
        self._job = job.encode()

    def read(self, topic: str, columns: MessageColumns) -> Chunk:
        """Deserialize records; those that cannot be read follow the source's policy."""
        empty = columns.property(NO_VALUE).is_valid().to_numpy(zero_copy_only=False)
        if empty.any():
            live = super().read(topic, columns.take(~empty))
            chunk = Chunk.merge([live, self._without_values(columns.take(empty))])
        else:
            chunk = super().read(topic, columns)
        return _with_marks(chunk, columns)

    def _times(self, values: list[Any], columns: MessageColumns) -> Int64s:
        del values
        return _numbers(columns.property(TIME), columns.born)

    def _without_values(self, columns: MessageColumns) -> Chunk:
        keys = keys_from_columns(columns.property(KEYS), columns.property(EXACT_KEY))
        headers = self._headers(columns)
        times = self._times([], columns)
        return Chunk(keys, [None] * len(columns), times, columns.position, headers)

    def watermarks(
        self,
        columns: MessageColumns,
        queues: Sequence[QueueName],
        numbers: npt.NDArray[np.intp],
    ) -> Iterator[QueueWatermark]:
        """Yield the job's watermarks among messages, ``numbers`` naming the queue of each."""
        times = columns.property(WATERMARK)
        if times.null_count == len(times):
            return
        senders = columns.property(SENDER).to_pylist()
        for index, time in enumerate(times.to_pylist()):
            if time is not None and senders[index] == self._job:
                origin = origin_name(self.source.name, queues[numbers[index]])
                yield QueueWatermark(int(columns.position[index]), origin, int(time))


def _with_marks(chunk: Chunk, columns: MessageColumns) -> Chunk:
    """Mark which of the records are late, and which take earlier ones back."""
    late_below, retracts = columns.property(LATE_BELOW), columns.property(RETRACTS)
    places = np.searchsorted(columns.position, chunk.marks)
    if late_below.null_count < len(late_below):
        times = _numbers(late_below, np.full(len(columns), NEVER, np.int64))
        chunk = replace(chunk, late_below=times[places])
    if retracts.null_count < len(retracts):
        found = retracts.is_valid().to_numpy(zero_copy_only=False)
        chunk = replace(chunk, retracts=found[places])
    return chunk


def _numbers(column: pa.BinaryArray, default: Int64s) -> Int64s:
    """Read a property that holds a number; the default where a message does not have it."""
    if column.null_count == len(column):
        return default
    numbers = column.cast(pa.string()).cast(pa.int64())
    found: Int64s = pc.coalesce(numbers, pa.array(default)).to_numpy(zero_copy_only=False)
    return found


def watermark_messages(
    control: Control, throughs: Sequence[Through], announced: Mapping[str, int]
) -> Iterator[QueueMessages]:
    """Encode what a batch announces of event time, for each queue of the topics concerned."""
    for sink in throughs:
        time = announced.get(sink.name)
        if time is None:
            continue
        about = {"job": control.job, "operator": sink.name, "batch": control.batch}
        body = msgspec.json.encode({"watermark": time, **about})
        properties = encode_properties({WATERMARK: str(time), SENDER: control.job})
        for queue in control.queues(sink.topic):
            yield QueueMessages(
                queue,
                pa.array([body], pa.binary()),
                pa.array([properties], pa.binary()),
                np.array([control.clock], np.int64),
            )


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
        """Return the writable queues of a topic, in order."""


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
        """End the batch: let every operator finish, then return what later stages get."""
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
        """Return how event time rises for an operator in this step."""
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
    """Yield an operator's children, each with the number that the operator has among its parents.

    A child that names the same parent twice, as a self-join does, comes twice.
    """
    children = {child.name: child for child in plan.children(operator.name)}
    for child in children.values():
        for port, parent in enumerate(child.parents):
            if parent == operator.name:
                yield child, port
