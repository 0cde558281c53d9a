"""One copy of a connector or task, as the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connect.lifecycle.phases import Ending, Phase, StopStep

if TYPE_CHECKING:
    from headrace.connect.lifecycle.events import Cause
    from headrace.connect.naming import UnitId

__all__ = ["UnitTimeouts", "Rung", "UnitState"]


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
    #: When, in seconds of the events' clock.
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """The state of one copy; it changes by `transition` only.

    Examples
    --------
    >>> from headrace.connect.naming import UnitId
    >>> unit = Unit(id=UnitId("orders", 0, 7))
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
