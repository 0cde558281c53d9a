"""What the log of a Connect cluster holds: small records, each whole by itself.

A record is a wish or a fact.  Whether a wish comes true is decided by `fold`, which every worker
runs over the same records in the same order, and so by the order of the log alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Self

import msgspec

from headrace.connect.lifecycle import Cause, Ending, Phase, StopStep, Target
from headrace.connect.naming import TaskId, UnitId


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

    step: StopStep
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

    Whoever reads it as it comes does so; it is not part of the view, so later workers do not.
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
        """Return the worker of a task, if it has one."""
        workers = self.tasks.get(task.connector, [])
        return (workers[task.task] or None) if task.task < len(workers) else None

    def worker_of(self, connector: str, task: int | None) -> str | None:
        """Return the worker of a connector or task, if it has one."""
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


# What is known of one connector after its records have been folded.

#: So many states of a unit are kept; the log itself keeps all of them until it is compacted.
_HISTORY = 20


class UnitStory(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What workers have said of one connector or task."""

    #: The last word on its newest copy.
    current: StatusSet | None = None
    #: Copies that may be alive, of any generation, each with the last word on it.
    alive: tuple[StatusSet, ...] = ()
    #: The latest states, the newest last.
    history: tuple[StatusSet, ...] = ()
    #: Position of the last state that counted; -1: none did.
    changed: int = -1

    def is_behind(self, status: StatusSet, *, since: int) -> bool:
        """Return whether a state comes too late: its worker had not read the one before it.

        A state that is sent twice therefore counts once, and one that was delayed until its worker
        or a successor had said something else does not count at all.
        """
        return status.read is not None and status.read < max(self.changed, since)

    def told(self, status: StatusSet, position: int, *, since: int) -> Self:
        """Return the story with one more state.

        Of copies older than ``since`` only their end counts.

        An old copy never speaks for a newer one.
        """
        key = (status.generation, status.worker)
        others = tuple(one for one in self.alive if (one.generation, one.worker) != key)
        lives = not status.gone and status.phase is not Phase.NEW
        alive = (*others, status) if lives else others
        newest = self.current.generation if self.current is not None else since
        if status.generation < max(newest, since):
            return msgspec.structs.replace(self, alive=alive, changed=position)
        history = (*self.history, status)[-_HISTORY:]
        return msgspec.structs.replace(
            self, current=status, alive=alive, history=history, changed=position
        )

    def forgotten(self) -> Self:
        """Return what must be known of it even when its name has a new meaning: who lives."""
        return msgspec.structs.replace(self, current=None, history=())


class TaskEntry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One task that is wanted."""

    config: dict[str, str]
    generation: int
    #: Its connector was deleted.
    deleted: bool = False


class Leftover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a connector that was deleted has committed, and is to be removed."""

    #: The name under which it is kept.
    kept_as: str
    #: The connector's last config: what it keeps outside has to go by its own code.
    config: dict[str, str]


