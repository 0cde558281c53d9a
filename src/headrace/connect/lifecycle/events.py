"""What can happen to one copy of a connector or task, whoever tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
class Start:
    """The worker wants this copy to run."""


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """No process could be made for it."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Started:
    """The user's ``start()`` returned."""

    #: Where the data plane reaches a task: path of a socket; empty of a connector.
    address: str = ""
    #: What a task's config asks of the data plane, as its host has read it.
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised, or declared itself failed; the process may still live."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants this copy to end; with ``force`` without asking it."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user's ``stop()`` returned."""


@dataclass(frozen=True, slots=True)
class StopRaised:
    """The user's ``stop()`` raised."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Exited:
    """The process, and all that it forked, is proven gone, and so is its query: the last event."""

    #: Its exit status, if it ended by itself and anybody knows.
    status: int | None = None
    #: Number of the signal that ended it.
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: due rungs are taken."""


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The health probe said no, or raised."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Healthy:
    """The health probe said yes, after it had said no."""


@dataclass(frozen=True, slots=True)
class CancelDone:
    """The data plane's query has ended."""


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """It runs as far as it can, and waits for something outside, such as a topic."""

    #: What that is; empty: for nothing more.
    what: str = ""


Event = (
    Start
    | LaunchFailed
    | Started
    | Failed
    | StopAsked
    | Stopped
    | StopRaised
    | Exited
    | Tick
    | Unhealthy
    | Healthy
    | CancelDone
    | WaitsFor
)
"""What happens to one copy, and changes its state."""


# What a host, and the data plane behind it, say beside that.


@dataclass(frozen=True, slots=True)
class Listens:
    """A source task is made; its ``start()`` waits until the data plane says where its source is.

    That is known once the task's epoch is open: nobody else commits any more.
    """

    #: Where the data plane reaches the task: path of a socket.
    address: str
    #: What the task's config asks of the data plane, as its host has read it.
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconfigureAsked:
    """``request_task_reconfiguration()`` was called."""


@dataclass(frozen=True, slots=True)
class OutsideChanged:
    """A value that the config takes from outside is another one, and a restart is wanted then."""


@dataclass(frozen=True, slots=True)
class TopicTouched:
    """A task wrote to this topic, or read it, for the first time."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a task has moved since it first ran, in whatever copies."""

    #: Rows that were read and committed: from outside, or from topics.
    records: int = 0
    #: Bytes of their values; of a source, of their keys too.
    bytes: int = 0
    #: Messages that were written: of a source what it has read, of a sink its dead letters.
    written: int = 0
    #: Batches that were committed; each is one commit.
    commits: int = 0
    #: Batches of this copy that failed, and were begun anew.
    rollbacks: int = 0
    #: Messages in its queues that are not committed yet; None of a source, whose outside has no
    #: end that is known.
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The data plane tells what a task has moved so far."""

    figures: Figures


@dataclass(frozen=True, slots=True)
class Counted:
    """What has failed in a task since it started, and what became of it."""

    #: By the names that Kafka Connect has for it, such as ``total-record-errors``.
    counts: Mapping[str, int]


HostEvent = (
    Listens
    | Started
    | Failed
    | Stopped
    | StopRaised
    | Exited
    | ReconfigureAsked
    | OutsideChanged
    | Unhealthy
    | Healthy
    | TopicTouched
    | Moved
    | Counted
    | WaitsFor
)
"""What happens to a host."""
