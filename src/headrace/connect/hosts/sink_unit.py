"""A sink task in its host: what the engine asks is done by one thread, in its order."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.handling import SinkChain, sink_chain, takes_columns
from headrace.connect.handling.conversion import queue_runs
from headrace.connect.hosts.channel import (
    Answer,
    RequestRefused,
    Serving,
    listed,
    offsets_of,
)
from headrace.connect.hosts.control import HostedSinkTask, catalog, connector_of
from headrace.connect.hosts.life import Life, RunningUnit
from headrace.connect.lifecycle import SeekAsked, Terms, TopicTouched
from headrace.connect.records import Queue

if TYPE_CHECKING:
    from headrace.connect.channel import ChildEnd, Told
    from headrace.connect.config import Config
    from headrace.connect.plugins import SinkTask


class NextOffsets:
    """The next offset of each queue.

    A worker of Spark may die after its records were put and before it heard so; the next one
    brings them again.

    Examples
    --------
    >>> places = NextOffsets()
    >>> places.begin({}, None)
    >>> rows = pa.RecordBatch.from_pylist(
    ...     [{"topic": "t", "broker": "b", "queue": 0, "offset": at} for at in range(3)]
    ... )
    >>> places.delivered(places.only_new(rows))
    {Queue(topic='t', broker='b', queue_id=0): 3}
    >>> places.only_new(rows).num_rows
    0
    """

    def __init__(self) -> None:
        self._next: dict[Queue, int] = {}

    def begin(self, given: Mapping[Queue, int], kept: Mapping[Queue, int] | None) -> None:
        """Queues were opened: what the sink keeps itself counts before what the engine says."""
        self._next = {**given, **(kept or {})}

    def seek(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """Go on elsewhere; return those offsets from which nothing comes by itself any more."""
        # Where a queue begins that nothing has come of is known to the engine alone.
        back = {read: at for read, at in offsets.items() if at < self._next.get(read, at + 1)}
        self._next.update((read, at) for read, at in offsets.items() if read not in back)
        return back

    def reached(self, ends: Mapping[Queue, int]) -> None:
        """Everything before these offsets has been put, or was never there."""
        for read, end in ends.items():
            self._next[read] = max(end, self._next.get(read, 0))

    def only_new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what was put before."""
        parts = []
        for read, run in queue_runs(rows):
            new = pc.greater_equal(run["offset"], self._next.get(read, 0))
            parts.append(run if pc.all(new).as_py() else run.filter(new))
        kept = sum(part.num_rows for part in parts)
        return rows if kept == rows.num_rows else pa.concat_batches(parts)

    def delivered(self, rows: pa.RecordBatch) -> dict[Queue, int]:
        """These rows have been put: return the offsets behind them."""
        ends: dict[Queue, int] = {}
        for read, run in queue_runs(rows):
            ends[read] = max(pc.max(run["offset"]).as_py() + 1, ends.get(read, 0))
        self.reached(ends)
        return ends


def sink_terms(config: Config, *, columns: bool = False) -> Terms:
    """Return what the config of a sink task asks of the data plane."""
    pattern = config["topics.regex"]
    return Terms(
        topics=config["topics"],
        pattern="" if pattern is None else pattern.pattern,
        letters=config["errors.deadletterqueue.topic.name"].strip(),
        queues=config["errors.deadletterqueue.topic.queues"],
        begin=_begin(config["consume.from.where"]),
        columns=columns,
    )


def _begin(text: str) -> Literal["first", "latest"] | int:
    """Read where to begin.

    >>> _begin("Earliest"), _begin("latest"), _begin("2026-05-01T12:00:00Z")
    ('first', 'latest', 1777636800000)
    >>> _begin("2026-05-01T12:00:00.0009Z")
    1777636800000
    """
    word = text.strip().lower()
    if word == "latest":
        return "latest"
    if word in {"first", "earliest"}:
        return "first"
    from headrace.client.pulling import whole_milliseconds

    return whole_milliseconds(datetime.fromisoformat(text.strip()))


# Dead letters of a sink task, kept until the batch after theirs is flushed.


