"""What a worker needs of whoever starts the processes in which plugins run.

A worker never imports a plugin, and never waits for one: it asks a :class:`Launcher` for a host,
a process that holds one connector or one task, and hears of it by :data:`HostEvent`.  Questions
that have an answer (which plugins there are, is this config right) go to a process that lives for
one question and is killed when it takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headrace.connect.lifecycle import Cause

__all__ = [
    "Cause",
    "Counted",
    "Exited",
    "Failed",
    "Figures",
    "Healthy",
    "Host",
    "HostEvent",
    "HostKind",
    "HostSpec",
    "Launcher",
    "Listener",
    "Listens",
    "Moved",
    "OutsideChanged",
    "PluginAnswer",
    "PluginCall",
    "Question",
    "ReconfigureAsked",
    "Role",
    "Started",
    "StopRaised",
    "Stopped",
    "TopicTouched",
    "Unhealthy",
    "WaitsFor",
]

HostKind = Literal["connector", "task"]
"""What a host holds."""

Role = Literal["source", "sink"]
"""Which way a connector moves data."""

Question = Literal["plugins", "describe", "validate", "alter_offsets"]
"""What a process that lives for one question can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """What is to run in a host."""

    kind: HostKind
    connector: str
    #: The name under which its positions are kept; empty: its own.
    kept_as: str = ""
    #: Number of the task; None of a connector.
    task: int | None = None
    #: How many tasks the connector has.
    tasks: int = 1
    #: Stands for this copy alone; a later copy of the same unit has a higher one.
    generation: int
    config: Mapping[str, str]
    #: Megabytes that the host may use; None: no limit.
    memory_mb: int | None = None
    role: Role
    #: Whether the task starts paused.
    paused: bool = False
    #: The class with whose other connectors it may share a host; empty: it has one of its own.
    shares: str = ""


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
class Started:
    """``start()`` returned."""

    #: Where the data plane reaches a task: path of a socket; empty of a connector.
    address: str = ""
    #: What a task's config asks of the data plane, as its host has read it.
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """User code raised, in ``start()`` or later; the host ends by itself or is killed."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Stopped:
    """``stop()`` returned."""


@dataclass(frozen=True, slots=True)
class StopRaised:
    """``stop()`` raised."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Exited:
    """The host's process, and all that it forked, is proven gone.  The last event of a host."""

    status: int | None = None
    #: Number of the signal that ended it.
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class ReconfigureAsked:
    """``request_task_reconfiguration()`` was called."""


@dataclass(frozen=True, slots=True)
class OutsideChanged:
    """A value that the config takes from outside is another one, and a restart is wanted then."""


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The health probe said no, or raised."""

    reason: str


@dataclass(frozen=True, slots=True)
class Healthy:
    """The health probe said yes, after it had said no."""


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


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """A task runs as far as it can, and waits for something outside."""

    #: What that is; empty: for nothing more.
    what: str


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

Listener = Callable[[HostEvent], None]
"""Hears of a host's events, in their order, in the event loop that asked for the host."""


class Host(Protocol):
    """A process that holds one connector or one task.

    No method waits: what comes of a call is told by events.
    """

    @property
    def pid(self) -> int:
        """Id of the process."""

    def ask_stop(self) -> None:
        """Have the host call ``stop()`` once the last ``poll`` or ``put`` is over, and exit."""

    def pause(self, *, paused: bool) -> None:
        """Stop polling and delivering, or go on; all resources stay."""

    @property
    def waits_for(self) -> str:
        """What it waits for outside, as it said last; empty: nothing."""

    async def task_configs(self, most: int) -> PluginAnswer | None:
        """Ask a connector that runs what its tasks are to do; None: it ended before it answered.

        The value is a list of ``{key: text}``.
        """

    async def cancel(self) -> None:
        """End the task's query in the data plane; a host without one returns at once."""

    def kill(self) -> None:
        """End the process and all that it forked, by SIGKILL."""

    def alive(self) -> bool:
        """Whether anything is left of it: false only when it is proven gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """A question to plugin code, answered in a process of its own.

    ===============  ======================  ===================================================
    ``what``         ``arguments``           value of the answer
    ===============  ======================  ===================================================
    `plugins`        none, or                list of ``{class, type, version, aliases, error?}``,
                     ``{only: name}``        of a class that nothing lists too, by its full name;
                                             type is ``source``, ``sink``, ``converter``,
                                             ``header_converter``, ``transformation`` or
                                             ``predicate``
    `describe`       none                    list of config keys, as Kafka Connect writes them
    `validate`       none                    ``{name, error_count, groups, configs}``, the same
    `alter_offsets`  ``{offsets: [...]}``    ``True`` where the connector has looked at them;
                                             it says no by raising
    ===============  ======================  ===================================================
    """

    what: Question
    connector_class: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginAnswer:
    """What came of a question: a value, or why there is none."""

    value: Any = None
    failure: Cause | None = None
    #: Whether the process was killed because it took too long.
    timed_out: bool = False


class Launcher(Protocol):
    """Starts hosts, and asks questions of plugins."""

    async def launch(self, spec: HostSpec, listener: Listener) -> Host:
        """Start a host; return when its process is there, before it has run any user code.

        Raises
        ------
        HeadraceError
            No process could be started.
        """

    async def call(self, call: PluginCall) -> PluginAnswer:
        """Answer a question in a process of its own, within a hard time limit; never raise."""

    def installed(self) -> object:
        """Tell what plugins may be in: another value when a package comes, goes or changes."""

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger, and of those below it, in what runs and in what will."""

    def live_until(self, time: float) -> None:
        """End all hosts at that time, unless a later one is told before.

        That must not depend on this process: it may hang, or be stopped.  The clock is that of
        :func:`~headrace.connect.lifecycle.boot_time`.
        """

    async def forget(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Remove the positions that are kept under a name, and never will be asked for again.

        Parameters
        ----------
        kept_as
            That name.
        config
            The last config of the connector, of which nothing lives any more.

        Raises
        ------
        HeadraceError
            That cannot be done; where it is retriable, not now.
        """

    def drop_logs(self, connector: str) -> None:
        """Remove what the hosts of a connector have written."""

    async def close(self) -> None:
        """Kill what still runs, and end."""
