"""What can happen to one copy of a connector or task, whoever tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Cause(msgspec.Struct, frozen=True):
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


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the data plane has to know of a task, and nothing that is secret.

    The host says it, as it alone has the config with its values from outside.
    """

    #: Of a sink: topics, or a pattern of their names.
    topics: list[str] = []
    pattern: str = ""
    #: Where dead letters of a sink go; empty: nowhere.
    letters: str = ""
    #: Queues of topics that the task makes.
    queues: int = 4
    #: Where a sink begins in queues of which no offset was ever committed: at their first message,
    #: after their latest, or at a time, ms since 1970.
    begin: Literal["first", "latest"] | int = "first"
    #: Whether a sink takes columns: many records of those take little memory.
    columns: bool = False


class Start(msgspec.Struct, frozen=True, tag=True):
    """The worker wants this copy to run."""


class LaunchFailed(msgspec.Struct, frozen=True, tag=True):
    """No process could be made for it."""

    cause: Cause


class Started(msgspec.Struct, frozen=True, tag=True):
    """The user's ``start()`` returned; of an engine, that of Spark did."""

    #: Where the data plane reaches a task: path of a socket; empty of a connector.
    address: str = ""
    #: What a task's config asks of the data plane, as its host has read it.
    terms: Terms = Terms()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The user's code raised, or declared itself failed; the process may still live."""

    cause: Cause
    #: Whether that is the doing of another unit, which shared its process.
    by_another: bool = False


class StopAsked(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants this copy to end; with ``force`` without asking it."""

    force: bool = False


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The user's ``stop()`` returned."""


class StopRaised(msgspec.Struct, frozen=True, tag=True):
    """The user's ``stop()`` raised."""

    cause: Cause


class Exited(msgspec.Struct, frozen=True, tag=True):
    """The process, and all that it forked, is proven gone, and so is its query: the last event."""

    #: Its exit status, if it ended by itself and anybody knows.
    status: int | None = None
    #: Number of the signal that ended it.
    signal: int | None = None


class Tick(msgspec.Struct, frozen=True, tag=True):
    """Time has passed: due rungs are taken."""


class Unhealthy(msgspec.Struct, frozen=True, tag=True):
    """The health probe said no, or raised."""

    reason: str = ""


class Healthy(msgspec.Struct, frozen=True, tag=True):
    """The health probe said yes, after it had said no."""


class CancelDone(msgspec.Struct, frozen=True, tag=True):
    """The data plane's query has ended."""


class WaitsFor(msgspec.Struct, frozen=True, tag=True):
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


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The data plane's query has ended and can be begun again: the brokers are away."""

    problem: str


class Listens(msgspec.Struct, frozen=True, tag=True):
    """A source task is made; its ``start()`` waits until the data plane says where its source is.

    That is known once the task's epoch is open: nobody else commits any more.
    """

    #: Where the data plane reaches the task: path of a socket.
    address: str
    #: What the task's config asks of the data plane, as its host has read it.
    terms: Terms = Terms()


class ReconfigureAsked(msgspec.Struct, frozen=True, tag=True):
    """``request_task_reconfiguration()`` was called."""


class SeekAsked(msgspec.Struct, frozen=True, tag=True):
    """``context.offset()`` was called with an offset behind: the task's query begins anew there."""


class OutsideChanged(msgspec.Struct, frozen=True, tag=True):
    """A value that the config takes from outside is another one, and a restart is wanted then."""


class TopicTouched(msgspec.Struct, frozen=True, tag=True):
    """A task wrote to this topic, or read it, for the first time."""

    topic: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
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


class Moved(msgspec.Struct, frozen=True, tag=True):
    """The data plane tells what a task has moved so far."""

    figures: Figures


class Counted(msgspec.Struct, frozen=True, tag=True):
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
    | SeekAsked
    | OutsideChanged
    | Unhealthy
    | Healthy
    | TopicTouched
    | Moved
    | Counted
    | WaitsFor
)
"""What happens to a host."""
