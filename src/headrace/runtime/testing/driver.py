"""The test driver: runs batches of a topology in this process, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from headrace.errors import StateError, TopicNotFoundError
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.state.views import StateView, reader
from headrace.runtime.testing.job import MemoryJob
from headrace.runtime.testing.topics import Sent, TestInput, TestOutput, Written, milliseconds
from headrace.serdes import Deserializer, Serde, as_deserializer, json_of
from headrace.topology.shapes import name_of, state_shape

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.runtime.state.store import MemoryBase, StateBase
    from headrace.topology import BatchRecords, BatchToken, Operator, OperatorHandle, Topology


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

# State stores for a test to look at.


class TestState(StateView[Any, Any]):
    """One state store, over all partitions: what ``job.state(table)`` shows of a running job.

    Parameters
    ----------
    operator
        Whose state it is.
    bases
        Its partitions.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from headrace import StreamBuilder, TopologyTestDriver, serdes, tumbling
    >>> builder = StreamBuilder("job")
    >>> words = builder.source("words", serdes.string).key_by(lambda word: word)
    >>> minutes = words.window(tumbling(timedelta(minutes=1))).count(name="minutes")
    >>> minutes.sink("counts", serdes.int)
    <end of 'sink-counts'>
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("words", serdes.string).pipe(["to", "be", "to"])
    ...     state = driver.state(minutes)
    ...     state.get("to"), state.all(), list(state.prefix("b"))
    (2, {'to': 2, 'be': 1}, [('be', 1)])
    """

    __test__ = False

    def __init__(self, operator: Operator, bases: Sequence[MemoryBase]) -> None:
        shape = state_shape(operator)
        layout = PROCESSORS[type(operator)].layout or PlainLayout()
        super().__init__(layout.of(shape), reader(operator, shape))
        # What every partition has whole is shown once.
        self._stores = bases[:1] if self._layout.everywhere else bases

    def __len__(self) -> int:
        return sum(len(base.entries) for base in self._stores)

    @contextmanager
    def _bases(self, key: bytes | None = None) -> Iterator[list[StateBase]]:
        del key
        yield list(self._stores)


_START = datetime(2024, 1, 1, tzinfo=UTC)


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
    queues
        Queues of each source topic; those left out have one.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("word-count")
    >>> lines = builder.source("lines", serdes.string)
    >>> words = lines.flat_map_values(str.split).key_by(lambda word: word)
    >>> counts = words.count()
    >>> counts.sink("counts", serdes.json)
    <end of 'sink-counts'>
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("lines", serdes.string).send("to be or not to be")
    ...     sorted((r.key, r.value) for r in driver.output("counts", serdes.json).read_all())
    ...     driver.state(counts).get("be")
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    2
    """

    def __init__(
        self,
        topology: Topology,
        *,
        partitions: int = 2,
        start: datetime = _START,
        queues: Mapping[str, int] | None = None,
    ) -> None:
        self.topology = topology
        self.now = start
        self._job = MemoryJob(topology, partitions, queues or {}, milliseconds(start))
        self._pending: list[Sent] | None = None
        #: Every batch that a test sent and that did not fail.
        self.recorded: list[list[Sent]] = []

    @property
    def queues(self) -> Mapping[str, int]:
        """Number of queues of each source topic."""
        return self._job.queues.counts

    @property
    def counters(self) -> Mapping[str, int]:
        """What was counted so far, by name: ``records_out``, ``skipped``, ``late`` and others."""
        return self._job.counters

    @property
    def records(self) -> Mapping[str, int]:
        """Records that have reached each operator, by its name."""
        return self._job.records

    def input(self, topic: str, serde: Serde[V] | type[V], *, queue: int = 0) -> TestInput[V]:
        """Return the way into a queue of a source topic; a type is written as JSON.

        Raises
        ------
        TopicNotFoundError
            The topology does not read the topic, or the topic has no such queue.
        """
        counts = self._job.queues.counts
        if not self._job.queues.reads(topic):
            raise TopicNotFoundError(
                f"topology '{self.topology.name}' does not read topic '{topic}'",
                hint=f"it reads {', '.join(counts)}",
            )
        if not 0 <= queue < counts[topic]:
            raise TopicNotFoundError(
                f"topic '{topic}' has no queue {queue}: it has {counts[topic]}",
                hint=f"make the driver with queues={{{topic!r}: {queue + 1}}}",
            )
        values = serde if isinstance(serde, Serde) else json_of(serde)
        return TestInput(topic, values, queue, self._take, lambda: self.now)

    def output(
        self, topic: str, deserializer: Deserializer[Any, V] | Serde[V] | type[V]
    ) -> TestOutput[V]:
        """Return what was written to a topic, dead-letter topics included.

        Raises
        ------
        TopicNotFoundError
            The topology does not write the topic.
        """
        if topic not in self._job.outputs and topic not in self._job.written_topics:
            raise TopicNotFoundError(
                f"topology '{self.topology.name}' does not write topic '{topic}'",
                hint=f"it writes {', '.join(self._job.written_topics) or 'none'}",
            )
        reader = as_deserializer(deserializer)
        return TestOutput(
            f"topic '{topic}'", self._job.outputs[topic], lambda written: written.read(reader)
        )

    def batches(self, operator: str) -> list[tuple[BatchToken, BatchRecords[Any, Any]]]:
        """Return what ``for_each_batch`` or ``sink_dataframe`` got so far, batch by batch.

        Functions of ``for_each_batch`` run in this process, at the end of each batch; what they
        raise, the test gets.  Writers of ``sink_dataframe`` are not called: there is no Spark here.

        Raises
        ------
        StateError
            The topology has no such operator of this name.
        """
        return self._job.batches.of(operator)

    @overload
    def late(self, operator: OperatorHandle[Any, V, Any]) -> TestOutput[V]: ...
    @overload
    def late(self, operator: str) -> TestOutput[Any]: ...
    def late(self, operator: str | OperatorHandle[Any, V, Any]) -> TestOutput[V]:
        """Return the records that came too late for an operator, whether or not anyone takes them.

        Parameters
        ----------
        operator
            The windowed table, whose values are then typed, or the operator's name.

        Raises
        ------
        StateError
            The topology has no operator of this name that goes by event time.
        """
        name = name_of(operator)
        names = [o.name for o in self.topology.stateful if o.timed]
        if name not in names:
            raise StateError(
                f"topology '{self.topology.name}' has no operator '{name}' with late records",
                hint=f"it has {', '.join(names) or 'none'}",
            )
        return TestOutput(f"late of '{name}'", self._job.late[name], lambda record: record)

    @overload
    def state(self, operator: OperatorHandle[K, Any, R]) -> StateView[K, R]: ...
    @overload
    def state(self, operator: str) -> StateView[Any, Any]: ...
    def state(self, operator: str | OperatorHandle[K, Any, R]) -> StateView[K, R]:
        """Return the state store of an operator.

        Parameters
        ----------
        operator
            The table that it was made by, whose keys and values are then typed, or its name.

        Raises
        ------
        StateError
            The topology has no stateful operator of this name.
        """
        name = name_of(operator)
        names = list(self.topology.state_topics)
        if name not in names:
            raise StateError(
                f"topology '{self.topology.name}' has no state store '{name}'",
                hint=f"it has {', '.join(names) or 'none'}",
            )
        return TestState(self.topology.operator(name), self._job.state(name))

    def advance_wall_clock(self, by: timedelta) -> None:
        """Move the clock on; what is due by then happens, such as timers and idle timeouts.

        Raises
        ------
        ValueError
            It would go back.
        """
        if by < timedelta(0):
            message = f"the clock does not go back: by={by}"
            raise ValueError(message)
        self.now += by
        if self._pending is None:
            self._job.run_due(milliseconds(self.now))

    def run_batches(self, count: int = 1) -> None:
        """Run batches without a message: every spout emits its part of each.

        A batch that fails is rolled back: nothing of it is kept, the next one begins at the last
        that succeeded, and spouts and stateful bolts are told so.
        """
        for _ in range(count):
            self._run([])

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

    def replayed(self) -> Mapping[str, list[Written]]:
        """Run what was recorded in a new driver, and return all that is written, by topic.

        Caller: comparisons with other executors.
        """
        fresh = TopologyTestDriver(self.topology, start=self.now, queues=self.queues)
        fresh._job.batches.calls = False
        for messages in self.recorded:
            fresh._run(messages)
        return fresh._job.outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._job.close()

    def _take(self, messages: list[Sent]) -> None:
        if self._pending is None:
            self._run(messages)
        else:
            self._pending += messages

    def _run(self, messages: list[Sent]) -> None:
        self._job.run(messages, milliseconds(self.now))
        self.recorded.append(messages)
