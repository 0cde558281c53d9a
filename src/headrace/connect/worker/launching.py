"""What a worker needs of whoever starts the processes in which plugins run.

A worker never imports a plugin, and never waits for one: it asks a :class:`Launcher` for a host,
a process that holds one connector or one task, and hears of it by :data:`HostEvent`.  Questions
that have an answer (which plugins there are, is this config right) go to a process that lives for
one question and is killed when it takes too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.connect.lifecycle import (
    AskStop,
    Cancel,
    CancelDone,
    Cause,
    Counted,
    Event,
    Failed,
    Figures,
    HostEvent,
    Kill,
    Launch,
    LaunchFailed,
    Listens,
    Moved,
    OutsideChanged,
    Phase,
    ReconfigureAsked,
    RecordState,
    Refuse,
    Release,
    SeekAsked,
    Start,
    Started,
    StopAsked,
    Tick,
    TopicTouched,
    UnitState,
    UnitTimeouts,
    transition,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.naming import UnitId


HostKind = Literal["connector", "task"]
"""What a host holds."""

Role = Literal["source", "sink"]
"""Which way a connector moves data."""

Question = Literal["plugins", "describe", "validate", "alter_offsets"]
"""What a process that lives for one question can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """What is to run in a host."""

    kind: HostKind
    connector: str
    #: The name under which its positions are kept; empty: its own.
    kept_as: str = ""
    #: Number of the task; None of a connector.
    task: int | None = None
    #: How many tasks the connector has.
    tasks: int = 1
    #: Stands for this copy alone; a later copy of the same unit has a higher one.
    generation: int
    config: Mapping[str, str]
    #: Megabytes that the host may use; None: no limit.
    memory_mb: int | None = None
    role: Role
    #: Whether the task starts paused.
    paused: bool = False
    #: The class with whose other connectors it may share a host; empty: it has one of its own.
    shares: str = ""


Listener = Callable[[HostEvent], None]
"""Hears of a host's events, in their order, in the event loop that asked for the host."""


