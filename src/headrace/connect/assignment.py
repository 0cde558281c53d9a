"""Who runs what: a pure, sticky assignment of connectors and tasks to workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from headrace.connect.log import AssignmentMade, ClusterView
from headrace.connect.naming import TaskId

# An assignment: which worker runs what.


class UnitName(NamedTuple):
    """A connector or one of its tasks, whichever copy of it."""

    connector: str
    #: None: the connector itself.
    task: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Which worker runs what, and what waits.

    Examples
    --------
    >>> plan = Assignment(generation=3, connectors={"orders": "w1"})
    >>> plan.owner(UnitName("orders", None)), plan.owner(UnitName("orders", 0))
    ('w1', None)
    """

    #: 0: there has been none yet.
    generation: int = 0
    connectors: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[TaskId, str] = field(default_factory=dict)
    #: Workers that are gone, and until when (wall clock, s) what they ran waits for them.
    lost: Mapping[str, float] = field(default_factory=dict)
    #: What waits for a lost worker: it is still given to it.
    delayed: frozenset[UnitName] = frozenset()
    #: What is given to nobody until its old copy is gone.
    waiting: frozenset[UnitName] = frozenset()

    @classmethod
    def of(cls, made: AssignmentMade | None) -> Self:
        """Read the assignment that stands in the log."""
        if made is None:
            return cls()
        tasks = {
            TaskId(name, number): worker
            for name, workers in made.tasks.items()
            for number, worker in enumerate(workers)
            if worker
        }
        lost = {worker: until / 1000 for worker, until in made.lost.items()}
        return cls(generation=made.generation, connectors=made.connectors, tasks=tasks, lost=lost)

    def record(
        self, view: ClusterView, maker: str, settled: Collection[str] = ()
    ) -> AssignmentMade:
        """Write it for the log, made from what this view has read, with workers lost for good."""
        tasks: dict[str, list[str]] = {}
        for task, worker in sorted(self.tasks.items()):
            workers = tasks.setdefault(task.connector, [])
            workers += [""] * (task.task - len(workers)) + [worker]
        return AssignmentMade(
            generation=self.generation,
            log_position=view.position,
            connectors=dict(sorted(self.connectors.items())),
            tasks=tasks,
            lost={worker: round(until * 1000) for worker, until in sorted(self.lost.items())},
            settled=sorted(settled),
            maker=maker,
        )

    def owner(self, place: UnitName) -> str | None:
        """Return the worker that is to run a connector or task, or None if nobody is."""
        if place.task is None:
            return self.connectors.get(place.connector)
        return self.tasks.get(TaskId(place.connector, place.task))

    @property
    def due(self) -> float | None:
        """When a lost worker's time is over, and a new assignment due."""
        owners = {self.owner(place) for place in self.delayed}
        return min((until for one, until in self.lost.items() if one in owners), default=None)


# The one function that gives connectors and tasks to workers.
#
# It is pure, so that any worker that holds the lease can take over from another:
#
# * **Sticky**: what a living worker runs stays there, unless it has more than its share.
# * **Balanced**: connectors and tasks are shared out apart, each so that no worker has two more than
#   another.
# * **Revoke first**: what has to move is taken away in one assignment, and given to its new worker in
#   a later one, when the log says that the old copy is gone.
# * **Patient**: what a lost worker ran waits for it for a while, as most come back.


