"""What the log of a Connect cluster holds: small records, each whole by itself.

A record is a wish or a fact.  Whether a wish comes true is decided by `fold`, which every worker
runs over the same records in the same order, and so by the order of the log alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.connect.lifecycle import Cause, Ending, Phase, Step, Target
from headrace.connect.naming import TaskId, UnitId

__all__ = [
    "AssignmentMade",
    "ConnectorDeleted",
    "ConnectorPut",
    "LeftoversGone",
    "LevelSet",
    "Purged",
    "Record",
    "RestartAsked",
    "RungTaken",
    "StatusSet",
    "TargetSet",
    "TasksPut",
    "TasksWanted",
    "TopicUsed",
    "TopicsReset",
]


class _Written(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", forbid_unknown_fields=True
):
    """What all records have in common: one with a part that a release does not know is refused.

    A view that leaves a part of the log out is another view, by which a worker would run what is
    not its own any more, and whose sums would take that part out of the log.
    """


class ConnectorPut(_Written, frozen=True, kw_only=True, tag="connector-put"):
    """Somebody wants a connector to exist with this config."""

    #: Names the request, so that its sender finds its own record, and a resent one counts once.
    request: str
    name: str
    config: dict[str, str]
    #: The version it replaces: 0 if the name must be free, None if anything may be there.
    expected_version: int | None = None
    #: None: as it was; RUNNING for a new name.
    target: Target | None = None


class ConnectorDeleted(_Written, frozen=True, kw_only=True, tag="connector-deleted"):
    """Somebody wants a connector gone: it leaves a mark."""

    request: str
    name: str
    #: Its processes are killed without being asked.
    force: bool = False
    #: Its positions go, too: a connector that gets its name later does not find them.
    forget: bool = False


class LeftoversGone(_Written, frozen=True, kw_only=True, tag="leftovers-gone"):
    """What earlier connectors of a name had committed is removed."""

    name: str
    #: Names under which that was kept.
    kept_as: list[str]


class TargetSet(_Written, frozen=True, kw_only=True, tag="target-set"):
    """Somebody wants a connector to run, to pause or to stop."""

    request: str
    name: str
    target: Target
    force: bool = False


class TasksPut(_Written, frozen=True, kw_only=True, tag="tasks-put"):
    """What a connector answered to the question for its tasks: all of them in one record."""

    name: str
    #: Version of the config that it was asked with; an older one is void.
    config_version: int
    configs: list[dict[str, str]]
    request: str = ""
    #: What its worker had read when it asked: wishes up to there are fulfilled.
    asked: int = -1


class TasksWanted(_Written, frozen=True, kw_only=True, tag="tasks-wanted"):
    """A connector, or one of its tasks, wants to be asked for its tasks again."""

    name: str


class RestartAsked(_Written, frozen=True, kw_only=True, tag="restart-asked"):
    """Somebody wants new copies of a connector, its tasks or both."""

    request: str
    name: str
    #: Whether the connector itself is restarted.
    connector: bool = True
    #: Numbers of tasks, or a word for them.
    tasks: list[int] | Literal["all", "failed"] = msgspec.field(default_factory=list)
    #: Only what stands in Error, whatever else is named.
    only_failed: bool = False
    force: bool = False


class RungTaken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A step of the stop ladder, with the wall clock's time."""

    step: Step
    at_ms: int


class StatusSet(_Written, frozen=True, kw_only=True, tag="status-set"):
    """A worker says where a copy of a connector or task is."""

    connector: str
    #: None: the connector itself.
    task: int | None = None
    generation: int
    phase: Phase
    target: Target = Target.RUNNING
    worker: str
    cause: Cause | None = None
    #: It had to be killed.
    forced: bool = False
    #: Nothing of it lives any more.
    gone: bool = False
    ending: Ending | None = None
    #: Wall clock, for people: nothing is decided by it.
    at_ms: int = 0
    rungs: tuple[RungTaken, ...] = ()
    #: What it waits for outside, while it runs as far as it can; empty: nothing.
    waits_for: str = ""
    #: Position of the last record that its worker had read; None: it counts wherever it comes.
    read: int | None = None

    @property
    def unit(self) -> UnitId:
        """The copy that this is about."""
        return UnitId(self.connector, self.task, self.generation)


class TopicUsed(_Written, frozen=True, kw_only=True, tag="topic-used"):
    """A connector has read from a topic or written to it, for the first time."""

    name: str
    topic: str


class TopicsReset(_Written, frozen=True, kw_only=True, tag="topics-reset"):
    """Somebody wants the list of a connector's topics emptied."""

    request: str
    name: str


class LevelSet(_Written, frozen=True, kw_only=True, tag="level-set"):
    """Somebody wants a logger's level set on every worker.

    Whoever reads it as it comes does so; it is no part of the view, so later workers do not.
    """

    request: str
    logger: str
    level: str


class AssignmentMade(_Written, frozen=True, kw_only=True, tag="assignment-made"):
    """Which worker runs what.  It is void unless it builds on the newest one."""

    #: One more than that of the assignment it was made from.
    generation: int
    #: What its maker had read: whoever has read less waits.
    log_position: int
    #: Connector to worker.
    connectors: dict[str, str] = msgspec.field(default_factory=dict)
    #: Connector to the workers of its tasks, in order; an empty word: nobody's yet.
    tasks: dict[str, list[str]] = msgspec.field(default_factory=dict)
    #: Lost workers, and until when (wall clock, ms) their units wait for them.
    lost: dict[str, int] = msgspec.field(default_factory=dict)
    #: Workers that the assignment before counts as lost, and of which nothing lives any more.
    settled: list[str] = msgspec.field(default_factory=list)
    #: Who made it.
    maker: str = ""

    def task_worker(self, task: TaskId) -> str | None:
        """Give the worker of a task, if it has one."""
        workers = self.tasks.get(task.connector, [])
        return (workers[task.task] or None) if task.task < len(workers) else None

    def worker_of(self, connector: str, task: int | None) -> str | None:
        """Give the worker of a connector or task, if it has one."""
        if task is None:
            return self.connectors.get(connector)
        return self.task_worker(TaskId(connector, task))


class Purged(_Written, frozen=True, kw_only=True, tag="purged"):
    """The marks of deleted connectors are removed."""

    names: list[str]


Record = (
    ConnectorPut
    | ConnectorDeleted
    | LeftoversGone
    | TargetSet
    | TasksPut
    | TasksWanted
    | RestartAsked
    | StatusSet
    | TopicUsed
    | TopicsReset
    | LevelSet
    | AssignmentMade
    | Purged
)
