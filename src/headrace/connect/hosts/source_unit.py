"""A source task in its host: polled ahead of the engine, by one thread."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.backoff import Backoff
from headrace.connect.columns import SOURCE_SCHEMA
from headrace.connect.handling import SourceChain, source_chain
from headrace.connect.hosts.channel import Answer, RequestRefused, Serving
from headrace.connect.hosts.control import (
    HostedSourceTask,
    catalog,
    connector_of,
)
from headrace.connect.hosts.life import Life, RunningUnit
from headrace.connect.lifecycle import Listens, Terms, TopicTouched
from headrace.connect.plugins.contexts import CommittedPositions
from headrace.connect.records import Position, SourceBatch, position_key

if TYPE_CHECKING:
    from headrace.connect.channel import ChildEnd, Told
    from headrace.connect.config import Config
    from headrace.connect.plugins import SourceConnector, SourceTask


# What a source has polled ahead, what it gave, and what of that is committed.


@dataclass(frozen=True, slots=True)
class Polled:
    """Records of one ``poll``, as the engine gets them, and the positions between them.

    ``positions[i]`` is where the source stands after the first ``ends[i]`` rows.  A record that
    was dropped on its way has a position but no row; columns with one position have it at the end.
    """

    rows: pa.RecordBatch
    ends: Sequence[int]
    positions: Sequence[tuple[Position, Position | None]]

    @property
    def count(self) -> int:
        """Number of rows."""
        count: int = self.rows.num_rows
        return count

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        size: int = self.rows.nbytes
        return size

    def cut(self, most: int) -> tuple[Polled | None, Polled | None]:
        """Split where at most so many rows stand before; None: nothing on that side."""
        if most >= self.count:
            return self, None
        at = bisect_right(self.ends, most)
        if not at:
            return None, self
        row = self.ends[at - 1]
        return (
            Polled(self.rows.slice(0, row), self.ends[:at], self.positions[:at]),
            Polled(
                self.rows.slice(row), [end - row for end in self.ends[at:]], self.positions[at:]
            ),
        )


@dataclass(slots=True)
class GivenBatch:
    """What was given for one batch, kept until it is committed."""

    parts: list[Polled] = field(default_factory=list)

    def rows(self) -> pa.RecordBatch:
        """Return all rows."""
        if len(self.parts) == 1:
            return self.parts[0].rows
        return pa.concat_batches([part.rows for part in self.parts] or [_NOTHING])

    def positions(self) -> list[tuple[Position, Position | None]]:
        """Return the last position of each partition."""
        last: dict[int, tuple[Position, Position | None]] = {}
        for part in self.parts:
            for partition, offset in part.positions:
                # Most records of a poll share the object that names their partition.
                last.pop(id(partition), None)
                last[id(partition)] = partition, offset
        return list({position_key(one[0]): one for one in last.values()}.values())


_NOTHING: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=SOURCE_SCHEMA)


class LateRequestError(Exception):
    """Somebody asks for a batch that others have committed since."""


class Ahead:
    """Stands between the thread that polls a task and those that serve the engine.

    The task may be ahead by so many records and bytes; then it waits.  What was given for a batch
    is given again when the batch is asked for again, until it is committed or taken back.

    Parameters
    ----------
    most_records, most_bytes
        Bounds of what nobody has asked for yet; the last poll may pass them.

    Examples
    --------
    >>> ahead = Ahead(most_records=10, most_bytes=1000)
    >>> rows = pa.RecordBatch.from_pylist([{"topic": "t"}] * 3, schema=SOURCE_SCHEMA)
    >>> places = [({}, {"n": 1}), ({}, {"n": 2}), ({}, {"n": 3})]
    >>> ahead.add(Polled(rows, [1, 2, 3], places), ahead.beginning)
    >>> given = ahead.give(batch=1, most_records=2, most_bytes=1000)
    >>> given.rows().num_rows, given.positions(), ahead.records
    (2, [({}, {'n': 2})], 1)
    >>> ahead.commit(1)
    [({}, {'n': 2})]
    """

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most = most_records, most_bytes
        self._waiting: deque[Polled] = deque()
        self._given: dict[int, GivenBatch] = {}
        #: The last batch that is known to be committed.
        self._committed = 0
        self._changed = threading.Condition()
        self._closed = False
        #: Rises when the task begins anew: what it polled before is not taken any more.
        self.beginning = 0
        #: Records and bytes that wait.
        self.records = self.bytes = 0

    def add(self, polled: Polled, beginning: int) -> None:
        """Put what was polled behind the rest, unless the task has begun anew since."""
        with self._changed:
            if beginning == self.beginning:
                self._put(polled, at_end=True)
                self._changed.notify_all()

    def begin_anew(self) -> None:
        """Forget all that was polled."""
        with self._changed:
            self.beginning += 1
            self._waiting.clear()
            self._given.clear()
            self.records = self.bytes = 0
            self._changed.notify_all()

    def _put(self, polled: Polled, *, at_end: bool) -> None:
        (self._waiting.append if at_end else self._waiting.appendleft)(polled)
        self.records += polled.count
        self.bytes += polled.size

    def has_room(self) -> bool:
        """Whether the task may be polled; it need not be under the lock."""
        return self.records < self._most[0] and self.bytes < self._most[1]

    def await_change(self, patience: float, still: Callable[[], bool]) -> None:
        """Wait while there is a reason to, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not still(), patience)

    def wake(self) -> None:
        """Let all who wait look up."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more: nothing will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def await_any(self, patience: float) -> bool:
        """Wait until there is something to give; tell whether there is."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, patience)
            return bool(self._waiting)

    def await_topics(self, patience: float) -> list[str] | None:
        """Wait until something is not committed; give the topics of that, or None."""
        with self._changed:
            self._changed.wait_for(self._has_any, patience)
            parts = [*self._waiting, *(one for g in self._given.values() for one in g.parts)]
            topics = {
                topic for part in parts for topic in pc.unique(part.rows["topic"]).to_pylist()
            }
            return sorted(topics) if parts else None

    def _has_any(self) -> bool:
        # A batch that was given empty is nothing to wake up for.
        given = any(one.parts for one in self._given.values())
        return bool(self._waiting) or given or self._closed

    def give(self, batch: int, most_records: int, most_bytes: int) -> GivenBatch:
        """Return records for a batch: the same ones when it is asked for again.

        At least one poll's worth that cannot be cut comes, also where it is too large.

        Raises
        ------
        LateRequestError
            The batch is committed: what it had is not there any more, and nothing new is its own.
        """
        with self._changed:
            if batch <= self._committed:
                raise LateRequestError(f"batch {batch} is committed already")
            if batch not in self._given:
                self._given[batch] = self._take(most_records, most_bytes)
                self._changed.notify_all()
            return self._given[batch]

    def _take(self, records: int, size: int) -> GivenBatch:
        given = GivenBatch()
        while self._waiting and records > 0 and size > 0:
            polled = self._pop()
            fitting, rest = polled.cut(min(records, _rows_in(polled, size)))
            if fitting is None and not given.parts:
                fitting, rest = polled, None
            if rest is not None:
                self._put(rest, at_end=False)
            if fitting is None:
                break
            given.parts.append(fitting)
            records -= fitting.count
            size -= fitting.size
            if rest is not None:
                break
        return given

    def _pop(self) -> Polled:
        polled = self._waiting.popleft()
        self.records -= polled.count
        self.bytes -= polled.size
        return polled

    def commit(self, batch: int) -> list[tuple[Position, Position | None]]:
        """Forget what was given up to a batch; give the positions that are committed with it."""
        with self._changed:
            done = GivenBatch()
            self._committed = max(self._committed, batch)
            for number in sorted(one for one in self._given if one <= batch):
                done.parts += self._given.pop(number).parts
            return done.positions()

    def rewind(self) -> None:
        """Take back all that was given and is not committed: it is given again."""
        with self._changed:
            for number in sorted(self._given, reverse=True):
                for part in reversed(self._given.pop(number).parts):
                    self._put(part, at_end=False)
            self._changed.notify_all()


