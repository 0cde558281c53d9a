"""What can happen to a connector or task, and what the worker does about it.

Every event says when it happened: ``at``, in seconds of a clock that only goes forward.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

# The clock that leases are measured by.


def boot_time() -> float:
    """Return the seconds since the machine was started.

    All processes of a machine read the same, and the time for which it slept counts, as it does
    for the other machines.

    Examples
    --------
    >>> before = boot_time()
    >>> boot_time() >= before
    True
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something failed.

    Examples
    --------
    >>> str(Cause("task orders-0 failed in start(): no such file: in.txt"))
    'task orders-0 failed in start(): no such file: in.txt'
    """

    #: One line: what, where (the user's own line), why.
    summary: str
    #: The traceback, where there is one.
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.summary}\n{self.trace}" if self.trace else self.summary


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one unit."""

    at: float = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Start(Event):
    """The worker wants this copy to run."""


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    """No process could be made for it."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class HostStarted(Event):
    """The user's ``start()`` returned."""


@dataclass(frozen=True, slots=True)
class HostFailed(Event):
    """The user's code raised, or declared itself failed; the process may still live."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """Somebody wants this copy to end; with ``force`` without asking it."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class HostStopped(Event):
    """The user's ``stop()`` returned."""


@dataclass(frozen=True, slots=True)
class StopFailed(Event):
    """The user's ``stop()`` raised."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class HostExited(Event):
    """The process, and all that it forked, is proven gone, and so is its query."""

    #: Its exit status, if it ended by itself and anybody knows.
    status: int | None = None
    #: The signal that ended it.
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed: due rungs are taken."""


@dataclass(frozen=True, slots=True)
class ProbeFailed(Event):
    """The health probe said no."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProbePassed(Event):
    """The health probe said yes."""


@dataclass(frozen=True, slots=True)
class CancelDone(Event):
    """The data plane's query has ended."""


@dataclass(frozen=True, slots=True)
class Waits(Event):
    """It waits for something outside, such as a topic; an empty word: for nothing more."""

    what: str = ""
