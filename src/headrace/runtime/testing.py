"""A test driver: a topology in one process, without Java, broker or disk."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace import serdes
from headrace.errors import StateError, TopicNotFoundError
from headrace.keys import (
    EXACT_KEY,
    KEYS,
    decode_key,
    encode_key,
    key_from_properties,
    properties_of_key,
)
from headrace.protocol.columns import MessageColumns
from headrace.protocol.properties import decode_properties, encode_properties
from headrace.protocol.transactions import StagedPart, StateSummary
from headrace.runtime.blocks import BlockKind
from headrace.runtime.commits import Attempt, QueueMessages
from headrace.runtime.local_state import Copy
from headrace.runtime.messages import SourceReader
from headrace.runtime.state import ChangeSet, MemoryBase
from headrace.runtime.task import Control, Summary, Task, TaskContext
from headrace.runtime.watermarks import origin_name
from headrace.serdes import Deserializer, Serde, as_deserializer
from headrace.topology.operators import Aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from headrace.runtime.blocks import Block
    from headrace.runtime.chunk import Chunk
    from headrace.topology import Topology

__all__ = ["TestInput", "TestOutput", "TestRecord", "TestState", "TopologyTestDriver"]

K = TypeVar("K")
V = TypeVar("V")

_START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TestRecord(Generic[K, V]):
    """A record that a sink wrote."""

    key: K
    value: V
    time: datetime
    headers: Mapping[str, str] = field(default_factory=dict)

    __test__ = False


class TopologyTestDriver:
    """Runs a topology's own processors on records that a test sends.

    Each record is a batch of its own and is done when :meth:`TestInput.send` returns; inside
    :meth:`batch` all records make one.  The clock stands still until the test moves it.

    Parameters
    ----------
    topology
        What to run.
    partitions
        Shares of the key space.
    start
        The clock's first time; 2024-01-01 UTC by default.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("word-count")
    >>> lines = builder.source("lines", serdes.string)
    >>> words = lines.flat_map_values(str.split).key_by(lambda word: word)
    >>> words.count().to_stream().sink("counts", serdes.json)
    <end of 'sink-counts'>
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("lines", serdes.string).send("to be or not to be")
    ...     sorted((r.key, r.value) for r in driver.output("counts", serdes.json).read_all())
    ...     driver.state("count-lines").get("be")
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    2
    """

    def __init__(
        self, topology: Topology, *, partitions: int = 2, start: datetime = _START
    ) -> None:
        self.topology = topology
        self.now = start
        self._partitions = partitions
        self._copies = _MemoryCopies()
        self._outputs: dict[str, list[_Written]] = defaultdict(list)
        self._pending: list[_Sent] | None = None
        self._position = 0
        self._offsets: dict[str, int] = defaultdict(int)
        self._batch = 0
        self._states: dict[tuple[str, int], StateSummary] = {}
        self._watermarks: dict[str, int] = {}
        self._progress: dict[str, int] = {}
        #: Messages skipped and dead-lettered so far.
        self.counters: dict[str, int] = defaultdict(int)

    def input(self, topic: str, serde: Serde[V]) -> TestInput[V]:
        """Give the way into a source topic.

        Raises
        ------
        TopicNotFoundError
            The topology does not read the topic.
        """
        topics = sorted({source.topic for source in self.topology.sources})
        if topic not in topics:
            raise TopicNotFoundError(
                f"topology '{self.topology.name}' does not read topic '{topic}'",
                hint=f"it reads {', '.join(topics)}",
            )
        return TestInput(self, topic, serde)

    def output(self, topic: str, deserializer: Deserializer[Any, V] | Serde[V]) -> TestOutput[V]:
        """Give what was written to a topic, dead-letter topics included."""
        return TestOutput(self._outputs[topic], as_deserializer(deserializer))

    def state(self, operator: str) -> TestState:
        """Give the state store of an operator.

        Raises
        ------
        StateError
            The topology has no stateful operator of this name.
        """
        names = list(self.topology.state_topics)
        if operator not in names:
            raise StateError(
                f"topology '{self.topology.name}' has no state store '{operator}'",
                hint=f"it has {', '.join(names) or 'none'}",
            )
        bases = [self._copies.base(operator, p) for p in range(self._partitions)]
        found = self.topology.operator(operator)
        return TestState(found.state_serde if isinstance(found, Aggregate) else serdes.bytes, bases)

    def advance(self, by: timedelta) -> None:
        """Move the clock on."""
        self.now += by

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make one batch of all records that are sent inside."""
        self._pending = []
        try:
            yield
            sent, self._pending = self._pending, None
            self._run(sent)
        finally:
            self._pending = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def _send(self, message: _Sent) -> None:
        if self._pending is None:
            self._run([message])
        else:
            self._pending.append(message)

    def _run(self, sent: list[_Sent]) -> None:
        """Run one batch; nothing of it is kept when it fails."""
        self._batch += 1
        writer = _MemoryWriter()
        saved = _SavedChanges()
        blocks: list[Block] = []
        for stage in self.topology.plan.stages:
            tasks = [0] if stage.number == 0 else range(self._partitions)
            for partition in tasks:
                task = self._task(stage.number, partition, writer, saved)
                if stage.number == 0:
                    self._feed_sources(task, sent)
                task.absorb(
                    block
                    for block in blocks
                    if (block.stage, block.partition) == (stage.number, partition)
                )
                blocks += task.finish()
                for name, count in task.counters.items():
                    self.counters[name] += count
        self._commit(writer, saved)
        for block in blocks:
            if block.kind is BlockKind.SUMMARY:
                summary = msgspec.json.decode(block.payload, type=Summary)
                self._watermarks.update(summary.watermarks)
                self._progress.update(summary.progress)

    def _task(
        self, stage: int, partition: int, writer: _MemoryWriter, saved: _SavedChanges
    ) -> Task:
        topics = [*self._written_topics(), *self.topology.state_topics.values()]
        control = Control(
            job=self.topology.name,
            epoch=1,
            batch=self._batch,
            partitions=self._partitions,
            clock=_milliseconds(self.now),
            queues={
                topic: [f"{topic}@test@{number}" for number in range(self._partitions)]
                for topic in topics
            },
            states=list(self._states.values()),
            origins=[origin_name(s.name, _queue(s.topic)) for s in self.topology.sources],
            watermarks=self._watermarks,
            progress=self._progress,
        )
        context = TaskContext(
            control=control,
            partition=partition,
            locator=_SentLocator(),
            copies=_BatchCopies(self._copies, saved),
            plan=self.topology.plan,
            state_topics=self.topology.state_topics,
        )
        attempt = Attempt(
            job=self.topology.name,
            epoch=1,
            batch=self._batch,
            stage=stage,
            partition=partition,
            number=partition,
        )
        return Task(context, attempt, writer)

    def _written_topics(self) -> list[str]:
        dead = [s.on_error.removeprefix("topic:") for s in self.topology.sources]
        return [*(sink.topic for sink in self.topology.sinks), *dead]

    def _feed_sources(self, task: Task, sent: list[_Sent]) -> None:
        topics = dict.fromkeys(message.topic for message in sent)
        for topic in topics:
            columns = self._columns([message for message in sent if message.topic == topic])
            chunks: dict[str, Chunk] = {
                source.name: SourceReader(source, task, forwards_headers=True).read(topic, columns)
                for source in self.topology.sources
                if source.topic == topic
            }
            self._move_watermarks(task, topic, chunks)
            task.feed(chunks)

    def _move_watermarks(self, task: Task, topic: str, chunks: Mapping[str, Chunk]) -> None:
        if not self.topology.timed:
            return
        for source in self.topology.sources:
            chunk = chunks.get(source.name)
            if chunk is None or not len(chunk):
                continue
            clock = task.clock(source, int(source.allowed_lateness.total_seconds() * 1000))
            chunk.queues = np.zeros(len(chunk), np.intp)
            found, chunk.late_below = clock.observe(
                [_queue(topic)], chunk.queues, chunk.times, chunk.marks
            )
            task.move_watermarks(found, clock.current)

    def _columns(self, messages: list[_Sent]) -> MessageColumns:
        count = len(messages)
        topic = messages[0].topic
        offsets = np.arange(count, dtype=np.int64) + self._offsets[topic]
        positions = np.arange(count, dtype=np.int64) + self._position
        self._offsets[topic] += count
        self._position += count
        times = np.array([message.time for message in messages], np.int64)
        numbers = np.zeros(count, np.int32)
        return MessageColumns(
            offsets,
            positions,
            times,
            times,
            numbers,
            numbers,
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([message.properties for message in messages], pa.binary()),
        )

    def _commit(self, writer: _MemoryWriter, saved: _SavedChanges) -> None:
        state_topics = set(self.topology.state_topics.values())
        for messages in writer.staged:
            topic = messages.queue.split("@")[0]
            if topic not in state_topics:
                self._outputs[topic] += _written(messages)
        for (store, partition), changes in saved.changes.items():
            self._copies.base(store, partition).apply(changes)
            before = self._states.get((store, partition))
            self._states[store, partition] = StateSummary(
                store=store,
                partition=partition,
                count=changes.count,
                checksum=changes.checksum,
                epoch=1,
                batch=self._batch,
                attempt=partition,
                end_offset=(before.end_offset if before else 0) + len(changes.keys),
            )


