"""What a transition asks the worker to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.connect.lifecycle.events import Cause, Event
    from headrace.connect.lifecycle.phases import Ending, Phase


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
    """End the data plane's query; say ``CancelDone`` when that is done."""


@dataclass(frozen=True, slots=True)
class Kill(Action):
    """Kill its process with all that it forked; may come again until they are gone."""


@dataclass(frozen=True, slots=True)
class Release(Action):
    """Its place is free: proven gone, or never there.  Comes once, and nothing after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordState(Action):
    """Write the new state to the log."""

    phase: Phase
    cause: Cause | None = None
    #: It had to be killed.
    forced: bool = False
    #: Nothing of it lives any more.
    gone: bool = False
    ending: Ending | None = None
    #: What it waits for outside; empty: nothing.
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Refuse(Action):
    """The event cannot happen in this phase: log it, change nothing."""

    event: Event
    phase: Phase
    why: str
