"""What is told of connectors and tasks, from the view and from the worker's own copies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.backoff import Backoff
from headrace.connect.config.declaration import COMMON
from headrace.connect.lifecycle import Figures, KafkaState, Phase, Target, UnitState, kafka_state

if TYPE_CHECKING:
    from headrace.connect.log import ClusterView, ConnectorEntry, StatusSet
    from headrace.connect.naming import UnitId
    from headrace.connect.worker.catalog import PluginInspector
    from headrace.connect.worker.launching import Host, UnitCopy


# Restarts: what a request for one means now, and those that the worker makes by itself.


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart does, as things stand.

    Examples
    --------
    >>> from headrace.connect.log import ConnectorEntry
    >>> entry = ConnectorEntry(name="a", config={}, version=1, created=0, changed=0, generation=0)
    >>> RestartPlan.of(entry, include_tasks=True, only_failed=True)
    RestartPlan(connector=False, tasks=frozenset())
    """

    connector: bool
    tasks: frozenset[int]

    @classmethod
    def of(cls, entry: ConnectorEntry, *, include_tasks: bool, only_failed: bool) -> RestartPlan:
        """Choose what is restarted."""
        tasks = range(len(entry.tasks)) if include_tasks else ()
        return cls(
            connector=entry.failed() or not only_failed,
            tasks=frozenset(n for n in tasks if entry.failed(n) or not only_failed),
        )


def pauses(config: Mapping[str, str], attempt: int) -> timedelta | None:
    """Return the pause before a restart, or None where there is none.

    Parameters
    ----------
    config
        Of the connector.
    attempt
        Restarts in a row that have been made.

    Examples
    --------
    >>> [pauses({"restart.max.attempts": "2"}, n) for n in (0, 1, 2)]
    [datetime.timedelta(seconds=1), datetime.timedelta(seconds=2), None]
    >>> pauses({}, 0) is None
    True
    """
    most = COMMON.value("restart.max.attempts", config)
    if 0 <= most <= attempt:
        return None
    first = COMMON.value("restart.pause.ms", config).total_seconds()
    return timedelta(seconds=Backoff(first, _longest(config)).after(attempt + 1))


class AutoRestarts:
    """Restarts of failed units: of those whose config asks for it, and of those that did nothing.

    Parameters
    ----------
    restart
        Asks for the restart of a unit.
    """

    def __init__(self, restart: Callable[[UnitId], None]) -> None:
        self._restart = restart
        #: Units that have failed by the doing of others.
        self._owed: dict[tuple[str, int | None], UnitId] = {}
        self._attempts: dict[tuple[str, int | None], int] = {}
        self._timers: dict[tuple[str, int | None], tuple[UnitId, asyncio.TimerHandle]] = {}

    def attempts(self, unit: UnitId) -> int:
        """Restarts in a row that a unit has had."""
        return self._attempts.get((unit.connector, unit.task), 0)

    def due_in(self, unit: UnitId) -> float | None:
        """Seconds until a unit is restarted, where it will be."""
        waiting = self._timers.get((unit.connector, unit.task))
        if waiting is None or waiting[0] != unit:
            return None
        return max(0.0, waiting[1].when() - asyncio.get_running_loop().time())

    def owe(self, unit: UnitId) -> None:
        """Restart a unit once whatever its config says, as it has failed by another's doing."""
        self._owed[unit.connector, unit.task] = unit

    def consider(self, unit: UnitId, config: Mapping[str, str]) -> None:
        """Restart a failed unit after a pause, if its config says so, or if it is owed that."""
        key = (unit.connector, unit.task)
        waiting = self._timers.get(key)
        if waiting is not None and waiting[0] == unit:
            return
        self.forget(unit)
        pause = pauses(config, self._attempts.get(key, 0))
        if pause is None and self._owed.get(key) == unit:
            pause = COMMON.value("restart.pause.ms", config)
        if pause is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(pause.total_seconds(), self._fire, unit)
            self._timers[key] = unit, timer

    def ran(self, unit: UnitId, seconds: float, config: Mapping[str, str]) -> None:
        """Note for how long a copy has run: who ran for long begins to count anew."""
        if seconds > _longest(config):
            self._attempts.pop((unit.connector, unit.task), None)

    def forget(self, unit: UnitId) -> None:
        """Take back a restart that is due."""
        waiting = self._timers.pop((unit.connector, unit.task), None)
        if waiting is not None:
            waiting[1].cancel()

    def forget_all(self, connector: str) -> None:
        """Take back all restarts of a connector and its tasks, and begin to count anew."""
        for unit, _ in list(self._timers.values()):
            if unit.connector == connector:
                self.forget(unit)
        self._attempts = {key: n for key, n in self._attempts.items() if key[0] != connector}
        self._owed = {key: one for key, one in self._owed.items() if key[0] != connector}

    def keep_only(self, failed: set[UnitId]) -> None:
        """Take back the restarts of all units but these."""
        for unit, _ in list(self._timers.values()):
            if unit not in failed:
                self.forget(unit)

    def _fire(self, unit: UnitId) -> None:
        key = (unit.connector, unit.task)
        self._timers.pop(key, None)
        self._owed.pop(key, None)
        self._attempts[key] = self._attempts.get(key, 0) + 1
        self._restart(unit)


