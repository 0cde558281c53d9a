"""The one function that decides: which records of the log hold, and what they change.

Every worker folds the same records in the same order, and so comes to the same view: of two
requests that contradict each other, the one that stands first in the log wins.  No clock is read,
and nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from headrace.connect.lifecycle import Cause, Ending, Phase, Target
from headrace.connect.log.records import (
    AssignmentMade,
    ClusterView,
    CompactedRecord,
    ConnectorDeleted,
    ConnectorEntry,
    ConnectorPut,
    Leftover,
    LeftoversGone,
    LevelSet,
    Purged,
    Record,
    RestartAsked,
    StatusSet,
    TargetSet,
    TaskEntry,
    TasksPut,
    TasksWanted,
    TopicsReset,
    TopicUsed,
    UnitStory,
)

# What becomes of the copies of a worker that was lost for good.


def settle(view: ClusterView, workers: Collection[str], position: int) -> ClusterView:
    """Return the view in which nothing of these workers lives any more, by the record at a position.

    What failed stays failed; anything else may run again.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, StatusSet, fold
    >>> view, _ = fold(ClusterView(), ConnectorPut(request="a", name="orders", config={}), 0)
    >>> runs = StatusSet(connector="orders", generation=0, phase=Phase.RUNNING, worker="w1")
    >>> view, _ = fold(view, runs, 1)
    >>> [one.worker for one in view.alive()]
    ['w1']
    >>> list(settle(view, {"w1"}, 2).alive())
    []
    """
    entries = {name: _settled(entry, workers, position) for name, entry in view.entries.items()}
    return replace(view, entries=entries)


def _settled(entry: ConnectorEntry, workers: Collection[str], position: int) -> ConnectorEntry:
    if not any(status.worker in workers for status in entry.alive()):
        return entry
    return msgspec.structs.replace(
        entry,
        changed=position,
        story=_ended(entry.story, workers, position, entry.created),
        task_stories={
            task: _ended(story, workers, position, entry.created)
            for task, story in entry.task_stories.items()
        },
    )


def _ended(story: UnitStory, workers: Collection[str], position: int, since: int) -> UnitStory:
    for status in story.alive:
        if status.worker in workers:
            story = story.told(_end(status), position, since=since)
    return story


def _end(status: StatusSet) -> StatusSet:
    failed = status.phase is Phase.ERROR
    return msgspec.structs.replace(
        status,
        phase=Phase.ERROR if failed else Phase.NEW,
        cause=status.cause or Cause(f"worker '{status.worker}' was lost"),
        gone=True,
        ending=status.ending if failed else Ending.DIED,
        rungs=(),
    )


_RECENT = 256

RejectedFor = Literal["exists", "missing", "version", "stale", "behind", "duplicate", "in-use"]


@dataclass(frozen=True, slots=True)
class Applied:
    """The record holds."""

    position: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The record changes nothing."""

    reason: RejectedFor
    #: For people: what was wanted, and what stands against it.
    message: str


Outcome = Applied | Rejected
_Step = tuple[ClusterView, Outcome]


def fold(
    view: ClusterView, record: Record | CompactedRecord, position: int
) -> tuple[ClusterView, Outcome]:
    """Return the view after one more record, and whether the record holds.

    Parameters
    ----------
    view
        The sum of all records before.
    record
        The next one.
    position
        Where it stands in the log.

    Examples
    --------
    >>> put = ConnectorPut(request="a", name="orders", config={}, expected_version=0)
    >>> view, outcome = fold(ClusterView(), put, 0)
    >>> outcome
    Applied(position=0)
    >>> again = ConnectorPut(request="b", name="orders", config={}, expected_version=0)
    >>> view, outcome = fold(view, again, 1)
    >>> outcome.reason, outcome.message
    ('exists', 'Connector orders already exists')
    """
    request: str = getattr(record, "request", "")
    if request and request in view.recent:
        twice = Rejected("duplicate", f"request {request} has been decided already")
        return replace(view, position=position), twice
    after, outcome = _RULES[type(record)](view, record, position)
    recent = (*after.recent, request)[-_RECENT:] if request else after.recent
    return replace(after, position=position, recent=recent), outcome


def _put(view: ClusterView, record: ConnectorPut, position: int) -> _Step:
    old = view.entries.get(record.name)
    present = old if old is not None and not old.deleted else None
    expected = record.expected_version
    if expected == 0 and present is not None:
        return view, Rejected("exists", f"Connector {record.name} already exists")
    if expected and present is None:
        return view, _missing(record.name)
    if expected and present is not None and present.version != expected:
        text = f"the config of '{record.name}' has changed: it is version {present.version} now"
        return view, Rejected("version", f"{text}, not {expected}")
    if present is None:
        return _with(view, _named_anew(record, old, position), position)
    entry = msgspec.structs.replace(
        present,
        config=record.config,
        version=present.version + 1,
        generation=position,
        force=False,
    )
    wanted = entry.target if record.target is None else record.target
    return _with(view, _towards(entry, wanted, position), position)


