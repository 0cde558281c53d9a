"""What lies outside of a simulated world's brokers, and the connectors to it.

Logs of numbered lines come and go; a source gives each from the position that it was told.  A store
takes what a sink puts, and refuses a record that it has, as its own sinks are exactly once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    Queue,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    declare,
    key,
)
from headrace.errors import FencedError
from tests.simulation.world import ViolationError, World

__all__ = ["LINES_SOURCE", "STORE_SINK", "Outside", "Store"]

LINES_SOURCE = f"{__name__}.LinesConnector"
STORE_SINK = f"{__name__}.StoreConnector"
#: So often a connector looks which logs there are, s.
_LOOK = 0.4
_IDLE = 0.1


@dataclass
class Store:
    """Where a sink puts records: with the offsets of queues, and who may move them."""

    #: By queue and offset.
    rows: dict[tuple[Queue, int], str] = field(default_factory=dict)
    offsets: dict[Queue, int] = field(default_factory=dict)
    owners: dict[Queue, tuple[int, str]] = field(default_factory=dict)

    def claim(self, queues: Collection[Queue], generation: int, owner: str) -> None:
        """Let a task have queues, but where one of a later generation has them."""
        for queue in sorted(queues):
            if self.owners.get(queue, (0, ""))[0] > generation:
                raise FencedError(f"{queue} has another owner")
            self.owners[queue] = generation, owner

    def write(self, records: Sequence[SinkRecord], ends: Mapping[Queue, int], owner: str) -> None:
        """Take records and offsets in one transaction."""
        for queue in ends:
            if self.owners[queue][1] != owner:
                raise FencedError(f"{queue} was taken over")
        for one in records:
            place = one.queue, one.offset
            if place in self.rows:
                raise ViolationError(f"{one.value} is stored twice")
            self.rows[place] = one.value
        self.offsets |= ends


class Outside:
    """The logs, and the store.

    Parameters
    ----------
    world
        Where it is.
    """

    #: The one that connectors reach.
    here: ClassVar[Outside]

    def __init__(self, world: World) -> None:
        self.world = world
        #: How many lines each log has that there ever was.
        self.lines: dict[str, int] = {}
        self.closed: set[str] = set()
        self.removed: set[str] = set()
        self.store = Store()
        self.failure: ViolationError | None = None
        self._owners = itertools.count(1)

    def write(self, log: str, count: int, *, last: bool) -> None:
        """Let lines be written to a log, which is made; after the last ones none comes any more."""
        self.lines[log] = self.lines.get(log, 0) + count
        if last:
            self.closed.add(log)

    def logs(self) -> list[str]:
        """Name the logs that there are."""
        self.world.pause()
        return sorted(self.lines.keys() - self.removed)

    def read(self, log: str, first: int, most: int) -> list[str]:
        """Give lines from a number on; none where the log is removed."""
        self.world.pause()
        if log in self.removed:
            return []
        return [f"{log}-{n}" for n in range(first, min(self.lines[log], first + most))]

    def remove(self, log: str) -> None:
        """Remove a log."""
        self.world.pause()
        self.world.tell(f"log {log} is removed")
        self.removed.add(log)

    def owner(self) -> str:
        """Give a mark that no other task has."""
        return f"owner-{next(self._owners)}"


def _partition(log: str) -> dict[str, str]:
    return {"log": log}


class LinesTask(SourceTask):
    """Reads some logs, each from where it was told."""

    def start(self, config: Config) -> None:
        self._topic = config["topic"]
        self._logs = [log for log in config["logs"] if log]
        self._forgets = bool(config["forgets"])
        offsets = self.context.offsets
        self._at = {log: (offsets.get(_partition(log)) or {"n": 0})["n"] for log in self._logs}
        self._forgotten: set[str] = set()
        self._turn = 0

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        if (gone := self._gone()) is not None:
            return gone
        for _ in self._logs:
            self._turn += 1
            log = self._logs[self._turn % len(self._logs)]
            at = self._at[log]
            if lines := Outside.here.read(log, at, 3):
                self._at[log] = at + len(lines)
                return self._records(log, at, lines)
        self.commit()
        self.context.stopping.wait(_IDLE)
        return None

    def _records(self, log: str, at: int, lines: list[str]) -> Sequence[SourceRecord] | SourceBatch:
        partition = _partition(log)
        if self._turn % 2:
            return [
                SourceRecord(
                    partition=partition,
                    offset={"n": number},
                    topic=self._topic,
                    key=log,
                    value=line,
                )
                for number, line in enumerate(lines, at + 1)
            ]
        return SourceBatch(
            partition=partition,
            offset={"n": at + len(lines)},
            topic=self._topic,
            key=pa.array([log] * len(lines), pa.string()),
            value=pa.array(lines, pa.string()),
        )

    def _gone(self) -> SourceBatch | None:
        """Say of a log that is removed that nobody need remember it."""
        if self._forgets:
            for partition, _ in self.context.offsets.all():
                log = partition["log"]
                if log in Outside.here.removed and log not in self._forgotten:
                    self._forgotten.add(log)
                    return SourceBatch(
                        partition=partition,
                        offset=None,
                        topic=self._topic,
                        value=pa.array([], pa.string()),
                    )
        return None

    def commit(self) -> None:
        outside = Outside.here
        for log in self._logs:
            position = self.context.offsets.get(_partition(log))
            done = position is not None and position["n"] == outside.lines[log]
            if log in outside.closed and log not in outside.removed and done:
                outside.remove(log)


class LinesConnector(SourceConnector):
    """Shares the logs out, anew when one has come or gone."""

    version = "1.0"
    task: ClassVar[type[SourceTask]] = LinesTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = declare(
        key("topic", str, "Where lines go.", required=True),
        key("logs", list, "Logs of the task.", default=[]),
        key("forgets", str, "Whether the task looks after logs that are gone.", default=""),
    )

    def start(self, config: Config) -> None:
        del config
        # Whoever asked for these tasks may have died with what it knew.
        self._known: list[str] | None = None
        threading.Thread(target=self._watch, name="logs", daemon=True).start()

    def _watch(self) -> None:
        while True:
            if (logs := Outside.here.logs()) != self._known:
                self._known = logs
                self.context.request_task_reconfiguration()
            if self.context.stopping.wait(_LOOK):
                return

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        logs = Outside.here.logs()
        tasks = max(1, min(max_tasks, len(logs)))
        return [
            {"logs": ",".join(logs[number::tasks]), "forgets": "" if number else "yes"}
            for number in range(tasks)
        ]

    def alter_offsets(self, config: Config, offsets: Any) -> bool:
        del config, offsets
        return True


class StoreTask(SinkTask):
    """Puts records into the store with their offsets, in one transaction for each flush."""

    def start(self, config: Config) -> None:
        del config
        self._owner = Outside.here.owner()
        self._gathered: list[SinkRecord] = []

    def open(self, queues: Collection[Queue]) -> None:
        self._gathered.clear()
        outside, numbers = Outside.here, sorted(queue.queue_id for queue in queues)
        outside.world.pause()
        outside.world.tell(f"{self._owner} opens queues {numbers}")
        outside.store.claim(queues, self.context.generation, self._owner)

    def offsets(self) -> Mapping[Queue, int] | None:
        kept, mine = Outside.here.store.offsets, self.context.queues
        return {queue: offset for queue, offset in kept.items() if queue in mine}

    def put(self, records: Sequence[SinkRecord]) -> None:
        self._gathered += records

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        outside = Outside.here
        outside.world.pause()
        ends = {queue.queue_id: offset for queue, offset in offsets.items()}
        outside.world.tell(f"{self._owner} stores up to {ends}")
        gathered, self._gathered = self._gathered, []
        try:
            outside.store.write(gathered, offsets, self._owner)
        except ViolationError as error:
            outside.failure = outside.failure or error
            raise
        outside.world.pause()


class StoreConnector(SinkConnector):
    """Brings topics into the store."""

    version = "1.0"
    task: ClassVar[type[SinkTask]] = StoreTask