class DeadLetters:
    """What is to go to the dead-letter topic, by batch.

    Who asked for a batch's letters may have died before they were sent, so they are given again.

    Examples
    --------
    >>> letters = DeadLetters()
    >>> letters.add(1, pa.RecordBatch.from_pylist([{"topic": "dead"}]))
    >>> letters.of(1).num_rows, letters.of(2)
    (1, None)
    >>> letters.flushed(2, None)
    >>> letters.of(1) is None
    True
    """

    def __init__(self) -> None:
        self._by_batch: dict[int, list[pa.RecordBatch]] = {}

    def add(self, batch: int, letters: pa.RecordBatch | None) -> None:
        """Keep what a batch has left behind."""
        if letters is not None:
            self._by_batch.setdefault(batch, []).append(letters)

    def of(self, batch: int) -> pa.RecordBatch | None:
        """Return all letters of a batch so far."""
        kept = self._by_batch.get(batch)
        return pa.concat_batches(kept) if kept else None

    def flushed(self, batch: int, letters: pa.RecordBatch | None) -> None:
        """A batch is flushed: those before it are committed, and their letters sent."""
        self.add(batch, letters)
        for one in [one for one in self._by_batch if one < batch]:
            del self._by_batch[one]

    def clear(self) -> None:
        """Begin anew: what was not committed is put again."""
        self._by_batch.clear()


# Cutting the rows of a batch to what one call of ``put`` may get.