def _longest(config: Mapping[str, str]) -> float:
    longest: timedelta = COMMON.value("restart.pause.max.ms", config)
    return longest.total_seconds()


# What a worker tells of itself, in the shapes of Kafka Connect's REST API.


class WorkerInfo(msgspec.Struct, frozen=True):
    """Who answers."""

    #: Level of Kafka Connect's API that is spoken, a dash, and our own version.
    version: str
    commit: str
    #: Name of the cluster of brokers.
    kafka_cluster_id: str


class Health(msgspec.Struct, frozen=True):
    """Whether the worker can do its work."""

    #: ``healthy``, ``starting``, ``stopping`` or ``unhealthy``; ``alive`` of one that answers.
    status: str
    message: str


class TaskRef(msgspec.Struct, frozen=True):
    """A task by its connector and number."""

    connector: str
    task: int


class ConnectorInfo(msgspec.Struct, frozen=True):
    """A connector: what it is to do."""

    name: str
    config: dict[str, str]
    tasks: list[TaskRef]
    #: ``source``, ``sink``, or ``unknown`` where its plugin is gone.
    type: str


class TaskInfo(msgspec.Struct, frozen=True):
    """A task: what it is to do."""

    id: TaskRef
    config: dict[str, str]


class UnitStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a connector is doing."""

    state: str
    worker_id: str
    trace: str = ""
    version: str = ""


class TaskStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a task is doing."""

    id: int
    state: str
    worker_id: str
    trace: str = ""
    version: str = ""
    #: What it waits for outside, while it runs as far as it can.
    waits_for: str = ""


class ConnectorStatus(msgspec.Struct, frozen=True):
    """How a connector and its tasks are doing."""

    name: str
    connector: UnitStatus
    tasks: list[TaskStatus]
    type: str


class OffsetEntry(msgspec.Struct, frozen=True):
    """Where a connector is in one partition of what it reads."""

    partition: dict[str, Any]
    #: None: from the beginning again.
    offset: dict[str, Any] | None


class PluginInfo(msgspec.Struct, frozen=True, rename={"class_name": "class"}, omit_defaults=True):
    """A plugin that connectors can use."""

    class_name: str
    type: str
    version: str
    #: Why it cannot be used.
    error: str = ""


