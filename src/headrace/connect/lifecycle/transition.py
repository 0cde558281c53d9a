"""The six phases of a connector or task, and the one function that leads from one to the next.

It is pure: it reads no clock, starts no process and writes no log.  What is due comes with a
`Tick`, what happened to the process as an event, and what has to be done is returned.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from headrace.connect.lifecycle.events import (
    CancelDone,
    Cause,
    Event,
    Exited,
    Failed,
    Healthy,
    LaunchFailed,
    Start,
    Started,
    StopAsked,
    Stopped,
    StopRaised,
    Tick,
    Unhealthy,
    WaitsFor,
)

if TYPE_CHECKING:
    from headrace.connect.naming import UnitId


#: What Kafka Connect's REST API says of a connector or task.
KafkaState = Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "STOPPED", "RESTARTING"]


class Phase(StrEnum):
    """Where one copy of a connector or task is in its life."""

    #: It is wanted, and nothing has been done for it yet.
    NEW = "NEW"
    #: Its process is being made, or its ``start()`` has not returned yet.
    PENDING = "PENDING"
    #: ``start()`` has returned.
    RUNNING = "RUNNING"
    #: It has been asked to end, and its process is not proven gone yet.
    STOPPING = "STOPPING"
    #: ``stop()`` has returned, and its process is gone.
    STOPPED = "STOPPED"
    #: Something raised, died or had to be killed.
    ERROR = "ERROR"


class Target(StrEnum):
    """What the user wants of a connector: a flag beside the phase, never a phase."""

    RUNNING = "RUNNING"
    #: It keeps its processes and does nothing.
    PAUSED = "PAUSED"
    #: It has no processes; config and offsets stay.
    STOPPED = "STOPPED"


class StopStep(StrEnum):
    """A rung of the stop ladder."""

    ASK = "ASK"
    CANCEL = "CANCEL"
    KILL = "KILL"
    #: The process and all that it forked are proven gone.
    GONE = "GONE"


class Ending(StrEnum):
    """How a copy ended."""

    #: ``stop()`` returned by itself.
    RETURNED = "RETURNED"
    #: The user's code raised.
    RAISED = "RAISED"
    #: ``stop()`` returned after the data plane's query had been cancelled.
    CANCELLED = "CANCELLED"
    #: It ran out of time, or the user wanted it at once: its process was killed.
    KILLED = "KILLED"
    #: Its process ended and nobody had asked it to.
    DIED = "DIED"


def kafka_state(phase: Phase, target: Target) -> KafkaState:
    """Return a phase in Kafka Connect's words.

    Examples
    --------
    >>> kafka_state(Phase.PENDING, Target.RUNNING)
    'UNASSIGNED'
    >>> kafka_state(Phase.RUNNING, Target.PAUSED)
    'PAUSED'
    >>> kafka_state(Phase.ERROR, Target.RUNNING)
    'FAILED'
    """
    if phase in {Phase.RUNNING, Phase.STOPPING}:
        return "PAUSED" if target is Target.PAUSED else "RUNNING"
    if target is Target.STOPPED:
        return "STOPPED"
    return "FAILED" if phase is Phase.ERROR else "UNASSIGNED"


# What is to be done after an event.


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do for a unit."""


@dataclass(frozen=True, slots=True)
class Launch(Action):
    """Make its process."""


@dataclass(frozen=True, slots=True)
class AskStop(Action):
    """Ask its process to stop; asking twice changes nothing."""


@dataclass(frozen=True, slots=True)
class Cancel(Action):
    """End the data plane's query, and report ``CancelDone`` when that is done."""


@dataclass(frozen=True, slots=True)
class Kill(Action):
    """Kill its process with all that it forked; may come again until they are gone."""


@dataclass(frozen=True, slots=True)
class Release(Action):
    """Its place is free: proven gone, or never there.  Comes once, and nothing after it."""


@dataclass(frozen=True, slots=True)
class RecordState(Action):
    """Write the new state to the log."""

    unit: UnitState


@dataclass(frozen=True, slots=True)
class Refuse(Action):
    """The event cannot happen in this phase: log it, change nothing."""

    event: Event
    phase: Phase
    why: str