class Host(Protocol):
    """A process that holds one connector or one task.

    No method waits: what comes of a call is told by events.
    """

    @property
    def pid(self) -> int:
        """Id of the process."""

    def ask_stop(self) -> None:
        """Have the host call ``stop()`` once the last ``poll`` or ``put`` is over, and exit."""

    def pause(self, *, paused: bool) -> None:
        """Stop polling and delivering, or go on; all resources stay."""

    @property
    def waits_for(self) -> str:
        """What it waits for outside, as it said last; empty: nothing."""

    async def task_configs(self) -> PluginAnswer | None:
        """Ask a connector that runs what its tasks are to do; None: it ended before it answered.

        The value is a list of ``{key: text}``.
        """

    async def cancel(self) -> None:
        """End the task's query in the data plane; a host without one returns at once."""

    def kill(self) -> None:
        """End the process and all that it forked, by SIGKILL."""

    def alive(self) -> bool:
        """Whether anything is left of it: false only when it is proven gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """A question to plugin code, answered in a process of its own.

    ===============  ======================  ===================================================
    ``what``         ``arguments``           value of the answer
    ===============  ======================  ===================================================
    `plugins`        none, or                list of ``{class, type, version, aliases, error?}``,
                     ``{only: name}``        of a class that nothing lists too, by its full name;
                                             type is ``source``, ``sink``, ``converter``,
                                             ``header_converter``, ``transformation`` or
                                             ``predicate``
    `describe`       none                    list of config keys, as Kafka Connect writes them
    `validate`       none                    ``{name, error_count, groups, configs}``, the same
    `alter_offsets`  ``{offsets: [...]}``    ``True`` where the connector has looked at them;
                                             it says no by raising
    ===============  ======================  ===================================================
    """

    what: Question
    connector_class: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginAnswer:
    """What came of a question: a value, or why there is none."""

    value: Any = None
    failure: Cause | None = None
    #: Whether the process was killed because it took too long.
    timed_out: bool = False


class Launcher(Protocol):
    """Starts hosts, and asks questions of plugins."""

    async def launch(self, spec: HostSpec, listener: Listener) -> Host:
        """Start a host; return when its process is there, before it has run any user code.

        Raises
        ------
        HeadraceError
            No process could be started.
        """

    async def call(self, call: PluginCall) -> PluginAnswer:
        """Answer a question in a process of its own, within a hard time limit; never raise."""

    def installed(self) -> object:
        """Return what plugins may be in: another value when a package comes, goes or changes."""

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger, and of those below it, in what runs and in what will."""

    def live_until(self, time: float) -> None:
        """End all hosts at that time, unless a later one is told before.

        That must not depend on this process: it may hang, or be stopped.  The clock is that of
        :func:`~headrace.leases.boot_time`.
        """

    async def forget(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Remove the positions that are kept under a name, and never will be asked for again.

        Parameters
        ----------
        kept_as
            That name.
        config
            The last config of the connector, of which nothing lives any more.

        Raises
        ------
        HeadraceError
            That cannot be done; where it is retriable, not now.
        """

    def drop_logs(self, connector: str) -> None:
        """Remove what the hosts of a connector have written."""

    async def close(self) -> None:
        """Kill what still runs, and end."""


# One copy of a connector or task: its state, its process, and what is done for it.

logger = logging.getLogger(__name__)

Prepare = Callable[[], Awaitable[HostSpec]]
"""Says what a host is to run."""


Remark = ReconfigureAsked | OutsideChanged | TopicTouched
"""What a copy says that does not concern its own state."""


class CopyOwner(Protocol):
    """Who has copies: the worker."""

    def record(self, copy: UnitCopy, state: UnitState) -> None:
        """Write a copy's new state to the log."""

    def released(self, copy: UnitCopy) -> None:
        """A copy is proven gone."""

    def heard(self, copy: UnitCopy, event: Remark) -> None:
        """A copy has said something that does not concern its own state."""


class UnitCopy:
    """One copy of a connector or task, kept until it is proven gone.

    Nothing here waits for user code: what a host does comes back as an event, and each rung of
    the stop ladder has a timer.

    Parameters
    ----------
    unit
        Which copy it is.
    prepare
        Says what is to run; where that cannot be said, the copy fails.
    limits
        How long each thing may take.
    launcher
        Makes the process.
    owner
        Hears of what happens.
    """

    def __init__(
        self,
        unit: UnitId,
        prepare: Prepare,
        limits: UnitTimeouts,
        launcher: Launcher,
        owner: CopyOwner,
    ) -> None:
        self.unit = UnitState(id=unit)
        self.host: Host | None = None
        self.paused = False
        #: Where the data plane reaches it, once it has started.
        self.address = ""
        self._prepare = prepare
        self.limits = limits
        self._running_since: float | None = None
        #: What it has moved, as far as the data plane has told.
        self.figures: Figures | None = None
        #: What has failed in it, by Kafka Connect's names, as far as it has told.
        self.errors: Mapping[str, int] | None = None
        #: Seconds for which it has run, once it does so no more.
        self.ran_for = 0.0
        self._launcher = launcher
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # What was asked of the host before it was there.
        self._asked_stop = self._killed = False
        #: Why it has failed, or what it waits for, as the log says.
        self._said = ""
        #: Whether it has failed by the doing of another unit.
        self.by_another = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> UnitId:
        """Which copy this is."""
        return self.unit.id

    @property
    def pid(self) -> int | None:
        """Id of its process, once there is one."""
        return None if self.host is None else self.host.pid

    def start(self) -> None:
        """Have its process made: the log says already that it is about to start."""
        self.handle(Start())

    def stop(self, *, force: bool = False) -> None:
        """Have it end, by the ladder or at once."""
        self.handle(StopAsked(force))

    def fail(self, cause: Cause) -> None:
        """Have it end in Error."""
        self.handle(Failed(cause))

    def pause(self, *, paused: bool) -> None:
        """Let it rest, or go on."""
        if self.paused != paused:
            self.paused = paused
            if self.host is not None and not self.unit.gone:
                self.host.pause(paused=paused)

    def handle(self, event: Event, at: float | None = None) -> None:
        """Change the state by an event, of now unless a time is given, and do what follows."""
        now = self._loop.time() if at is None else at
        self.unit, actions = transition(self.unit, event, now, self.limits)
        self._set_timer()
        self._measure()
        for action in actions:
            if isinstance(action, RecordState):
                self._tell(action.unit)
                if not isinstance(event, Start):  # its claim has said so
                    self._owner.record(self, action.unit)
            elif isinstance(action, Launch):
                self._spawn(self._launch())
            elif isinstance(action, AskStop):
                self._ask_stop()
            elif isinstance(action, Cancel):
                self._spawn(self._cancel())
            elif isinstance(action, Kill):
                self._kill()
            elif isinstance(action, Release):
                self._release()
            elif isinstance(action, Refuse):
                logger.warning("%s; %s is ignored", action.why, type(action.event).__name__)

    def _tell(self, state: UnitState) -> None:
        """Log what people look for: what has failed, or waits for something outside."""
        failed = state.phase is Phase.ERROR
        news = str(state.cause or "") if failed else state.waits_for
        if news == self._said:
            return
        if failed:
            logger.error("%s", news)
        elif news:
            logger.warning("%s waits for %s", self.id.what, news)
        elif state.phase is Phase.RUNNING:
            logger.info("%s waits no more", self.id.what)
        self._said = news

    async def _launch(self) -> None:
        try:
            spec = await self._prepare()
            host = await self._launcher.launch(spec, self._hear)
        except Exception as error:  # noqa: BLE001 - whatever it is, the unit has failed
            why = str(error) if isinstance(error, HeadraceError) else repr(error)
            cause = Cause(f"no process could be started for {self.id.what}: {why}")
            self.handle(LaunchFailed(cause))
            return
        self.host = host
        if self.paused != spec.paused:
            host.pause(paused=self.paused)
        if self._killed:
            host.kill()
        elif self._asked_stop:
            host.ask_stop()

    def _hear(self, event: HostEvent) -> None:
        match event:
            case Moved():
                self.figures = event.figures
            case Counted():
                self.errors = event.counts
            case ReconfigureAsked() | OutsideChanged() | TopicTouched():
                self._owner.heard(self, event)
            case Listens() | SeekAsked():
                pass  # the data plane has heard it
            case _:
                if isinstance(event, Started):
                    self.address = event.address
                elif isinstance(event, Failed):
                    self.by_another = event.by_another
                self.handle(event)

    def _ask_stop(self) -> None:
        self._asked_stop = True
        if self.host is not None:
            self.host.ask_stop()

    def _kill(self) -> None:
        self._killed = True
        if self.host is not None:
            self.host.kill()

    async def _cancel(self) -> None:
        if self.host is not None:
            try:
                await self.host.cancel()
            except Exception:
                logger.exception("the query of %s could not be cancelled", self.id.what)
        self.handle(CancelDone())

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.released(self)

    def _measure(self) -> None:
        runs = self.unit.phase is Phase.RUNNING
        if runs and self._running_since is None:
            self._running_since = self._loop.time()
        elif not runs and self._running_since is not None:
            self.ran_for = self._loop.time() - self._running_since
            self._running_since = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.unit.due is not None:
            self._timer = self._loop.call_at(self.unit.due, self._tick)

    def _tick(self) -> None:
        # A timer may come a little early; a due time that is not reached would be lost.
        due = self.unit.due
        now = self._loop.time()
        self.handle(Tick(), now if due is None else max(now, due))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
