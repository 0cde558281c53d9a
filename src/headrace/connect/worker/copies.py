"""One copy of a connector or task: its state, its process, and what is done for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.connect.lifecycle import (
    AskStop,
    Cancel,
    CancelDone,
    Cause,
    Event,
    HostExited,
    HostFailed,
    HostStarted,
    HostStopped,
    Kill,
    Launch,
    LaunchFailed,
    Phase,
    ProbeFailed,
    ProbePassed,
    RecordState,
    Refuse,
    Release,
    Start,
    StopAsked,
    StopFailed,
    Tick,
    UnitState,
    UnitTimeouts,
    Waits,
    transition,
)
from headrace.connect.worker import launching
from headrace.connect.worker.launching import Host, HostEvent, HostSpec, Launcher
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.naming import UnitId

__all__ = ["UnitCopy", "CopyOwner", "Prepare", "Remark"]

logger = logging.getLogger(__name__)

Prepare = Callable[[], Awaitable[HostSpec]]
"""Says what a host is to run."""


Remark = launching.ReconfigureAsked | launching.OutsideChanged | launching.TopicTouched
"""What a copy says that does not concern its own state."""


class CopyOwner(Protocol):
    """Who has copies: the worker."""

    def record(self, copy: UnitCopy, record: RecordState) -> None:
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
        self.figures: launching.Figures | None = None
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
        self.handle(Start(at=self._loop.time()))

    def stop(self, *, force: bool = False) -> None:
        """Have it end, by the ladder or at once."""
        self.handle(StopAsked(at=self._loop.time(), force=force))

    def fail(self, cause: Cause) -> None:
        """Have it end in Error."""
        self.handle(HostFailed(cause, at=self._loop.time()))

    def pause(self, *, paused: bool) -> None:
        """Let it rest, or go on."""
        if self.paused != paused:
            self.paused = paused
            if self.host is not None and not self.unit.gone:
                self.host.pause(paused=paused)

    def handle(self, event: Event) -> None:
        """Change the state by an event, and do what follows."""
        self.unit, actions = transition(self.unit, event, self.limits)
        self._set_timer()
        self._measure()
        for action in actions:
            if isinstance(action, RecordState):
                self._tell(action)
                if not isinstance(event, Start):  # its claim has said so
                    self._owner.record(self, action)
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

    def _tell(self, record: RecordState) -> None:
        """Log what people look for: what has failed, or waits for something outside."""
        failed = record.phase is Phase.ERROR
        news = str(record.cause or "") if failed else record.waits_for
        if news == self._said:
            return
        if failed:
            logger.error("%s", news)
        elif news:
            logger.warning("%s waits for %s", self.id.what, news)
        elif record.phase is Phase.RUNNING:
            logger.info("%s waits no more", self.id.what)
        self._said = news

    async def _launch(self) -> None:
        try:
            spec = await self._prepare()
            host = await self._launcher.launch(spec, self._hear)
        except Exception as error:  # noqa: BLE001 - whatever it is, the unit has failed
            why = str(error) if isinstance(error, HeadraceError) else repr(error)
            cause = Cause(f"no process could be started for {self.id.what}: {why}")
            self.handle(LaunchFailed(cause, at=self._loop.time()))
            return
        self.host = host
        if self.paused != spec.paused:
            host.pause(paused=self.paused)
        if self._killed:
            host.kill()
        elif self._asked_stop:
            host.ask_stop()

    def _hear(self, event: HostEvent) -> None:
        at = self._loop.time()
        match event:
            case launching.Started():
                self.address = event.address
                self.handle(HostStarted(at=at))
            case launching.Failed():
                self.handle(HostFailed(event.cause, at=at))
            case launching.Stopped():
                self.handle(HostStopped(at=at))
            case launching.StopRaised():
                self.handle(StopFailed(event.cause, at=at))
            case launching.Exited():
                self.handle(HostExited(event.status, event.signal, at=at))
            case launching.Unhealthy():
                self.handle(ProbeFailed(event.reason, at=at))
            case launching.Healthy():
                self.handle(ProbePassed(at=at))
            case launching.Moved():
                self.figures = event.figures
            case launching.Counted():
                self.errors = event.counts
            case launching.WaitsFor():
                self.handle(Waits(event.what, at=at))
            case (
                launching.ReconfigureAsked() | launching.OutsideChanged() | launching.TopicTouched()
            ):
                self._owner.heard(self, event)

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
        self.handle(CancelDone(at=self._loop.time()))

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
        self.handle(Tick(at=now if due is None else max(now, due)))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