class UnitReport(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a connector or task on this worker, in full."""

    connector: str
    #: None: the connector itself.
    task: int | None
    generation: int
    phase: str
    #: Seconds since the phase began.
    since: float
    worker_id: str
    #: Whether it had to be killed.
    forced: bool
    ending: str | None
    error: str | None
    #: What it waits for outside.
    waits_for: str | None
    pid: int | None
    pid_alive: bool
    #: Rungs of the stop ladder that were taken, with seconds after the first.
    rungs: list[dict[str, Any]]
    #: Restarts by the worker itself since the unit was last well.
    restarts: int
    #: Seconds until the next one.
    restarts_in: float | None
    #: What the task has moved; None until the data plane tells.
    figures: Figures | None = None
    #: What has failed in the task since it started, by Kafka Connect's names.
    errors: Mapping[str, int] | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the config log, as it stands: also what is deleted."""

    key: str
    position: int
    deleted: bool
    value: Any


# Where connectors are in what they read: kept by the data plane, shown and set by REST.


class PositionStore(Protocol):
    """The positions that the data plane has committed, under a name that is mostly the connector's.

    Those of a source are its own; those of a sink have the partition ``rocketmq_topic``,
    ``rocketmq_broker``, ``rocketmq_queue_id`` and the offset ``rocketmq_queue_offset``.
    """

    async def read(self, kept_as: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Return what is committed."""

    async def alter(
        self, kept_as: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Commit other positions; the connector does not run."""

    async def reset(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Forget all positions; the connector does not run."""


# What a worker does before it can work: told in its log, and by REST from the first second.

logger = logging.getLogger(__name__)


class Startup:
    """The steps of a worker's start.

    Parameters
    ----------
    worker
        Name of the worker.

    Examples
    --------
    >>> startup = Startup("w1")
    >>> startup.step("starts Spark")
    >>> startup.health().message
    'Worker is still starting up. Worker w1 starts Spark, for 0 s by now.'
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._step = "begins"
        self._since = time.monotonic()
        self._over = False

    def step(self, what: str) -> None:
        """Note what it does from now on, such as ``starts Spark``."""
        self._step, self._since = what, time.monotonic()
        logger.info("worker %s %s", self._worker, what)

    def end(self) -> None:
        """Note that the worker ends: nothing that it needs is there any more."""
        self._over = True

    def health(self) -> Health:
        """Return how far it is."""
        if self._over:
            return Health("stopping", f"worker {self._worker} is about to end")
        seconds = time.monotonic() - self._since
        doing = f"Worker {self._worker} {self._step}, for {seconds:.0f} s by now."
        return Health("starting", f"Worker is still starting up. {doing}")


_RESTARTING = "RESTARTING"


class _Worker(Protocol):
    name: str
    catalog: PluginInspector
    restarts: AutoRestarts

    @property
    def view(self) -> ClusterView: ...
    def copies(self) -> list[UnitCopy]: ...
    @property
    def is_cut_off(self) -> bool: ...
    def worker_of(self, connector: str, task: int | None) -> str: ...
    def host_of(self, unit: UnitId) -> Host | None: ...


class Reporter:
    """Puts what a worker knows into the shapes of the REST API.

    Parameters
    ----------
    worker
        Whose view and copies are told of.
    """

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker

    def role(self, entry: ConnectorEntry) -> str:
        """Return which way a connector moves data."""
        plugin = self._worker.catalog.known(entry.config.get("connector.class", ""))
        return "unknown" if plugin is None else plugin.role

    def status(self, entry: ConnectorEntry) -> ConnectorStatus:
        """Return how a connector and its tasks are doing.

        Of a stopped connector those tasks are told that are not gone yet.
        """
        numbers = set(range(len(entry.tasks)))
        if entry.target is Target.STOPPED:
            numbers |= {status.task for status in entry.alive() if status.task is not None}
        return ConnectorStatus(
            entry.name,
            self._connector_status(entry),
            [self.task_status(entry, number) for number in sorted(numbers)],
            self.role(entry),
        )

    def task_status(self, entry: ConnectorEntry, task: int) -> TaskStatus:
        """Return how a task is doing."""
        status = _last_word(entry, task)
        state, worker, trace = self._told(entry, task, status)
        waits_for = "" if status is None else status.waits_for
        return TaskStatus(task, state, worker, trace, self._version(entry), waits_for)

    def restarting(self, entry: ConnectorEntry, plan: RestartPlan) -> ConnectorStatus:
        """Return how a connector is doing that is about to be restarted."""
        now = self.status(entry)
        replace = msgspec.structs.replace
        connector = now.connector
        if plan.connector:
            connector = replace(connector, state=_RESTARTING, trace="")
        tasks = [
            replace(task, state=_RESTARTING, trace="") if task.id in plan.tasks else task
            for task in now.tasks
        ]
        return replace(now, connector=connector, tasks=tasks)

    def units(self) -> list[UnitReport]:
        """Return a report of every copy on this worker, connectors before their tasks."""
        copies = sorted(
            self._worker.copies(),
            key=lambda copy: (copy.id.connector, -1 if copy.id.task is None else copy.id.task),
        )
        return [self._report(copy) for copy in copies]

    def config_log(self, key: str | None) -> list[LogEntry]:
        """Return every name in the log, also deleted ones, key by key."""
        entries = [
            line for entry in self._worker.view.entries.values() for line in _log_lines(entry)
        ]
        return [line for line in entries if key is None or line.key == key]

    def _connector_status(self, entry: ConnectorEntry) -> UnitStatus:
        state, worker, trace = self._told(entry, None, _last_word(entry, None))
        return UnitStatus(state, worker, trace, self._version(entry))

    def _told(
        self, entry: ConnectorEntry, task: int | None, status: StatusSet | None
    ) -> tuple[str, str, str]:
        state = self._state(entry, status)
        if status is None:
            return state, self._worker.worker_of(entry.name, task), ""
        cause = status.cause
        trace = "" if cause is None else str(cause).strip()
        return state, status.worker, trace if status.phase is Phase.ERROR else ""

    def _state(self, entry: ConnectorEntry, status: StatusSet | None) -> KafkaState:
        """Return the last word on a copy in Kafka Connect's words.

        A connector is stopped when nothing of it lives any more, of whichever copy.
        """
        phase = Phase.NEW if status is None else status.phase
        if status is not None and phase is not Phase.ERROR and self._is_lost(status):
            return "UNASSIGNED"
        state, alive = kafka_state(phase, entry.target), list(entry.alive())
        if state != "STOPPED" or not alive:
            return state
        if all(map(self._is_lost, alive)):
            return "UNASSIGNED"
        ends = phase if phase in {Phase.PENDING, Phase.ERROR} else Phase.STOPPING
        return kafka_state(ends, Target.RUNNING)

    def _is_lost(self, status: StatusSet) -> bool:
        """Return whether a copy was left by a worker that is gone, and may live on there.

        What a worker that is cut off has ended, the log cannot say yet.
        """
        worker, made = self._worker, self._worker.view.assignment
        if status.gone:
            return False
        if status.worker == worker.name and worker.is_cut_off:
            return worker.host_of(status.unit) is None
        return made is not None and status.worker in made.lost

    def _version(self, entry: ConnectorEntry) -> str:
        plugin = self._worker.catalog.known(entry.config.get("connector.class", ""))
        return "" if plugin is None else plugin.version

    def _report(self, copy: UnitCopy) -> UnitReport:
        unit, restarts = copy.unit, self._worker.restarts
        loop = asyncio.get_running_loop()
        return UnitReport(
            connector=copy.id.connector,
            task=copy.id.task,
            generation=copy.id.generation,
            phase=unit.phase.value,
            since=round(loop.time() - unit.since, 3),
            worker_id=self._worker.name,
            forced=unit.forced,
            ending=None if unit.ending is None else unit.ending.value,
            error=_error(unit),
            waits_for=unit.waits_for or None,
            pid=copy.pid,
            pid_alive=copy.host is not None and not unit.gone and copy.host.alive(),
            rungs=_rungs(unit),
            restarts=restarts.attempts(copy.id),
            restarts_in=restarts.due_in(copy.id),
            figures=copy.figures,
            errors=copy.errors,
        )


def _last_word(entry: ConnectorEntry, task: int | None) -> StatusSet | None:
    """The last word on the wanted copy; of what is stopped, on the one that still lives."""
    story = entry.story_of(task)
    if entry.target is Target.STOPPED:
        return story.alive[-1] if story.alive else story.current
    return entry.status(task)


def _error(unit: UnitState) -> str | None:
    cause = unit.cause
    return None if cause is None else str(cause).strip()


def _rungs(unit: UnitState) -> list[dict[str, Any]]:
    return [
        {"step": rung.step.value, "after": round(rung.at - unit.rungs[0].at, 3)}
        for rung in unit.rungs
    ]


def _log_lines(entry: ConnectorEntry) -> Iterator[LogEntry]:
    gone, at = entry.deleted, entry.changed
    value = None if gone else {"config": entry.config, "version": entry.version}
    yield LogEntry(key=f"connector-{entry.name}", position=at, deleted=gone, value=value)
    target = None if gone else entry.target.value
    yield LogEntry(key=f"target-state-{entry.name}", position=at, deleted=gone, value=target)
    for number, task in enumerate(entry.tasks):
        yield LogEntry(
            key=f"task-{entry.name}-{number}",
            position=task.generation,
            deleted=gone or task.deleted,
            value=None if gone else task.config,
        )
