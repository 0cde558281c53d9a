"""The worker: sees to it that what the log wants runs, and never runs a plugin itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING

from headrace.connect.lifecycle import Cause, Phase, Target
from headrace.connect.lifecycle import Record as NewState
from headrace.connect.log import (
    ClusterView,
    ConnectorEntry,
    Kept,
    LevelSet,
    Log,
    Outcome,
    Record,
    RestartAsked,
    TopicUsed,
)
from headrace.connect.worker.asking import TaskQuestions
from headrace.connect.worker.catalog import Catalog
from headrace.connect.worker.copies import Copy, Remark
from headrace.connect.worker.following import Follower
from headrace.connect.worker.launching import (
    HostSpec,
    Launcher,
    OutsideChanged,
    ReconfigureAsked,
)
from headrace.connect.worker.loggers import Loggers
from headrace.connect.worker.outbox import Outbox
from headrace.connect.worker.periodic import Periodic
from headrace.connect.worker.planning import Plan, plan
from headrace.connect.worker.requests import new_request
from headrace.connect.worker.restarts import AutoRestarts
from headrace.connect.worker.roster import Roster
from headrace.connect.worker.settings import WorkerSettings, limits_of, memory_of
from headrace.connect.worker.statistics import WorkerStatistics
from headrace.connect.worker.tidying import Tidying
from headrace.errors import ConnectNotFoundError, WorkerStoppingError

if TYPE_CHECKING:
    from headrace.connect.naming import UnitId

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

#: A pass that is so many intervals late means that the event loop stands still.
_STUCK = 3


class Worker:
    """Runs the connectors and tasks that are its own, by the log and nothing else.

    It manages life cycles only: it reads no topic, commits no position and imports no plugin.

    Parameters
    ----------
    log
        What was decided; closed by whoever opened it.
    launcher
        Starts processes; closed by whoever made it.
    settings
        How it runs.
    alone
        Whether all units are its own; else those that the newest assignment gives it.
    """

    def __init__(
        self,
        log: Log,
        launcher: Launcher,
        settings: WorkerSettings | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self.settings = WorkerSettings() if settings is None else settings
        self.name = self.settings.name
        self.catalog = Catalog(launcher)
        #: Levels of this process's loggers.
        self.loggers = Loggers()
        self._log = log
        self._launcher = launcher
        self._alone = alone
        self._follower = Follower(log, self._heard)
        self._outbox = Outbox(self._follower, self.name, self._dropped)
        interval = self.settings.pass_interval.total_seconds()
        if not alone:  # the loss of the log is noticed in time
            interval = min(interval, self.settings.fence_after.total_seconds() / 3)
        self._passes = Periodic(self._pass, interval, name="connect-pass")
        self.restarts = AutoRestarts(self._restart_by_itself)
        self._roster = Roster()
        self._questions = TaskQuestions(self, self.catalog)
        self._tidying = Tidying(log, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = "starting"
        self._failed_before: set[UnitId] = set()
        self._restarted = 0

    @property
    def view(self) -> ClusterView:
        """What is decided, as far as it was read."""
        return self._follower.view

    @property
    def state(self) -> str:
        """``starting``, ``running``, ``stopping`` or ``stopped``."""
        return self._state

    @property
    def running(self) -> tuple[UnitId, ...]:
        """Tasks that run on this worker, as an immutable snapshot; from any thread."""
        return self._roster.running

    def copies(self) -> list[Copy]:
        """Give all copies that are not proven gone, and the last ended one of each unit."""
        return self._roster.told()

    def statistics(self) -> WorkerStatistics:
        """Count what there is."""
        return WorkerStatistics(
            state=self._state,
            copies=self._roster.counts(),
            launched=self._roster.launched,
            forced=self._roster.forced,
            failed=self._roster.failed,
            restarted=self._restarted,
            passes=self._passes.runs,
            log_position=self.view.position,
            unwritten=self._outbox.waiting,
        )

    def trouble(self) -> str | None:
        """Say why the worker cannot do its work, or None."""
        if self._follower.lost is not None:
            return f"the log cannot be read: {self._follower.lost}"
        if (since := self._outbox.failing_for) is not None:
            return f"the log has not been writable for {since:.0f} s: {self._outbox.failure}"
        if self._state != "running" or self._passes.last_run is None:
            return None
        late = asyncio.get_running_loop().time() - self._passes.last_run
        if late > _STUCK * self.settings.pass_interval.total_seconds():
            return f"the last pass over all units was {late:.0f} s ago"
        return None

    async def start(self) -> None:
        """Read the log to its end, settle what a predecessor left, and begin."""
        await self._follower.replay()
        self._follower.start()
        self._outbox.start()
        for status in list(self.view.alive(self.name)):
            # The launcher has ended what a predecessor of this name left behind.
            phase = Phase.ERROR if status.phase is Phase.ERROR else Phase.NEW
            self._outbox.settle(status, phase)
        await self._outbox.written()
        self._state = "running"
        self._spawn(self.catalog.warm())
        self._passes.start()

    async def stop(self, *, force: bool = False) -> None:
        """Take nothing in, stop all units by the ladder, say so in the log, and end.

        A second call with ``force`` kills what still runs.
        """
        if self._state in {"starting", "running"}:
            self._state = "stopping"
            self._failed_before = self._roster.failures()
            await self._passes.stop()
            self.restarts.keep_only(set())
        for copy in self._roster:
            copy.stop(force=force)
        await self._roster.until_empty(self._patience())
        if self._state == "stopping":
            self._state = "stopped"
            await self._outbox.stop()
            await self._questions.stop()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._follower.stop()

    async def append(self, record: Record) -> Outcome:
        """Put a request into the log; give what became of it.

        Raises
        ------
        WorkerStoppingError
            The worker does not take requests now.
        """
        self.require_running()
        return await self._follower.append(record)

    def require_read(self) -> None:
        """Refuse to tell anything before the log was read to its end."""
        if self._state == "starting":
            self.require_running()

    def require_running(self) -> None:
        """Refuse requests before the log was read, and when the worker is about to end."""
        if self._state == "running" and self._follower.lost is None:
            return
        text = {
            "starting": "the worker has not read its log to the end yet",
            "running": "the worker has lost its log",
        }.get(self._state, "the worker is about to end and takes no requests")
        raise WorkerStoppingError(text, hint="try again, or ask another worker")

    def wakeup(self) -> None:
        """Have a pass made at once; from any thread."""
        self._passes.wakeup()

    def fail(self, unit: UnitId, cause: Cause) -> None:
        """Have a copy end in Error, if it is here."""
        copy = self._roster.get(unit)
        if copy is not None:
            copy.fail(cause)

    # What copies and the outbox tell.

    def record(self, copy: Copy, record: NewState) -> None:
        """Write a copy's new state to the log.

        Caller: Copy.
        """
        self._roster.note(copy, record)
        if record.gone:
            self.restarts.ran(copy.id, copy.ran_for, self._config(copy.id.connector))
        self._outbox.put(copy, record, self._target(copy.id.connector))
        # A connector that has failed takes its tasks along, whatever the log takes.
        self._passes.wakeup()

    def released(self, copy: Copy) -> None:
        """Let a copy go once its last state is in the log.

        Caller: Copy.
        """
        self._outbox.drop(copy)

    def heard(self, copy: Copy, event: Remark) -> None:
        """Note what a copy says beside its state.

        Caller: Copy.
        """
        name = copy.id.connector
        if isinstance(event, ReconfigureAsked):
            self._questions.want(name)
            self._passes.wakeup()
        elif isinstance(event, OutsideChanged):
            logger.info("%s is started again: a value from outside has changed", name)
            again = RestartAsked(request=new_request(), name=name, tasks="all")
            self._spawn(self._try_append(again))
        elif (entry := self.view.connector(name)) and event.topic not in entry.topics:
            self._spawn(self._try_append(TopicUsed(name=name, topic=event.topic)))

    def _dropped(self, copy: Copy) -> None:
        """Forget a copy whose end is in the log.

        Caller: Outbox.
        """
        self._passes.wakeup()
        if self._state == "stopping" and copy.id not in self._failed_before:
            self._outbox.unassign(copy, self._target(copy.id.connector))
        self._roster.drop(copy)

    def _heard(self, record: Record | Kept) -> None:
        # The listener of configs: what is put or deleted is acted upon at once.
        self._passes.wakeup()
        if isinstance(record, LevelSet):
            try:
                self.loggers.set(record.logger, record.level)
            except ConnectNotFoundError as error:  # another release knows more levels
                logger.warning("a level is not set here: %s", error)

    async def _pass(self) -> None:
        lost = max(self._outbox.failing_for or 0.0, self._log.silent_for())
        if lost > self.settings.fence_after.total_seconds():
            # Others may think that this worker is dead, and may be right soon.
            logger.error("the log is lost: everything stops until it is back")
            for copy in self._roster:
                copy.stop()
            return
        found = plan(self.view, self.name, self._roster.units(), self._mine)
        self._apply(found)
        self._questions.ask(found.asks)
        if self._alone:  # else the coordinator does it
            await self._tidying.consider()

    def _apply(self, found: Plan) -> None:
        for stop in found.stops:
            if (copy := self._roster.get(stop.unit)) is not None:
                copy.stop(force=stop.force)
        for unit in found.starts:
            self._start(unit)
        for copy in self._roster:
            copy.pause(paused=self._target(copy.id.connector) is Target.PAUSED)
        self.restarts.keep_only(set(found.failed))
        for unit in found.failed:
            entry = self.view.connector(unit.connector)
            assert entry is not None
            self.restarts.consider(unit, entry.config)

    def worker_of(self, connector: str, task: int | None) -> str:
        """Give the worker that is to run a unit; empty: nobody yet."""
        return self.name if self._alone else self.view.worker_of(connector, task) or ""

    def _mine(self, unit: UnitId) -> bool:
        return self.worker_of(unit.connector, unit.task) == self.name

    def _start(self, unit: UnitId) -> None:
        entry = self.view.connector(unit.connector)
        assert entry is not None

        async def prepare() -> HostSpec:
            return await self._spec(unit, entry)

        limits = limits_of(entry.config, self.settings)
        copy = Copy(unit, prepare, limits, self._launcher, self)
        self._roster.add(copy)
        copy.start()

    async def _spec(self, unit: UnitId, entry: ConnectorEntry) -> HostSpec:
        plugin = await self.catalog.of(entry.config)
        config = dict(entry.config)
        if unit.task is not None:
            # A task gets all that its connector was told, too: converters, error handling ...
            config |= entry.tasks[unit.task].config
        return HostSpec(
            kind="connector" if unit.task is None else "task",
            connector=unit.connector,
            task=unit.task,
            tasks=max(1, len(entry.tasks)),
            generation=unit.generation,
            config=config,
            memory_mb=memory_of(entry.config, self.settings),
            role=plugin.role,
            paused=entry.target is Target.PAUSED,
        )

    def _restart_by_itself(self, unit: UnitId) -> None:
        logger.info("%s is started again", unit.what)
        self._restarted += 1
        record = RestartAsked(
            request=new_request(),
            name=unit.connector,
            connector=unit.task is None,
            tasks=[] if unit.task is None else [unit.task],
            only_failed=True,
        )
        self._spawn(self._try_append(record))

    async def _try_append(self, record: Record) -> None:
        try:
            await self.append(record)
        except WorkerStoppingError as error:
            logger.debug("%s is not written: %s", type(record).__name__, error)

    def _target(self, connector: str) -> Target:
        entry = self.view.entries.get(connector)
        return Target.RUNNING if entry is None else entry.target

    def _config(self, connector: str) -> Mapping[str, str]:
        entry = self.view.connector(connector)
        return {} if entry is None else entry.config

    def _patience(self) -> float:
        """How long the last copy may take to be gone."""
        limits = [limits_of({}, self.settings), *(copy.limits for copy in self._roster)]
        return max(one.ask + one.cancel + one.kill for one in limits) + 2.0

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