class ConnectorEntry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One name, and all that has been decided about it."""

    name: str
    config: dict[str, str]
    #: Counts the configs that this name has had; it never starts again.
    version: int
    target: Target = Target.RUNNING
    #: Position of the record that gave the name its present meaning.
    created: int
    #: Position of the last record that changed anything here.
    changed: int
    #: Of the copy of the connector itself that is wanted.
    generation: int
    tasks: tuple[TaskEntry, ...] = ()
    #: Version of the config that the tasks were made from; 0: they are yet to be asked for.
    tasks_version: int = 0
    #: Position of the last wish to have them made anew that is not fulfilled; -1: there is none.
    tasks_wanted: int = -1
    #: A mark: the name is not in use.
    deleted: bool = False
    #: The name under which its positions are kept, where that is another one: what an earlier
    #: connector of its name had committed is none of its business.
    renamed: str = ""
    #: Whether its positions were to go when it was deleted.
    forgotten: bool = False
    #: What earlier connectors of this name had committed, until it is removed.
    leftovers: tuple[Leftover, ...] = ()
    #: The last stop or delete was to be done without asking.
    force: bool = False
    topics: tuple[str, ...] = ()
    story: UnitStory = UnitStory()
    #: By number, also of tasks that are no longer wanted.
    task_stories: dict[int, UnitStory] = msgspec.field(default_factory=dict)

    @property
    def kept_as(self) -> str:
        """The name under which its positions are kept."""
        return self.renamed or self.name

    @property
    def unused(self) -> tuple[Leftover, ...]:
        """What earlier connectors of this name had committed, once none of their copies lives."""
        old = (self.deleted or status.generation < self.created for status in self.alive())
        return () if any(old) else self.leftovers

    @property
    def purgeable(self) -> bool:
        """Whether it is a mark that says nothing which must be known."""
        kept = self.renamed and not self.forgotten
        return self.deleted and not (kept or self.leftovers or any(self.alive()))

    @property
    def active(self) -> bool:
        """Whether copies of it are wanted at all."""
        return not self.deleted and self.target is not Target.STOPPED

    @property
    def tasks_due(self) -> bool:
        """Whether the connector has to be asked for its tasks."""
        return self.active and self.tasks_version != self.version

    @property
    def healthy(self) -> bool:
        """Whether the copy of the connector that is wanted runs: only then its tasks may start."""
        now = self.status()
        return now is not None and now.phase is Phase.RUNNING and self.active

    def units(self) -> Iterator[UnitId]:
        """Yield every copy that is wanted: the connector first, then its tasks."""
        if self.active:
            yield UnitId(self.name, None, self.generation)
            for number, task in enumerate(self.tasks):
                yield UnitId(self.name, number, task.generation)

    def generation_of(self, task: int | None) -> int:
        """Return the wanted generation of the connector or one of its tasks."""
        return self.generation if task is None else self.tasks[task].generation

    def story_of(self, task: int | None) -> UnitStory:
        """Return what is known of the connector or a task, whether it is wanted or not."""
        return self.story if task is None else self.task_stories.get(task, UnitStory())

    def status(self, task: int | None = None) -> StatusSet | None:
        """Return the last word on the wanted copy of the connector or a task.

        None: there is none.
        """
        current = self.story_of(task).current
        wanted = self.generation_of(task)
        return current if current is not None and current.generation == wanted else None

    def failed(self, task: int | None = None) -> bool:
        """Return whether the wanted copy stands in Error."""
        now = self.status(task)
        return now is not None and now.phase is Phase.ERROR

    def alive(self) -> Iterator[StatusSet]:
        """Yield every copy that may be alive, wanted or not."""
        yield from self.story.alive
        for story in self.task_stories.values():
            yield from story.alive


class CompactedRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="kept",
    forbid_unknown_fields=True,
):
    """What a compaction leaves: the sum of all records about one name, or the last assignment.

    Whoever has read all that it sums up learns nothing new from it.
    """

    #: Position of the last record that is summed up here.
    as_of: int
    entry: ConnectorEntry | None = None
    assignment: AssignmentMade | None = None
    #: Only of the first one: all names that there are, so that no other one comes back.
    names: tuple[str, ...] | None = None
    #: Only of the first one: requests that were decided lately.
    recent: tuple[str, ...] = ()


# What a Connect cluster has decided so far: the sum of its log.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All connectors, their tasks, their states, and who runs them.

    Two workers that have read equally far have equal views.

    Examples
    --------
    >>> from headrace.connect.log.folding import fold
    >>> from headrace.connect.log.records import ConnectorDeleted, ConnectorPut
    >>> put = ConnectorPut(request="a", name="orders", config={"connector.class": "datagen"})
    >>> view, _ = fold(ClusterView(), put, 0)
    >>> sorted(view.connectors())
    ['orders']
    >>> view, _ = fold(view, ConnectorDeleted(request="b", name="orders"), 1)
    >>> sorted(view.connectors()), sorted(view.entries)
    ([], ['orders'])
    """

    #: Of the last record that was folded; -1: none.
    position: int = -1
    #: Every name, with the marks of deleted ones: for compaction and for looking inside.
    entries: Mapping[str, ConnectorEntry] = field(default_factory=dict)
    assignment: AssignmentMade | None = None
    #: Requests that were decided lately: one that was sent twice counts once.
    recent: tuple[str, ...] = ()

    def connectors(self) -> Mapping[str, ConnectorEntry]:
        """Return the connectors that there are, without deleted ones."""
        return MappingProxyType(
            {name: entry for name, entry in self.entries.items() if not entry.deleted}
        )

    def connector(self, name: str) -> ConnectorEntry | None:
        """Return one connector, unless there is none of that name."""
        entry = self.entries.get(name)
        return None if entry is None or entry.deleted else entry

    def units(self) -> Iterator[UnitId]:
        """Yield every copy that is wanted, connectors before their tasks."""
        for entry in self.connectors().values():
            yield from entry.units()

    def alive(self, worker: str | None = None) -> Iterator[StatusSet]:
        """Yield every copy that may be alive, on one worker or on all: wanted, deleted or old."""
        for entry in self.entries.values():
            for status in entry.alive():
                if worker is None or status.worker == worker:
                    yield status

    def worker_of(self, connector: str, task: int | None = None) -> str | None:
        """Return the worker that is to run a connector or task, or None if nobody is yet."""
        made = self.assignment
        return None if made is None else made.worker_of(connector, task)

    def kept(self) -> list[CompactedRecord]:
        """Return records that make this view again when nothing else is left of the log."""
        sums = [
            CompactedRecord(as_of=self.position, entry=entry) for entry in self.entries.values()
        ]
        if self.assignment is not None:
            sums.append(CompactedRecord(as_of=self.position, assignment=self.assignment))
        first = sums[0] if sums else CompactedRecord(as_of=self.position)
        names = tuple(self.entries)
        return [msgspec.structs.replace(first, names=names, recent=self.recent), *sums[1:]]
