"""The stop ladder: ask, cancel, kill, each with a deadline of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.connect.lifecycle.actions import Action, AskStop, Cancel, Kill
from headrace.connect.lifecycle.phases import Step
from headrace.connect.lifecycle.units import Limits, Rung, Unit

__all__ = ["begin", "climb", "force", "leave"]

Outcome = tuple[Unit, tuple[Action, ...]]


def begin(unit: Unit, at: float, limits: Limits) -> Outcome:
    """Take the first rung, unless one has been taken: ask.

    A start that nobody wants any more gets as long as a stop.
    """
    if unit.step is not None:
        return unit, ()
    return _take(unit, Step.ASK, at, limits.ask), (AskStop(),)


def climb(unit: Unit, at: float, limits: Limits) -> Outcome:
    """Take the next rung, as the time of the present one is over."""
    if unit.step is Step.ASK:
        return _take(unit, Step.CANCEL, at, limits.cancel), (Cancel(),)
    if unit.step is Step.CANCEL:
        return _kill(unit, at, limits)
    return replace(unit, due=at + limits.kill), (Kill(),)


def force(unit: Unit, at: float, limits: Limits) -> Outcome:
    """Kill at once, whatever rung it stands on."""
    if unit.step is Step.KILL:
        return unit, ()
    killed, actions = _kill(unit, at, limits)
    return killed, actions if unit.step is Step.CANCEL else (Cancel(), *actions)


def leave(unit: Unit, at: float, limits: Limits) -> Unit:
    """Shorten the wait: ``stop()`` has returned, so the process has only to go."""
    if unit.step is Step.KILL:
        return unit
    if unit.step is None:
        return _take(unit, Step.ASK, at, limits.cancel)
    assert unit.due is not None
    return replace(unit, due=min(unit.due, at + limits.cancel))


def _kill(unit: Unit, at: float, limits: Limits) -> Outcome:
    unit = replace(_take(unit, Step.KILL, at, limits.kill), forced=True)
    return unit, (Kill(),)


def _take(unit: Unit, step: Step, at: float, time: float) -> Unit:
    return replace(unit, rungs=(*unit.rungs, Rung(step, at)), due=at + time)
