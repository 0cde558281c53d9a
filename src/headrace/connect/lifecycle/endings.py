"""How a copy ended, and why."""

from __future__ import annotations

import signal
from dataclasses import replace

from headrace.connect.lifecycle.events import Cause, HostExited
from headrace.connect.lifecycle.phases import Ending, Phase, Step
from headrace.connect.lifecycle.units import Rung, Unit

__all__ = ["blame", "end"]


def blame(unit: Unit, cause: Cause) -> Unit:
    """Note why a unit failed: the first cause stays, later ones are told below it."""
    if unit.cause is None:
        return replace(unit, cause=cause)
    if cause == unit.cause:
        return unit
    told = [unit.cause.trace or unit.cause.summary, f"and then: {cause.summary}", cause.trace]
    trace = "\n".join(part for part in told if part)
    return replace(unit, cause=Cause(unit.cause.summary, trace))


def end(unit: Unit, event: HostExited) -> tuple[Phase, Unit]:
    """Give the last phase of a unit whose process is proven gone, and the unit with its ending."""
    asked, step = unit.rungs[:1], unit.step
    unit = replace(unit, gone=True, due=None, rungs=(*unit.rungs, Rung(Step.GONE, event.at)))
    if unit.forced:
        cause = Cause(_killed(unit, asked))
        unit = unit if unit.cause is not None else blame(unit, cause)
        return Phase.ERROR, replace(unit, ending=Ending.KILLED)
    if unit.phase is Phase.ERROR:
        return Phase.ERROR, unit
    if unit.phase is Phase.STOPPING and unit.stopped:
        late = step is Step.CANCEL
        return Phase.STOPPED, replace(unit, ending=Ending.CANCELLED if late else Ending.RETURNED)
    died = Cause(f"the process of {unit.id.what} {_how(event)} {_before_what(unit)}")
    return Phase.ERROR, replace(blame(unit, died), ending=Ending.DIED)


def _killed(unit: Unit, asked: tuple[Rung, ...]) -> str:
    if not asked or asked[0].step is Step.KILL:
        return f"{unit.id.what} was killed at once, as force was asked for"
    kill = next(rung for rung in unit.rungs if rung.step is Step.KILL)
    waited = f"{kill.at - asked[0].at:.3g} s"
    if unit.stopped:
        return f"stop() of {unit.id.what} returned, but its process stayed and was killed"
    if not unit.started:
        return f"start() of {unit.id.what} did not return within {waited} of being asked to stop"
    return f"stop() of {unit.id.what} did not return in time: it was killed after {waited}"


def _how(event: HostExited) -> str:
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


def _before_what(unit: Unit) -> str:
    if unit.phase is Phase.PENDING:
        return "before start() returned"
    if unit.phase is Phase.STOPPING:
        return "before stop() returned"
    return "while it was running"