# One copy of a connector or task, as the worker sees it.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimeouts:
    """How long each thing may take, in seconds."""

    #: From the launch until ``start()`` has returned.
    start: float = 180.0
    #: After it was asked to stop, until its query is cancelled.
    ask: float = 5.0
    #: After that, until its process is killed.
    cancel: float = 3.0
    #: After that, until it is killed again.
    kill: float = 3.0
    #: So many failed probes in a row make Error.
    probes: int = 3


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder that was taken."""

    step: StopStep
    #: When, in seconds of a clock that only goes forward.
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """The state of one copy; it changes by `transition` only.

    Examples
    --------
    >>> from headrace.connect.naming import UnitId
    >>> unit = UnitState(id=UnitId("orders", 0, 7))
    >>> unit.phase, unit.gone
    (<Phase.NEW: 'NEW'>, False)
    """

    id: UnitId
    phase: Phase = Phase.NEW
    #: When the phase began.
    since: float = 0.0
    #: When a `Tick` is next needed; None: not before something else happens.
    due: float | None = None
    #: Rungs taken so far; the last one may be GONE.
    rungs: tuple[Rung, ...] = ()
    #: It was asked to stop.
    stop_asked: bool = False
    #: ``start()`` has returned.
    started: bool = False
    #: ``stop()`` has returned.
    stopped: bool = False
    cause: Cause | None = None
    #: It had to be killed.
    forced: bool = False
    ending: Ending | None = None
    #: Nothing of it lives any more: a successor may start.
    gone: bool = False
    #: What it waits for outside, while it runs as far as it can; empty: nothing.
    waits_for: str = ""
    #: Failed probes in a row.
    probes_failed: int = 0

    @property
    def step(self) -> StopStep | None:
        """The rung of the ladder that it stands on; None: it is not asked to end."""
        return self.rungs[-1].step if self.rungs else None

    @property
    def alive(self) -> bool:
        """Whether a process may be there."""
        return self.phase is not Phase.NEW and not self.gone


# The stop ladder: ask, cancel, kill, each with a deadline of its own.

Outcome = tuple[UnitState, tuple[Action, ...]]


def begin(unit: UnitState, at: float, limits: UnitTimeouts) -> Outcome:
    """Take the first rung, unless one has been taken: ask.

    A start that nobody wants any more gets as long as a stop.
    """
    if unit.step is not None:
        return unit, ()
    return _take(unit, StopStep.ASK, at, limits.ask), (AskStop(),)


def climb(unit: UnitState, at: float, limits: UnitTimeouts) -> Outcome:
    """Take the next rung, as the time of the present one is over."""
    if unit.step is StopStep.ASK:
        return _take(unit, StopStep.CANCEL, at, limits.cancel), (Cancel(),)
    if unit.step is StopStep.CANCEL:
        return _kill(unit, at, limits)
    return replace(unit, due=at + limits.kill), (Kill(),)


def force(unit: UnitState, at: float, limits: UnitTimeouts) -> Outcome:
    """Kill at once, whatever rung it stands on."""
    if unit.step is StopStep.KILL:
        return unit, ()
    killed, actions = _kill(unit, at, limits)
    return killed, actions if unit.step is StopStep.CANCEL else (Cancel(), *actions)


def leave(unit: UnitState, at: float, limits: UnitTimeouts) -> UnitState:
    """Shorten the wait: ``stop()`` has returned, so the process has only to go."""
    if unit.step is StopStep.KILL:
        return unit
    if unit.step is None:
        return _take(unit, StopStep.ASK, at, limits.cancel)
    assert unit.due is not None
    return replace(unit, due=min(unit.due, at + limits.cancel))


def _kill(unit: UnitState, at: float, limits: UnitTimeouts) -> Outcome:
    unit = replace(_take(unit, StopStep.KILL, at, limits.kill), forced=True)
    return unit, (Kill(),)


def _take(unit: UnitState, step: StopStep, at: float, time: float) -> UnitState:
    return replace(unit, rungs=(*unit.rungs, Rung(step, at)), due=at + time)


# How a copy ended, and why.


def blame(unit: UnitState, cause: Cause) -> UnitState:
    """Note why a unit failed: the first cause stays, later ones are told below it."""
    if unit.cause is None:
        return replace(unit, cause=cause)
    if cause == unit.cause:
        return unit
    told = [unit.cause.trace or unit.cause.summary, f"and then: {cause.summary}", cause.trace]
    trace = "\n".join(part for part in told if part)
    return replace(unit, cause=Cause(unit.cause.summary, trace))


def end(unit: UnitState, event: Exited, at: float) -> tuple[Phase, UnitState]:
    """Return the last phase of a unit whose process is proven gone, and the unit with its ending."""
    asked, step = unit.rungs[:1], unit.step
    unit = replace(unit, gone=True, due=None, rungs=(*unit.rungs, Rung(StopStep.GONE, at)))
    if unit.forced:
        cause = Cause(_killed(unit, asked))
        unit = unit if unit.cause is not None else blame(unit, cause)
        return Phase.ERROR, replace(unit, ending=Ending.KILLED)
    if unit.phase is Phase.ERROR:
        return Phase.ERROR, unit
    if unit.phase is Phase.STOPPING and unit.stopped:
        late = step is StopStep.CANCEL
        return Phase.STOPPED, replace(unit, ending=Ending.CANCELLED if late else Ending.RETURNED)
    died = Cause(f"the process of {unit.id.what} {_how(event)} {_before_what(unit)}")
    return Phase.ERROR, replace(blame(unit, died), ending=Ending.DIED)


def _killed(unit: UnitState, asked: tuple[Rung, ...]) -> str:
    if not asked or asked[0].step is StopStep.KILL:
        return f"{unit.id.what} was killed at once, as force was asked for"
    kill = next(rung for rung in unit.rungs if rung.step is StopStep.KILL)
    waited = f"{kill.at - asked[0].at:.3g} s"
    if unit.stopped:
        return f"stop() of {unit.id.what} returned, but its process stayed and was killed"
    if not unit.started:
        return f"start() of {unit.id.what} did not return within {waited} of being asked to stop"
    return f"stop() of {unit.id.what} did not return in time: it was killed after {waited}"


def _how(event: Exited) -> str:
    if event.signal is not None:
        try:
            name = signal.Signals(event.signal).name
        except ValueError:
            name = f"signal {event.signal}"
        hint = " (too much memory, or somebody killed it)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    if event.status is None:
        return "ended"
    return f"ended with status {event.status}"


def _before_what(unit: UnitState) -> str:
    if unit.phase is Phase.PENDING:
        return "before start() returned"
    if unit.phase is Phase.STOPPING:
        return "before stop() returned"
    return "while it was running"


#: The phases that may follow each; nothing else ever does.
LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.PENDING}),
    Phase.PENDING: frozenset({Phase.RUNNING, Phase.ERROR}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.ERROR}),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.ERROR}),
    Phase.STOPPED: frozenset(),
    Phase.ERROR: frozenset(),
}

#: The phases in which a unit may wait for something outside.
_HOPEFUL = frozenset({Phase.PENDING, Phase.RUNNING})


def transition(unit: UnitState, event: Event, at: float, limits: UnitTimeouts) -> Outcome:
    """Return the unit after an event at some time, and what has to be done, in order.

    An event that cannot happen changes nothing and comes back as `Refuse`.

    Examples
    --------
    >>> from headrace.connect.naming import UnitId
    >>> unit, actions = transition(UnitState(id=UnitId("orders", 0, 7)), Start(), 10.0, UnitTimeouts())
    >>> unit.phase, unit.due
    (<Phase.PENDING: 'PENDING'>, 190.0)
    >>> [type(action).__name__ for action in actions]
    ['RecordState', 'Launch']
    >>> unit, actions = transition(unit, Start(), 11.0, UnitTimeouts())
    >>> actions[0].why
    'task orders-0 has been started already'
    """
    return _HANDLERS[type(event)](unit, event, at, limits)


def _start(unit: UnitState, event: Start, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.phase is not Phase.NEW or unit.gone:
        return _refused(unit, event, "has been started already")
    unit = _enter(unit, Phase.PENDING, at, due=at + limits.start)
    return unit, (RecordState(unit), Launch())


def _launch_failed(unit: UnitState, event: LaunchFailed, at: float, _: UnitTimeouts) -> Outcome:
    if unit.phase is not Phase.PENDING:
        return _refused(unit, event, "is not being launched")
    unit = replace(blame(unit, event.cause), gone=True, ending=Ending.DIED)
    unit = _enter(unit, Phase.ERROR, at, due=None)
    return unit, (RecordState(unit), Release())


def _started(unit: UnitState, event: Started, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.phase is not Phase.PENDING or unit.started:
        return _refused(unit, event, "is not starting")
    unit = replace(unit, started=True)
    if unit.step is None:
        unit = _enter(unit, Phase.RUNNING, at, due=None)
        return unit, (RecordState(unit),)
    if not unit.stop_asked or unit.step is StopStep.KILL:
        return unit, ()  # too late: it is on its way out
    running = _enter(unit, Phase.RUNNING, at, due=unit.due)
    due = at + limits.ask if unit.step is StopStep.ASK else unit.due
    stopping = _enter(running, Phase.STOPPING, at, due=due)
    return stopping, (RecordState(running), RecordState(stopping), AskStop())


def _told_failed(unit: UnitState, event: Failed, at: float, limits: UnitTimeouts) -> Outcome:
    if not unit.alive:
        return _refused(unit, event, "has no process")
    return _failed(unit, event.cause, at, limits)


def _stop_raised(unit: UnitState, event: StopRaised, at: float, limits: UnitTimeouts) -> Outcome:
    if not _may_stop(unit):
        return _refused(unit, event, "is not stopping")
    return _failed(replace(unit, stopped=True), event.cause, at, limits)


def _failed(unit: UnitState, cause: Cause, at: float, limits: UnitTimeouts) -> Outcome:
    """Go to Error at once; the ladder sees to it that the process goes, too."""
    unit = blame(unit, cause)
    if unit.phase is Phase.ERROR:
        return unit, ()
    unit = _enter(replace(unit, ending=Ending.RAISED), Phase.ERROR, at, due=unit.due)
    asked, actions = begin(unit, at, limits)
    return asked, (RecordState(unit), *actions)


def _stop_asked(unit: UnitState, event: StopAsked, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.gone:
        return unit, ()
    unit = replace(unit, stop_asked=True)
    if unit.phase is Phase.NEW:
        return replace(unit, gone=True), (Release(),)
    recorded: tuple[Action, ...] = ()
    if unit.phase is Phase.RUNNING:
        unit = _enter(unit, Phase.STOPPING, at, due=None)
        recorded = (RecordState(unit),)
    step = force if event.force else begin
    unit, actions = step(unit, at, limits)
    return unit, recorded + actions


def _stopped(unit: UnitState, event: Stopped, at: float, limits: UnitTimeouts) -> Outcome:
    if not _may_stop(unit) or unit.stopped:
        return _refused(unit, event, "is not stopping")
    recorded: tuple[Action, ...] = ()
    unit = replace(unit, stopped=True)
    if unit.phase is Phase.RUNNING:
        unit = _enter(unit, Phase.STOPPING, at, due=None)
        recorded = (RecordState(unit),)
    return leave(unit, at, limits), recorded


def _exited(unit: UnitState, event: Exited, at: float, _: UnitTimeouts) -> Outcome:
    if not unit.alive:
        return _refused(unit, event, "has no process")
    phase, unit = end(unit, event, at)
    if phase is not unit.phase:
        unit = _enter(unit, phase, at, due=None)
    return unit, (RecordState(unit), Release())


def _tick(unit: UnitState, _event: Tick, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.due is None or at < unit.due:
        return unit, ()
    if unit.step is None:
        late = f"start() of {unit.id.what} did not return in time: it may take {limits.start:g} s"
        return begin(blame(unit, Cause(late)), at, limits)
    return climb(unit, at, limits)


def _cancel_done(unit: UnitState, _event: CancelDone, _at: float, _limits: UnitTimeouts) -> Outcome:
    return unit, ()  # the rung's own deadline decides: stop() may need what is left of it


def _unhealthy(unit: UnitState, event: Unhealthy, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.phase is not Phase.RUNNING:
        return unit, ()
    failed = unit.probes_failed + 1
    unit = replace(unit, probes_failed=failed)
    if failed < limits.probes:
        return unit, ()
    reason = f": {event.reason}" if event.reason else ""
    cause = Cause(f"the health probe of {unit.id.what} failed {failed} times in a row{reason}")
    return _failed(unit, cause, at, limits)


def _healthy(unit: UnitState, _event: Healthy, _at: float, _limits: UnitTimeouts) -> Outcome:
    return replace(unit, probes_failed=0), ()


def _waits_for(unit: UnitState, event: WaitsFor, at: float, limits: UnitTimeouts) -> Outcome:
    if unit.phase not in _HOPEFUL or unit.waits_for == event.what:
        return unit, ()
    unit = replace(unit, waits_for=event.what)
    if unit.phase is Phase.PENDING and unit.step is None:
        # A start has no limit but that of its own patience while it waits for something outside.
        unit = replace(unit, due=None if event.what else at + limits.start)
    return unit, (RecordState(unit),)


def _may_stop(unit: UnitState) -> bool:
    """Return whether news of the user's ``stop()`` can be true."""
    return unit.alive and (unit.phase is not Phase.PENDING or unit.step is not None)


def _enter(unit: UnitState, phase: Phase, at: float, *, due: float | None) -> UnitState:
    waits_for = unit.waits_for if phase in _HOPEFUL else ""
    return replace(unit, phase=phase, since=at, due=due, waits_for=waits_for)


def _refused(unit: UnitState, event: Event, why: str) -> Outcome:
    return unit, (Refuse(event, unit.phase, f"{unit.id.what} {why}"),)


# Each takes its own kind of event.
_HANDLERS: dict[type[Event], Callable[[UnitState, Any, float, UnitTimeouts], Outcome]] = {
    Start: _start,
    LaunchFailed: _launch_failed,
    Started: _started,
    Failed: _told_failed,
    StopAsked: _stop_asked,
    Stopped: _stopped,
    StopRaised: _stop_raised,
    Exited: _exited,
    Tick: _tick,
    Unhealthy: _unhealthy,
    Healthy: _healthy,
    CancelDone: _cancel_done,
    WaitsFor: _waits_for,
}
