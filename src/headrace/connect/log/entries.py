"""What is known of one connector after its records have been folded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import msgspec

from headrace.connect.lifecycle import Phase, Target
from headrace.connect.log.records import AssignmentMade, StatusSet
from headrace.connect.naming import UnitId

__all__ = ["ConnectorEntry", "Kept", "Leftover", "TaskEntry", "UnitStory"]

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
        """Tell whether a state comes too late: its worker had not read the one before it.

        So a state that is sent twice counts once, and one that was held up on its way, until its
        worker or a successor had said something else, not at all.
        """
        return status.read is not None and status.read < max(self.changed, since)

    def told(self, status: StatusSet, position: int, *, since: int) -> Self:
        """Give the story with one more state; of copies older than ``since`` only their end counts.

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
        """Give what must be known of it even when its name has a new meaning: who lives."""
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
        """Give every copy that is wanted: the connector first, then its tasks."""
        if self.active:
            yield UnitId(self.name, None, self.generation)
            for number, task in enumerate(self.tasks):
                yield UnitId(self.name, number, task.generation)

    def generation_of(self, task: int | None) -> int:
        """Give the wanted generation of the connector or one of its tasks."""
        return self.generation if task is None else self.tasks[task].generation

    def story_of(self, task: int | None) -> UnitStory:
        """Give what is known of the connector or a task, whether it is wanted or not."""
        return self.story if task is None else self.task_stories.get(task, UnitStory())

    def status(self, task: int | None = None) -> StatusSet | None:
        """Give the last word on the wanted copy of the connector or a task; None: there is none."""
        current = self.story_of(task).current
        wanted = self.generation_of(task)
        return current if current is not None and current.generation == wanted else None

    def failed(self, task: int | None = None) -> bool:
        """Whether the wanted copy stands in Error."""
        now = self.status(task)
        return now is not None and now.phase is Phase.ERROR

    def alive(self) -> Iterator[StatusSet]:
        """Give every copy that may be alive, wanted or not."""
        yield from self.story.alive
        for story in self.task_stories.values():
            yield from story.alive


class Kept(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="kept",
    forbid_unknown_fields=True,
):
    """What a compaction leaves: the sum of all records about one name, or the last assignment.

    Who has read all that it sums up learns nothing new from it.
    """

    #: Position of the last record that is summed up here.
    as_of: int
    entry: ConnectorEntry | None = None
    assignment: AssignmentMade | None = None
    #: Only of the first one: all names that there are, so that no other one comes back.
    names: tuple[str, ...] | None = None
    #: Only of the first one: requests that were decided lately.
    recent: tuple[str, ...] = ()