def _named_anew(record: ConnectorPut, old: ConnectorEntry | None, position: int) -> ConnectorEntry:
    """Begin a new life of a name: of an older one only what may still be alive is known."""
    stories = {} if old is None else old.task_stories
    renamed = "" if old is None else old.renamed
    if old is not None and old.forgotten:
        # No connector has a name with a slash.
        renamed = f"{record.name}/{position}"
    return ConnectorEntry(
        name=record.name,
        config=record.config,
        version=1 if old is None else old.version + 1,
        target=Target.RUNNING if record.target is None else record.target,
        created=position,
        changed=position,
        generation=position,
        renamed=renamed,
        leftovers=() if old is None else old.leftovers,
        story=UnitStory() if old is None else old.story.forgotten(),
        task_stories={task: one.forgotten() for task, one in stories.items() if one.alive},
    )


def _delete(view: ClusterView, record: ConnectorDeleted, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    marks = tuple(msgspec.structs.replace(one, config={}, deleted=True) for one in entry.tasks)
    leftovers = entry.leftovers
    if record.forget:
        leftovers += (Leftover(kept_as=entry.kept_as, config=entry.config),)
    entry = msgspec.structs.replace(
        entry,
        config={},
        tasks=marks,
        topics=(),
        deleted=True,
        force=record.force,
        forgotten=record.forget,
        leftovers=leftovers,
    )
    return _with(view, entry, position)


def _remove_leftovers(view: ClusterView, record: LeftoversGone, position: int) -> _Step:
    entry = view.entries.get(record.name)
    if entry is None:
        return view, _missing(record.name)
    left = tuple(one for one in entry.leftovers if one.kept_as not in record.kept_as)
    if left == entry.leftovers:
        return view, Applied(position)
    return _with(view, msgspec.structs.replace(entry, leftovers=left), position)


def _set_target(view: ClusterView, record: TargetSet, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    entry = msgspec.structs.replace(entry, force=record.force)
    return _with(view, _towards(entry, record.target, position), position)


def _towards(entry: ConnectorEntry, target: Target, position: int) -> ConnectorEntry:
    """Set another target for a connector; one that stops has no tasks until it is asked again."""
    if target is Target.STOPPED:
        return msgspec.structs.replace(entry, target=target, tasks=(), tasks_version=0)
    generation = position if entry.target is Target.STOPPED else entry.generation
    return msgspec.structs.replace(entry, target=target, generation=generation)


def _put_tasks(view: ClusterView, record: TasksPut, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    if not entry.active or record.config_version != entry.version:
        text = f"the tasks of '{record.name}' were made from config {record.config_version}"
        return view, Rejected("stale", f"{text}, and it is {entry.version} now, or stopped")
    fulfilled = 0 <= entry.tasks_wanted <= record.asked
    if fulfilled:
        entry = msgspec.structs.replace(entry, tasks_wanted=-1)
    same = [one.config for one in entry.tasks] == record.configs
    if same and entry.tasks_version == entry.version:
        return _with(view, entry, position) if fulfilled else (view, Applied(position))
    tasks = tuple(TaskEntry(config=config, generation=position) for config in record.configs)
    entry = msgspec.structs.replace(entry, tasks=tasks, tasks_version=entry.version, force=False)
    return _with(view, entry, position)


def _want_tasks(view: ClusterView, record: TasksWanted, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    return _with(view, msgspec.structs.replace(entry, tasks_wanted=position), position)


def _restart(view: ClusterView, record: RestartAsked, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    unknown = [one for one in _listed(record) if not 0 <= one < len(entry.tasks)]
    if unknown:
        return view, Rejected("missing", f"Unknown task: {record.name}-{unknown[0]}")
    chosen = _chosen(entry, record)
    tasks = tuple(
        msgspec.structs.replace(task, generation=position) if number in chosen else task
        for number, task in enumerate(entry.tasks)
    )
    anew = record.connector and (entry.failed() or not record.only_failed)
    generation = position if anew else entry.generation
    entry = msgspec.structs.replace(entry, tasks=tasks, generation=generation, force=record.force)
    return _with(view, entry, position)


def _listed(record: RestartAsked) -> list[int]:
    return record.tasks if isinstance(record.tasks, list) else []


def _chosen(entry: ConnectorEntry, record: RestartAsked) -> set[int]:
    """Return the numbers of the tasks that are to be restarted."""
    named = set(_listed(record) if isinstance(record.tasks, list) else range(len(entry.tasks)))
    if record.only_failed or record.tasks == "failed":
        return {number for number in named if entry.failed(number)}
    return named


def _set_status(view: ClusterView, record: StatusSet, position: int) -> _Step:
    entry = view.entries.get(record.connector)
    if entry is None:
        return view, _missing(record.connector)
    task = record.task
    story = entry.story_of(task)
    if story.is_behind(record, since=entry.created):
        text = f"{record.worker} had read {record.read} when it spoke of {record.unit.what}"
        return view, Rejected("behind", f"{text}, and more has been said since")
    told = story.told(record, position, since=entry.created)
    if told.current is not record and told.alive == story.alive:
        text = f"a newer copy of {record.unit.what} than {record.generation} is known"
        return view, Rejected("stale", text)
    if task is None:
        return _with(view, msgspec.structs.replace(entry, story=told), position)
    stories = {**entry.task_stories, task: told}
    return _with(view, msgspec.structs.replace(entry, task_stories=stories), position)


def _use_topic(view: ClusterView, record: TopicUsed, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    if record.topic in entry.topics:
        return view, Applied(position)
    topics = (*entry.topics, record.topic)
    return _with(view, msgspec.structs.replace(entry, topics=topics), position)


def _reset_topics(view: ClusterView, record: TopicsReset, position: int) -> _Step:
    entry = view.connector(record.name)
    if entry is None:
        return view, _missing(record.name)
    return _with(view, msgspec.structs.replace(entry, topics=()), position)


def _hear(view: ClusterView, record: LevelSet, position: int) -> _Step:
    """Leave all as it is: the record is for those who read it as it comes."""
    del record
    return view, Applied(position)


def _assign(view: ClusterView, record: AssignmentMade, position: int) -> _Step:
    now = 0 if view.assignment is None else view.assignment.generation
    if record.generation != now + 1:
        text = f"assignment {record.generation} does not build on the newest one, {now}"
        return view, Rejected("stale", text)
    before = view.assignment
    # Who came back is in no assignment's list any more: nobody can say that nothing of it lives.
    lost = set() if before is None else before.lost.keys() & set(record.settled)
    entries = {
        name: _moved(entry, before, record, position)
        for name, entry in settle(view, lost, position).entries.items()
    }
    return replace(view, entries=entries, assignment=record), Applied(position)


def _moved(
    entry: ConnectorEntry, before: AssignmentMade | None, now: AssignmentMade, position: int
) -> ConnectorEntry:
    """Begin a new generation of what comes to another worker: copies there are new ones."""

    def moves(task: int | None) -> bool:
        here = now.worker_of(entry.name, task)
        return here is not None and (before is None or before.worker_of(entry.name, task) != here)

    tasks = tuple(
        msgspec.structs.replace(task, generation=position) if moves(number) else task
        for number, task in enumerate(entry.tasks)
    )
    generation = position if moves(None) else entry.generation
    if entry.deleted or (tasks == entry.tasks and generation == entry.generation):
        return entry
    return msgspec.structs.replace(entry, tasks=tasks, generation=generation, changed=position)


def _purge(view: ClusterView, record: Purged, position: int) -> _Step:
    marks = {name for name in record.names if name in view.entries and view.entries[name].purgeable}
    if not marks:
        return view, Rejected("in-use", "none of the names is a mark that nothing is left behind")
    entries = {name: entry for name, entry in view.entries.items() if name not in marks}
    return replace(view, entries=entries), Applied(position)


def _keep(view: ClusterView, record: CompactedRecord, position: int) -> _Step:
    """Take over a sum, unless something that it does not know of has happened since."""
    entry, made = record.entry, record.assignment
    if record.names is not None:
        view = _begun(view, record)
    if entry is not None:
        known = view.entries.get(entry.name)
        if known is not None and known.changed > record.as_of:
            return view, Rejected("stale", f"'{entry.name}' has changed since {record.as_of}")
        view = replace(view, entries={**view.entries, entry.name: entry})
    if made is not None:
        known_made = view.assignment
        if known_made is not None and known_made.generation > made.generation:
            return view, Rejected("stale", f"assignment {known_made.generation} is newer")
        view = replace(view, assignment=made)
    return view, Applied(position)


def _begun(view: ClusterView, first: CompactedRecord) -> ClusterView:
    """Forget names that were gone, of which a compaction has not removed every record yet."""
    names = first.names or ()
    entries = {
        name: entry
        for name, entry in view.entries.items()
        if name in names or entry.changed > first.as_of
    }
    later = tuple(one for one in view.recent if one not in first.recent)
    return replace(view, entries=entries, recent=(*first.recent, *later)[-_RECENT:])


def _with(view: ClusterView, entry: ConnectorEntry, position: int) -> _Step:
    changed = msgspec.structs.replace(entry, changed=position)
    return replace(view, entries={**view.entries, entry.name: changed}), Applied(position)


def _missing(name: str) -> Rejected:
    return Rejected("missing", f"Connector {name} not found")


# Each takes its own kind of record.
_RULES: dict[type[Any], Callable[[ClusterView, Any, int], _Step]] = {
    ConnectorPut: _put,
    ConnectorDeleted: _delete,
    LeftoversGone: _remove_leftovers,
    TargetSet: _set_target,
    TasksPut: _put_tasks,
    TasksWanted: _want_tasks,
    RestartAsked: _restart,
    StatusSet: _set_status,
    TopicUsed: _use_topic,
    TopicsReset: _reset_topics,
    LevelSet: _hear,
    AssignmentMade: _assign,
    Purged: _purge,
    CompactedRecord: _keep,
}
