"""A source task in its host: polled ahead of the engine, by one thread."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute as pc

from headrace.connect.handling import SourceChain, source_chain
from headrace.connect.hosts.ahead import Ahead, LateRequestError, Polled
from headrace.connect.hosts.contexts import Committed, HostedSourceTask
from headrace.connect.hosts.life import Life, Unit
from headrace.connect.hosts.loading import catalog, connector_of
from headrace.connect.hosts.serving import Answer, Refused, Serving
from headrace.connect.hosts.terms import Terms
from headrace.connect.records import Position, SourceBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from headrace.connect.config import Config
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.spec import Told
    from headrace.connect.plugins import SourceConnector, SourceTask

__all__ = ["SourceUnit"]

#: Seconds between two polls that give nothing and do not wait themselves: the first, the longest.
_IDLE_FIRST, _IDLE_MOST = 0.005, 0.2
#: Seconds that a wait takes where an event would end it; they only bound what is lost by a bug.
_LOOK = 1.0


class SourceUnit(Unit):
    """Polls the task ahead of the engine, as far as there is room."""

    def __init__(self, told: Told, control: Control, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._ahead = Ahead(told.ahead_records, told.ahead_bytes)
        #: Where the connector is, as the task sees it, and what of that its own record has.
        self._committed, self._recorded = Committed(()), Committed(())
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
        self.terms = Terms.of_source(config)
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
        self._control.tell(
            "listens", address=self._serving.address, terms=msgspec.to_builtins(self.terms)
        )
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
        idle = _IDLE_FIRST
        while not self._life.stopping.is_set():
            if self._beginning != self._ahead.beginning:
                self._begin_anew()
            self._pass_commit_on()
            if self._life.paused.is_set() or not self._ahead.has_room():
                self._ahead.await_change(_LOOK, self._must_wait)
                continue
            if self._poll():
                idle = _IDLE_FIRST
            else:
                self._life.stopping.wait(idle)
                idle = min(2 * idle, _IDLE_MOST)

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
                self._control.tell("topic", topic=topic)

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
                return {"ready": found is not None, "topics": topics, **self._standing()}, None
            case "in_engine":
                return {"work": self._in_engine}, None
            case "counters":
                return {"counters": asdict(self._chain.handling.counters.statistics())}, None
            case other:
                raise Refused(f"a source task does not know the request {other!r}")
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
            raise Refused(str(error)) from None
        rows = given.rows()
        answer = {"count": rows.num_rows, "positions": given.positions(), **self._standing()}
        return answer, rows

    def _standing(self) -> dict[str, Any]:
        return {"more": self._ahead.records, "more_bytes": self._ahead.bytes}