def assign(
    view: ClusterView,
    workers: Collection[str],
    previous: Assignment,
    now: float,
    delay: float,
) -> Assignment:
    """Return the assignment that follows; its generation is the same if nothing has to change.

    Parameters
    ----------
    view
        What is wanted, and which copies may be alive.
    workers
        Those that are alive.
    previous
        The newest assignment of the log.
    now
        Seconds of the wall clock.
    delay
        Seconds for which a lost worker's connectors and tasks wait for it.  It must be longer than
        a worker that cannot read the log goes on running them.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, fold
    >>> view = ClusterView()
    >>> for name in ("a", "b", "c"):
    ...     put = ConnectorPut(request=name, name=name, config={})
    ...     view, _ = fold(view, put, view.position + 1)
    >>> first = assign(view, {"w1", "w2"}, Assignment(), 0.0, 30.0)
    >>> first.generation, first.connectors
    (1, {'a': 'w1', 'b': 'w2', 'c': 'w1'})
    >>> assign(view, {"w1", "w2"}, first, 1.0, 30.0) == first
    True
    """
    places = [UnitName(unit.connector, unit.task) for unit in view.units()]
    lost = _lost(view, workers, previous, now, delay)
    patient = {worker for worker, until in lost.items() if now < until}
    holders = _holders(view, {*workers, *patient})
    owners = {
        place: owner
        for place in places
        if (owner := previous.owner(place)) is not None and (owner in workers or owner in patient)
    }
    delayed = frozenset(place for place, owner in owners.items() if owner in patient)
    for kind in (False, True):
        mine = [place for place in places if (place.task is None) == kind and place not in delayed]
        _share(mine, sorted(workers), owners, holders)
    waiting = frozenset(place for place in places if place not in owners)
    found = Assignment(
        generation=previous.generation + 1,
        connectors={place.connector: one for place, one in owners.items() if place.task is None},
        tasks={
            TaskId(place.connector, place.task): one
            for place, one in owners.items()
            if place.task is not None
        },
        lost=lost,
        delayed=delayed,
        waiting=waiting,
    )
    return replace(found, generation=previous.generation) if _same(found, previous) else found


def _same(found: Assignment, previous: Assignment) -> bool:
    return (
        found.connectors == previous.connectors
        and found.tasks == previous.tasks
        and found.lost == previous.lost
    )


def _lost(
    view: ClusterView,
    workers: Collection[str],
    previous: Assignment,
    now: float,
    delay: float,
) -> dict[str, float]:
    """Return the workers that are gone and had something, with the time at which it is given away."""
    had = {status.worker for status in view.alive()}
    had |= {*previous.connectors.values(), *previous.tasks.values()}
    return {one: previous.lost.get(one, now + delay) for one in sorted(had - set(workers))}


def _holders(view: ClusterView, counted: Collection[str]) -> dict[UnitName, set[str]]:
    """Return the workers that may still run a copy of something."""
    holders: dict[UnitName, set[str]] = {}
    for status in view.alive():
        if status.worker in counted:
            holders.setdefault(UnitName(status.connector, status.task), set()).add(status.worker)
    return holders


def _share(
    places: Sequence[UnitName],
    workers: Sequence[str],
    owners: dict[UnitName, str],
    holders: Mapping[UnitName, set[str]],
) -> None:
    """Share places of one kind among the workers; affects ``owners``."""
    if not workers:
        return
    loads = _loads(workers, owners, places)
    quotas = _quotas(workers, loads, len(places))
    for place in reversed(places):
        owner = owners.get(place)
        if owner is not None and loads[owner] > quotas[owner]:
            del owners[place]
            loads[owner] -= 1
    totals = _loads(workers, owners, owners)
    for place in places:
        if place in owners:
            continue
        free = [one for one in workers if loads[one] < quotas[one]]
        old = holders.get(place, set())
        able = [one for one in free if old <= {one}]
        if able:
            best = min(able, key=lambda one: (loads[one], totals[one], one))
            owners[place] = best
            loads[best] += 1
            totals[best] += 1


def _loads(
    workers: Iterable[str], owners: Mapping[UnitName, str], places: Iterable[UnitName]
) -> dict[str, int]:
    loads = dict.fromkeys(workers, 0)
    for place in places:
        if (owner := owners.get(place)) in loads:
            loads[owner] += 1
    return loads


def _quotas(workers: Sequence[str], loads: Mapping[str, int], places: int) -> dict[str, int]:
    """Return the share of each worker.

    Those that have most keep one more where it does not divide.
    """
    share, more = divmod(places, len(workers))
    order = sorted(workers, key=lambda one: (-loads[one], one))
    return {one: share + (number < more) for number, one in enumerate(order)}