def _rows_in(polled: Polled, size: int) -> int:
    if polled.size <= size:
        return polled.count
    return max(1, size * polled.count // polled.size)


def source_terms(config: Config) -> Terms:
    """Return what the config of a source task asks of the data plane."""
    return Terms(queues=config["topic.creation.default.partitions"])


#: Seconds between two polls that give nothing and do not wait themselves: the first, the longest.
_IDLE_FIRST, _IDLE_MOST = 0.005, 0.2
#: Seconds that a wait takes where an event would end it; they only bound what is lost by a bug.
_LOOK = 1.0


class SourceUnit(RunningUnit):
    """Polls the task ahead of the engine, as far as there is room."""

    def __init__(self, told: Told, control: ChildEnd, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._ahead = Ahead(told.ahead_records, told.ahead_bytes)
        #: Where the connector is, as the task sees it, and what of that its own record has.
        self._committed, self._recorded = CommittedPositions(()), CommittedPositions(())
        self._commit_due = threading.Event()
        #: The beginning of what is ahead by which the task has started; 0: it never has.
        self._beginning = 0
        #: The topics that it has written to, with the number of queues that each shall have.
        self._topics: dict[str, int | None] = {}
        self._connector: SourceConnector
        self._config: Config
        self._task: SourceTask
        self._chain: SourceChain
        self._serving: Serving
        #: What the engine does in the task's place.
        self._in_engine: Mapping[str, Any] | None = None

    def make(self) -> None:
        """Import the plugin and make the task with its context."""
        told = self._told
        self._connector, self._config = connector_of(self, told, self._life.masking)
        config = self._config
        self.terms = source_terms(config)
        self.make_instance()
        with self.in_call("in_engine()"):
            self._in_engine = self._task.in_engine(config)
        with self.in_call("making its converters and transforms"):
            self._chain = source_chain(
                told.connector,
                told.task,
                config.texts,
                wait=self._life.stopping.wait,
                masking=self._life.masking,
                catalog=catalog(told.modules),
            )
        self._chain.handling.task_retrying.heard = self._life.waits
        self._serving = Serving(Path(told.address), self._answer, self._life.break_off)

    @property
    def instance(self) -> SourceTask:
        """The task."""
        return self._task

    def make_instance(self) -> None:
        """Make the task with its context."""
        told = self._told
        context = HostedSourceTask(
            told.connector, self._config, self._control, self._life, self._committed
        )
        context.task = told.task
        context.generation = told.generation
        self._task = self._connector.task()
        self._task.context = context

    def await_start(self) -> bool:
        """Wait until the engine says where the source is: that is known once its epoch is open."""
        self._control.tell(Listens(self._serving.address, self.terms))
        stopping = self._life.stopping.is_set
        with self.in_call("the opening of its epoch"):
            while not (stopping() or self._ahead.beginning):
                self._ahead.await_change(_LOOK, lambda: not (stopping() or self._ahead.beginning))
        return not stopping()

    def start(self) -> str:
        """Call ``start``."""
        self._beginning = self._ahead.beginning
        self.start_instance(self._config, self._chain.handling.task_retrying)
        return self._serving.address

    def work(self) -> None:
        """Poll while there is room, and pass commits on."""
        idle = Backoff(_IDLE_FIRST, _IDLE_MOST)
        while not self._life.stopping.is_set():
            if self._beginning != self._ahead.beginning:
                self._begin_anew()
            self._pass_commit_on()
            if self._life.paused.is_set() or not self._ahead.has_room():
                self._ahead.await_change(_LOOK, self._must_wait)
                continue
            if self._poll():
                idle.reset()
            else:
                self._life.stopping.wait(idle.next())

    def _must_wait(self) -> bool:
        life = self._life
        if self._beginning != self._ahead.beginning:
            return False
        return not (life.stopping.is_set() or self._commit_due.is_set()) and (
            life.paused.is_set() or not self._ahead.has_room()
        )

    def _begin_anew(self) -> None:
        """Start another task in place of the one that was told other positions."""
        self._commit_due.clear()
        with self.in_call("stop()"):
            self._task.stop()
        self.make_instance()
        with self.in_call("start()"):
            self.start()

    def _poll(self) -> bool:
        """Poll once; tell whether the next poll may come at once."""
        before, beginning = time.monotonic(), self._beginning
        with self.in_call("poll()"):
            polled = self._chain.poll(self._task)
        if polled is None or (not polled and not isinstance(polled, SourceBatch)):
            # A poll that waited for records has done the waiting.
            return time.monotonic() - before > _IDLE_FIRST
        with self.in_call("converters and transforms"):
            ready = Polled(*self._chain.encode(polled))
        self._tell_topics(ready)
        self._ahead.add(ready, beginning)
        return True

    def _tell_topics(self, ready: Polled) -> None:
        for topic in pc.unique(ready.rows["topic"]).to_pylist():
            if topic not in self._topics:
                with self.in_call("queues_of()"):
                    self._topics[topic] = self._task.queues_of(topic)
                self._control.tell(TopicTouched(topic))

    def _pass_commit_on(self) -> None:
        if self._commit_due.is_set():
            self._commit_due.clear()
            with self.in_call("commit()"):
                self._chain.handling.task_retrying.call(self._task.commit)

    def stop(self) -> None:
        """Call ``stop``, after a last ``commit`` where one is due."""
        self._ahead.close()
        try:
            if not self._life.failed:
                self._pass_commit_on()
        finally:
            if self._beginning:
                with self.in_call("stop()"):
                    self._task.stop()
            self._chain.close()
            self._serving.close()

    def wake(self) -> None:
        """Let the thread that polls look up."""
        self._ahead.wake()

    def counted(self) -> Mapping[str, int]:
        """Count what its converters, its transforms and its task have refused."""
        return self._chain.handling.counters.statistics().metrics()

    def _answer(self, header: dict[str, Any], _records: pa.RecordBatch | None) -> Answer:
        """Answer a request of the engine; no plugin code runs here."""
        match header["op"]:
            case "poll":
                return self._give(header)
            case "begin":
                self._begin(header)
            case "committed":
                self._learn_of_commit(header["batch"])
                self._commit_due.set()
                self._ahead.wake()
            case "rewind":
                self._ahead.rewind()
            case "ready":
                wait = header.get("wait_ms", 0) / 1000
                found = self._ahead.await_topics(wait)
                topics = {topic: self._topics.get(topic) for topic in found or ()}
                more = self._ahead.records
                return {"ready": found is not None, "topics": topics, "more": more}, None
            case "in_engine":
                return {"work": self._in_engine}, None
            case "counters":
                return {"counters": asdict(self._chain.handling.counters.statistics())}, None
            case other:
                raise RequestRefused(f"a source task does not know the request {other!r}")
        return {}, None

    def _begin(self, header: dict[str, Any]) -> None:
        """Have the task start where the open record has it, unless it goes on from there."""
        self._learn_of_commit(header["batch"])
        recorded: list[tuple[Position, Position]] = header["positions"]
        if self._ahead.beginning and self._recorded.is_all(recorded):
            return
        self._recorded.replace(recorded)
        self._committed.replace(recorded)
        self._committed.update(header["elsewhere"])
        self._ahead.begin_anew()

    def _learn_of_commit(self, batch: int) -> None:
        positions = self._ahead.commit(batch)
        self._recorded.update(positions)
        self._committed.update(positions)

    def _give(self, header: dict[str, Any]) -> Answer:
        self._ahead.await_any(header.get("wait_ms", 0) / 1000)
        try:
            given = self._ahead.give(header["batch"], header["max_records"], header["max_bytes"])
        except LateRequestError as error:
            raise RequestRefused(str(error)) from None
        rows = given.rows()
        return {"positions": given.positions()}, rows