class TestInput(Generic[V]):
    """The way into one source topic."""

    __test__ = False

    def __init__(self, driver: TopologyTestDriver, topic: str, serde: Serde[V]) -> None:
        self._driver = driver
        self._topic = topic
        self._serde = serde

    def send(
        self,
        value: V,
        *,
        key: object = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one record; without a time it has the clock's."""
        self.send_bytes(self._serde.serialize(value), key=key, time=time, headers=headers)

    def send_bytes(
        self,
        body: bytes,
        *,
        key: object = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one message with any body, also one that cannot be read."""
        properties = encode_properties({**properties_of_key(key), **(headers or {})})
        stamp = _milliseconds(self._driver.now if time is None else time)
        self._driver._send(_Sent(self._topic, body, properties, stamp))  # noqa: SLF001 - its own part


class TestOutput(Generic[V]):
    """What was written to one topic and not yet read."""

    __test__ = False

    def __init__(self, written: list[_Written], deserializer: Deserializer[Any, V]) -> None:
        self._written = written
        self._deserializer = deserializer

    def read(self) -> TestRecord[Any, V]:
        """Take the oldest record.

        Raises
        ------
        IndexError
            There is none.
        """
        return self._record(self._written.pop(0))

    def read_all(self) -> list[TestRecord[Any, V]]:
        """Take all records, oldest first."""
        records = list(map(self._record, self._written))
        self._written.clear()
        return records

    def is_empty(self) -> bool:
        """Tell whether everything was read."""
        return not self._written

    def _record(self, written: _Written) -> TestRecord[Any, V]:
        found = self._deserializer.deserialize(written.body, written.properties)
        key = key_from_properties(written.properties) if found.key is None else found.key
        headers = {k: v for k, v in written.properties.items() if k not in (KEYS, EXACT_KEY)}
        return TestRecord(key, found.value, _datetime(written.time), headers)


class TestState:
    """One state store, over all partitions."""

    __test__ = False

    def __init__(self, serde: Serde[Any], bases: list[MemoryBase]) -> None:
        self._serde = serde
        self._bases = bases

    def get(self, key: object) -> Any:
        """Give the state of a key, None where there is none."""
        encoded = encode_key(key)
        for base in self._bases:
            if encoded in base.entries:
                return self._serde.deserialize(base.entries[encoded])
        return None

    def all(self) -> dict[Any, Any]:
        """Give the state of every key."""
        return {
            decode_key(key): self._serde.deserialize(value)
            for base in self._bases
            for key, value in base.scan()
        }

    def __len__(self) -> int:
        return sum(len(base.entries) for base in self._bases)


@dataclass(frozen=True, slots=True)
class _Sent:
    topic: str
    body: bytes
    properties: bytes
    time: int


@dataclass(frozen=True, slots=True)
class _Written:
    body: bytes
    properties: dict[str, str]
    time: int


class _MemoryWriter:
    def __init__(self) -> None:
        self.staged: list[QueueMessages] = []

    def stage(self, messages: QueueMessages) -> int | None:
        self.staged.append(messages)
        return None

    def finish(self) -> StagedPart:
        return StagedPart(stage=0, partition=0, attempt=0, chunks=0, records=0)


class _MemoryCopies:
    def __init__(self) -> None:
        self._bases: dict[tuple[str, int], MemoryBase] = {}

    def base(self, store: str, partition: int) -> MemoryBase:
        return self._bases.setdefault((store, partition), MemoryBase())


@dataclass(slots=True)
class _SavedChanges:
    changes: dict[tuple[str, int], ChangeSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _BatchCopies:
    copies: _MemoryCopies
    saved: _SavedChanges

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> Copy:
        del summary, lineage
        return Copy(self.copies.base(store, partition))

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        del attempt, base
        self.saved.changes[store, partition] = changes


class _SentLocator:
    def locate(self, mark: int) -> str:
        return f"place {mark} of all that the test sent"


def _written(messages: QueueMessages) -> list[_Written]:
    columns = (
        messages.bodies.to_pylist(),
        messages.properties.to_pylist(),
        messages.times.tolist(),
    )
    return [
        _Written(body, decode_properties(properties), time)
        for body, properties, time in zip(*columns, strict=True)
    ]


def _queue(topic: str) -> str:
    return f"{topic}@test@0"


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _datetime(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1000, UTC)
