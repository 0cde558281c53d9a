"""The worker: sees to it that what the log wants runs, and never runs a plugin itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.connect.levels import Loggers
from headrace.connect.lifecycle import (
    Cause,
    OutsideChanged,
    Phase,
    ReconfigureAsked,
    Target,
    UnitState,
)
from headrace.connect.log import (
    ClusterView,
    CompactedRecord,
    ConnectorDeleted,
    ConnectorEntry,
    ConnectorPut,
    LevelSet,
    Log,
    Outcome,
    Record,
    RestartAsked,
    TopicUsed,
)
from headrace.connect.worker.catalog import PluginDescription, PluginInspector
from headrace.connect.worker.following import LogFollower, new_request
from headrace.connect.worker.launching import (
    Host,
    HostSpec,
    Launcher,
    Remark,
    UnitCopy,
)
from headrace.connect.worker.lease import JoinAgain, WorkerMembership, WorkerRights
from headrace.connect.worker.outbox import Outbox
from headrace.connect.worker.planning import PassPlan, Periodic, WorkerStatistics, may_start, plan
from headrace.connect.worker.reporting import AutoRestarts, Startup
from headrace.connect.worker.roster import Forgetting, Roster, TaskReconfiguration
from headrace.connect.worker.settings import MEMORY_KEY, WorkerSettings, limits_of, memory_of
from headrace.errors import ConnectNotFoundError, WorkerStoppingError

if TYPE_CHECKING:
    from headrace.connect.naming import UnitId
    from headrace.watched import OnFailure


# What a host is to run, put together from what the log says of its connector.


def host_spec(
    unit: UnitId, entry: ConnectorEntry, plugin: PluginDescription, settings: WorkerSettings
) -> HostSpec:
    """Return what the host of a copy is to run.

    A connector whose config limits its own memory has a host of its own: a limit bounds a process.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, fold
    >>> from headrace.connect.worker import WorkerSettings
    >>> from headrace.connect.worker.catalog import PluginDescription
    >>> put = ConnectorPut(request="a", name="orders", config={"connector.class": "datagen"})
    >>> view, _ = fold(ClusterView(), put, 0)
    >>> (unit,) = view.units()
    >>> plugin = PluginDescription(class_name="shop.DataGen", type="source")
    >>> host_spec(unit, view.entries["orders"], plugin, WorkerSettings(share_hosts=True)).shares
    'shop.DataGen'
    """
    config = dict(entry.config)
    if unit.task is not None:
        # A task gets all that its connector was told, too: converters, error handling ...
        config |= entry.tasks[unit.task].config
    shares = settings.share_hosts and unit.task is None and not entry.config.get(MEMORY_KEY)
    return HostSpec(
        kind="connector" if unit.task is None else "task",
        connector=unit.connector,
        kept_as=entry.kept_as,
        task=unit.task,
        tasks=max(1, len(entry.tasks)),
        generation=unit.generation,
        config=config,
        memory_mb=memory_of(entry.config, settings),
        role=plugin.role,
        paused=entry.target is Target.PAUSED,
        shares=plugin.class_name if shares else "",
    )


logger = logging.getLogger(__name__)

#: A pass that is so many intervals late means that the event loop stands still.
_STUCK = 3
#: Of a worker that ends, seconds from the cancel to the kill: its engine has to go as well.
_LAST_CANCEL = 1.0


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
    join_again
        Makes it a member of its cluster anew.
    heir
        Whether nothing can be left of an earlier worker of its name.
    startup
        Takes what it does until it can work.
    """

    def __init__(
        self,
        log: Log,
        launcher: Launcher,
        settings: WorkerSettings,
        join_again: JoinAgain,
        *,
        heir: bool = True,
        startup: Startup | None = None,
    ) -> None:
        self.settings = settings
        self.name = self.settings.name
        #: What it does until it can work.
        self.startup = Startup(self.name) if startup is None else startup
        self.catalog = PluginInspector(launcher)
        #: Levels of loggers, here and in all processes that run for it.
        self.loggers = Loggers(launcher.set_level)
        self._launcher = launcher
        self._heir = heir
        self._follower = LogFollower(log, self._heard)
        self._outbox = Outbox(self._follower, self.name, self._dropped, self.end_by)
        self._membership = WorkerMembership(settings, log, self._follower, launcher, join_again)
        interval = min(settings.pass_interval.total_seconds(), self._membership.interval)
        self._passes = Periodic(self._pass, interval, name="connect-passes", on_failure=self.end_by)
        self.restarts = AutoRestarts(self._restart_by_itself)
        self._roster = Roster()
        self._reconfiguration = TaskReconfiguration(self, settings.call_timeout.total_seconds())
        self._forgetting = Forgetting(self, launcher)
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = "starting"
        #: The error that has ended a part of the worker, which has to end then.
        self.failure: BaseException | None = None
        #: Told of it.
        self.on_failure: OnFailure = lambda _error: None
        #: What has failed by itself, and not because it was stopped without its doing.
        self._failures: set[UnitId] = set()
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
    def is_cut_off(self) -> bool:
        """Whether it has not read its log for so long that it stops what it runs."""
        return self._state == "running" and not self._runs_well()

    @property
    def running(self) -> tuple[UnitId, ...]:
        """Tasks that run on this worker, as an immutable snapshot; from any thread."""
        return self._roster.running

    def copies(self) -> list[UnitCopy]:
        """Return all copies that are not proven gone, and the last ended one of each unit."""
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
        """Return why the worker cannot do its work, or None."""
        if self.failure is not None:
            return f"a part of the worker has ended by {self.failure!r}"
        if self._follower.lost is not None:
            return f"the log cannot be read: {self._follower.lost}"
        if self.is_cut_off:
            return self._membership.trouble
        if (since := self._outbox.failing_for) is not None:
            return f"the log has not been writable for {since:.0f} s: {self._outbox.failure}"
        if self._state != "running" or self._passes.last_run is None:
            return None
        late = asyncio.get_running_loop().time() - self._passes.last_run
        if late > _STUCK * self.settings.pass_interval.total_seconds():
            return f"the last pass over all units was {late:.0f} s ago"
        return None

    def waits(self) -> str | None:
        """Return what the worker waits for before it is ready, or None."""
        if not self.view.connectors():
            return None
        made = self.view.assignment
        if made is None:
            return "no worker of its cluster has shared the work out yet"
        return "its cluster counts it as lost" if self.name in made.lost else None

    async def start(self) -> None:
        """Read the log to its end, settle what a predecessor left, and begin."""
        self.startup.step("reads its log")
        await self._follower.replay()
        self._follower.start()
        self._outbox.start()
        left = list(self.view.alive(self.name))
        if left and not self._heir:
            self.startup.step("waits until others may run what an earlier one of its name ran")
            await self._membership.outlive()
        self._membership.begin()
        for status in left:
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
            self.restarts.keep_only(set())
        for copy in self._roster:
            copy.limits = replace(copy.limits, cancel=min(copy.limits.cancel, _LAST_CANCEL))
            copy.stop(force=force)
        await self._roster.until_empty(self._patience())
        if self._state == "stopping":
            self._state = "stopped"
            await self._passes.stop()
            await self._outbox.stop()
            await self._reconfiguration.stop()
            await self._forgetting.stop()
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

    async def catch_up(self) -> None:
        """Read the log as far as it goes by now, whoever writes it.

        Raises
        ------
        WorkerStoppingError
            The worker does not take requests now.
        """
        # Void, as nothing has this version; once it is read back, so is all before it.
        await self.append(
            ConnectorPut(request=new_request(), name="", config={}, expected_version=-1)
        )

    def require_read(self) -> None:
        """Refuse to tell anything before the log was read to its end."""
        if self._state == "starting":
            self.require_running()

    def require_running(self) -> None:
        """Refuse requests before the log was read, and when the worker is about to end."""
        if self._runs_well() and self._follower.lost is None:
            return
        text = {
            "starting": "the worker has not read its log to the end yet",
            "running": "the worker has lost its log, or has been cut off from it",
        }.get(self._state, "the worker is about to end and takes no requests")
        raise WorkerStoppingError(text, hint="try again, or ask another worker")

    def wakeup(self) -> None:
        """Have a pass made at once; from any thread."""
        self._passes.wakeup()

    def end_by(self, error: BaseException) -> None:
        """End, as a part of the worker has ended by an error."""
        self.failure = self.failure or error
        self.on_failure(error)

    def host_of(self, unit: UnitId) -> Host | None:
        """Return the process of a copy that is here and not proven gone."""
        copy = self._roster.get(unit)
        return None if copy is None or copy.unit.gone else copy.host

    def fail(self, unit: UnitId, cause: Cause) -> None:
        """Have a copy end in Error, if it is here."""
        copy = self._roster.get(unit)
        if copy is not None:
            copy.fail(cause)

    # What copies and the outbox tell.

    def record(self, copy: UnitCopy, state: UnitState) -> None:
        """Write a copy's new state to the log.

        Caller: Copy.
        """
        self._roster.note(copy, state)
        if state.phase is Phase.ERROR and self._runs_well():
            self._failures.add(copy.id)
        if state.gone:
            self.restarts.ran(copy.id, copy.ran_for, self._config(copy.id.connector))
        if copy.by_another:
            self.restarts.owe(copy.id)
        self._outbox.put(copy, state, self._target(copy.id.connector))
        # A connector that has failed takes its tasks along, whatever the log takes.
        self._passes.wakeup()

    def released(self, copy: UnitCopy) -> None:
        """Let a copy go once its last state is in the log.

        Caller: Copy.
        """
        if self._follower.lost is None:
            self._outbox.drop(copy)
        else:  # nobody will hear of it
            self._roster.drop(copy)

    def heard(self, copy: UnitCopy, event: Remark) -> None:
        """Note what a copy says beside its state.

        Caller: Copy.
        """
        name = copy.id.connector
        if isinstance(event, ReconfigureAsked):
            self._reconfiguration.want(name)
        elif isinstance(event, OutsideChanged):
            logger.info("%s is started again: a value from outside has changed", name)
            again = RestartAsked(request=new_request(), name=name, tasks="all")
            self._spawn(self._try_append(again))
        elif (entry := self.view.connector(name)) and event.topic not in entry.topics:
            self._spawn(self._try_append(TopicUsed(name=name, topic=event.topic)))

    def _dropped(self, copy: UnitCopy) -> None:
        """Forget a copy whose end is in the log.

        Caller: Outbox.
        """
        self._passes.wakeup()
        # One in New has been claimed, and was not started.
        stopped = self._state == "stopping" or copy.unit.phase in {Phase.ERROR, Phase.NEW}
        if stopped and copy.id not in self._failures:
            self._outbox.unassign(copy, self._target(copy.id.connector))
        self._failures.discard(copy.id)
        self._roster.drop(copy)

    def _heard(self, record: Record | CompactedRecord) -> None:
        # The listener of configs: what is put or deleted is acted upon at once.
        self._passes.wakeup()
        if isinstance(record, ConnectorDeleted):
            self.restarts.forget_all(record.name)
        if isinstance(record, LevelSet):
            try:
                self.loggers.set(record.logger, record.level)
            except ConnectNotFoundError as error:  # another release knows more levels
                logger.warning("a level is not set here: %s", error)

    def _runs_well(self) -> bool:
        return self._state == "running" and self._membership.standing() is WorkerRights.HELD

    async def _pass(self) -> None:
        standing = self._membership.standing()
        if self._state != "running":
            return  # it stops what it runs, and keeps its lease for as long as that takes
        silent = (self._outbox.failing_for or 0.0) > self.settings.fence_after.total_seconds()
        if silent or standing is not WorkerRights.HELD:
            await self._halt(standing)
            return
        found = plan(self.view, self.name, self._roster.units(), self._mine)
        self._apply(found)
        self._reconfiguration.ask(found.asks)
        self._forgetting.consider(first=self._is_first())

    async def _halt(self, standing: WorkerRights) -> None:
        """Stop everything: nobody hears of what it does, and others may take it over."""
        for copy in self._roster:
            copy.stop(force=standing is WorkerRights.OVER)
        if standing is WorkerRights.OVER and not self._roster.units():
            await self._membership.begin_again()

    def _apply(self, found: PassPlan) -> None:
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
        """Return the worker that is to run a unit; empty: nobody yet."""
        return self.view.worker_of(connector, task) or ""

    def _is_first(self) -> bool:
        """Whether it is this worker that does what is to be done once in its cluster."""
        made = self.view.assignment
        return made is not None and made.maker == self.name

    def _mine(self, unit: UnitId) -> bool:
        return self.worker_of(unit.connector, unit.task) == self.name

    def _start(self, unit: UnitId) -> None:
        entry = self.view.connector(unit.connector)
        assert entry is not None

        async def prepare() -> HostSpec:
            plugin = await self.catalog.of(entry.config)
            return host_spec(unit, entry, plugin, self.settings)

        limits = limits_of(entry.config, self.settings)
        copy = UnitCopy(unit, prepare, limits, self._launcher, self)
        self._roster.add(copy)
        self._spawn(self._claim(copy))

    async def _claim(self, copy: UnitCopy) -> None:
        """Start a copy if it still is to run when the log tells everybody that it is about to.

        Of two workers that want to run a unit, as one of them is behind in the log, the later one
        finds the claim of the other; and who is behind finds that the unit is not its own any more.
        """
        await self._outbox.claim(copy, self._target(copy.id.connector))
        if copy.unit.gone:
            return
        held = self._roster.units()
        if self._runs_well() and may_start(self.view, self.name, held, self._mine, copy.id):
            copy.start()
        else:
            copy.stop()

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