def pieces(rows: pa.RecordBatch, most_records: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut rows so that no piece has more records, or more bytes of keys and values; none is empty.

    A record that is larger by itself makes a piece of its own.

    >>> rows = pa.RecordBatch.from_pylist([{"key": None, "value": b"x" * n} for n in (5, 1, 9, 1)])
    >>> [part.num_rows for part in pieces(rows, 3, 7)]
    [2, 1, 1]
    >>> [part.num_rows for part in pieces(rows, 3, 1000)]
    [3, 1]
    """
    count = rows.num_rows
    if count <= most_records and rows.nbytes <= most_bytes:
        if count:
            yield rows
        return
    ends = np.cumsum(_sizes(rows.column("key")) + _sizes(rows.column("value")))
    begin = 0
    while begin < count:
        before = ends[begin - 1] if begin else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, side="right"))
        end = max(begin + 1, min(fitting, begin + most_records))
        yield rows.slice(begin, end - begin)
        begin = end


def _sizes(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    sizes = pc.fill_null(pc.binary_length(column), 0)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = sizes.to_numpy().astype(np.int64)
    return found


T = TypeVar("T")

_Request = tuple[dict[str, Any], "pa.RecordBatch | None", "Future[Answer]"]


class SinkUnit(RunningUnit):
    """Calls the task for the engine's requests."""

    def __init__(self, told: Told, control: ChildEnd, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        #: Requests that wait for the task: it has paused queues, or goes back.
        self._postponed: list[_Request] = []
        self._places = NextOffsets()
        #: Records of queues that the task has paused.
        self._held: dict[Queue, list[pa.RecordBatch]] = {}
        #: Where queues go on that the task wants to read again; its query begins anew for that.
        self._back: dict[Queue, int] = {}
        #: How far queues were put since the last flush.
        self._unflushed: dict[Queue, int] = {}
        #: Most records, and most bytes of them, that one call of ``put`` gets.
        self._most: tuple[int, int]
        #: The topics that it has read.
        self._topics: set[str] = set()
        self._chain: SinkChain
        self._letters = DeadLetters()
        self._task: SinkTask
        self._context: HostedSinkTask
        self._serving: Serving
        #: Epoch and batch of the newest request: who speaks of an older one is late.
        self._newest = (0, 0)
        #: Whether it was opened for an epoch that nobody has named yet.
        self._fenced = False
        #: The last flush that was done, and its answer: it is not done twice.
        self._flushed: tuple[object, Answer] | None = None
        #: What the engine does in the task's place.
        self._in_engine: Mapping[str, Any] | None = None

    def make(self) -> None:
        """Import the plugin and make the task with its context."""
        told = self._told
        connector, config = connector_of(self, told, self._life.masking)
        self._kind = connector.task
        columns = takes_columns(self._kind) and not config.texts.get("transforms")
        self.terms = sink_terms(config, columns=columns)
        self._most = config["batch.max.records"], config["batch.max.bytes"]
        self._context = HostedSinkTask(told.connector, config, self._control, self._life)
        self._context.task = told.task
        self._context.generation = told.generation
        self.make_instance()
        with self.in_call("in_engine()"):
            self._in_engine = self._task.in_engine(config)
        with self.in_call("making its converters and transforms"):
            self._chain = sink_chain(
                told.connector,
                told.task,
                config.texts,
                wait=self._life.stopping.wait,
                masking=self._life.masking,
                catalog=catalog(told.modules),
            )
        self._chain.handling.task_retrying.heard = self._life.waits
        self._context.reporter = lambda record, error: self._chain.report(self._task, record, error)
        self._context.changed = self.wake
        self._serving = Serving(Path(told.address), self._answer, self._life.break_off)

    @property
    def instance(self) -> SinkTask:
        """The task."""
        return self._task

    def make_instance(self) -> None:
        """Make the task with its context."""
        self._task = self._kind()
        self._task.context = self._context

    def start(self) -> str:
        """Call ``start``."""
        self.start_instance(self._context.config, self._chain.handling.task_retrying)
        return self._serving.address

    def _again(self, call: Callable[[], T]) -> T:
        """Call the task, again where it waits for something outside."""
        return self._chain.handling.task_retrying.call(call)

    def work(self) -> None:
        """Do what the engine asks for, one request at a time."""
        while not self._life.stopping.is_set():
            request, postponed = self._requests.get(), len(self._postponed)
            if request is None:
                self._look_up()
            else:
                self._serve(request)
            for _ in range(postponed):
                self._serve(self._postponed.pop(0))

    def _look_up(self) -> None:
        """Do what the task has asked for in another thread than this."""
        if self._context.open and not self._life.stopping.is_set():
            self._seek()
            self._put_held()
            self._flush_early()

    def _serve(self, request: _Request) -> None:
        header, records, done = request
        try:
            answer = self._do(header, records)
        except RequestRefused as refusal:
            done.set_exception(refusal)
        except BaseException as error:
            told = self._life.masking(f"{self._told.who} failed: {error}")
            done.set_exception(RequestRefused(told))
            raise
        else:
            if answer is None:
                self._postponed.append(request)
            else:
                done.set_result(answer)

    def _answer(self, header: dict[str, Any], records: pa.RecordBatch | None) -> Answer:
        """Hand a request over to the task's thread and wait for what comes of it."""
        if header["op"] == "counters":
            return {"counters": asdict(self._chain.handling.counters.statistics())}, None
        if header["op"] == "in_engine":
            return {"work": self._in_engine}, None
        if self._life.stopping.is_set():
            raise RequestRefused(f"{self._told.who} is stopping")
        done: Future[Answer] = Future()
        self._requests.put((header, records, done))
        if self._life.stopping.is_set():
            self._refuse_the_rest()
        return done.result()

    def _do(self, header: dict[str, Any], records: pa.RecordBatch | None) -> Answer | None:
        """Do what is asked; return nothing where that has to wait."""
        doing: dict[str, Callable[[dict[str, Any], Any], Answer | None]] = {
            "open": self._open,
            "fence": self._fence,
            "put": self._put,
            "flush": self._flush,
            "close": self._close,
            "letters": self._give_letters,
        }
        op = header["op"]
        if op not in doing:
            raise RequestRefused(f"a sink task does not know the request {op!r}")
        if op in {"put", "flush"}:
            self._refuse_late(header)
            if self._back:
                return None
        return doing[op](header, records)

    def _refuse_late(self, header: dict[str, Any]) -> None:
        """Refuse what somebody brings or makes sure of behind a batch that came after his own."""
        asked = (header.get("epoch", 0), header["batch"])
        if self._fenced or asked < self._newest:
            raise RequestRefused("batch {1} of epoch {0} is late".format(*asked))
        self._newest = asked

    def _open(self, header: dict[str, Any], _records: object) -> Answer:
        self._fenced = header.get("fenced", False)
        wanted = frozenset(Queue(*one) for one in header["queues"])
        self._close_queues(self._context.open)
        self._context.open = wanted
        for topic in sorted({one.topic for one in wanted} - self._topics):
            self._topics.add(topic)
            self._control.tell(TopicTouched(topic))
        with self.in_call("open()"):
            self._again(lambda: self._task.open(wanted))
        with self.in_call("offsets()"):
            kept = self._again(self._task.offsets)
        self._flushed = None
        self._letters.clear()
        self._held.clear()
        self._unflushed.clear()
        if self._fenced:
            # Only a query that begins can go on before the offsets that it had reached.
            sought = {**self._back, **self._context.take_seeks()}
            kept = {**(kept or {}), **sought} if sought else kept
            self._back.clear()
        self._places.begin(offsets_of(header.get("positions", ())), kept)
        self._seek()
        return {"offsets": None if kept is None else listed(kept)}, None

    def _fence(self, header: dict[str, Any], _records: object) -> Answer:
        self._newest = max(self._newest, (header["epoch"], 0))
        self._fenced = False
        # They come again with the batch that was dropped.
        self._held.clear()
        return {}, None

    def _put(self, header: dict[str, Any], records: pa.RecordBatch | None) -> Answer:
        if records is not None:
            self._deliver(records)
        ends = _ends(header.get("ranges", ()))
        self._places.reached({one: end for one, end in ends.items() if one not in self._held})
        return {}, None

    def _deliver(self, rows: pa.RecordBatch) -> None:
        """Put what is new of some rows, and keep what the task does not want now."""
        for part in pieces(rows, *self._most):
            wanted = self._wanted(self._places.only_new(part))
            if not wanted.num_rows:
                continue
            with self.in_call("put()"):
                self._chain.deliver(wanted, self._task)
            self._unflushed |= self._places.delivered(wanted)
            self._letters.add(self._newest[1], self._chain.take_letters())
            self._seek()
            self._flush_early()

    def _wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of some rows that the task takes now; keep the others until it does."""
        unwanted = self._context.paused.union(self._held, self._back)
        if not unwanted:
            return rows
        wanted = [rows.slice(0, 0)]
        for read, run in queue_runs(rows):
            if read not in unwanted:
                wanted.append(run)
            elif read not in self._back:
                self._held.setdefault(read, []).append(run)
        return pa.concat_batches(wanted)

    def _put_held(self) -> None:
        """Put the records of queues that the task has taken up again."""
        for read in [one for one in self._held if one not in self._context.paused]:
            for run in self._held.pop(read):
                self._deliver(run)

    def _seek(self) -> None:
        """Go on where the task wants to; its query begins anew where that is behind."""
        back = self._places.seek(self._context.take_seeks())
        if back and not self._back:
            self._control.tell(SeekAsked())
        self._back |= back

    def _flush_early(self) -> None:
        """Flush what was put, if the task asks for it; what is to be a dead letter waits."""
        asked = self._context.commit_asked
        if asked.is_set() and self._unflushed and not self._letters.of(self._newest[1]):
            self._call_flush(dict(self._unflushed))

    def _call_flush(self, offsets: dict[Queue, int]) -> None:
        self._context.commit_asked.clear()
        with self.in_call("flush()"):
            self._again(lambda: self._task.flush(offsets))
        self._unflushed.clear()

    def _give_letters(self, header: dict[str, Any], _records: object) -> Answer:
        return {}, self._letters.of(header["batch"])

    def _flush(self, header: dict[str, Any], _records: object) -> Answer | None:
        self._put_held()
        paused = ", ".join(sorted(f"{one.topic}@{one.broker}@{one.queue_id}" for one in self._held))
        self._life.wait_for("pause", f"the task to resume {paused}" if paused else "")
        if self._held or self._back:
            return None
        offsets = offsets_of(header["offsets"])
        asked = (header["batch"], tuple(sorted(offsets.items())))
        if self._flushed is None or self._flushed[0] != asked:
            self._call_flush(offsets)
            self._letters.flushed(header["batch"], self._chain.take_letters())
            self._seek()
            self._flushed = asked, ({"offsets": listed(offsets)}, None)
        return self._flushed[1]

    def _close(self, _header: object, _records: object) -> Answer:
        self._close_queues(self._context.open)
        return {}, None

    def _close_queues(self, queues: frozenset[Queue]) -> None:
        if queues:
            self._context.open = frozenset()
            with self.in_call("close()"):
                self._task.close(queues)

    def stop(self) -> None:
        """Close the queues that are open, then call ``stop``."""
        for request in self._postponed:
            self._requests.put(request)
        self._refuse_the_rest()
        try:
            if not self._life.failed:
                self._close_queues(self._context.open)
        finally:
            with self.in_call("stop()"):
                self._task.stop()
            self._chain.close()
            self._serving.close()

    def _refuse_the_rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if request := self._requests.get_nowait():
                    request[2].set_exception(RequestRefused(f"{self._told.who} is stopping"))

    def wake(self) -> None:
        """Let the task's thread look up."""
        self._requests.put(None)

    def counted(self) -> Mapping[str, int]:
        """Count what its converters, its transforms and its task have refused."""
        return self._chain.handling.counters.statistics().metrics()


def _ends(listed: Iterable[tuple[str, str, int, int, int]]) -> dict[Queue, int]:
    return {Queue(topic, broker, number): end for topic, broker, number, _, end in listed}
