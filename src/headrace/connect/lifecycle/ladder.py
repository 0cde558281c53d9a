"""The stop ladder: ask, cancel, kill, each with a deadline of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.connect.lifecycle.actions import Action, AskStop, Cancel, Kill
from headrace.connect.lifecycle.phases import StopStep
from headrace.connect.lifecycle.units import Rung, UnitState, UnitTimeouts

__all__ = ["begin", "climb", "force", "leave"]

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
