"""An assignment: which worker runs what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.connect.log import AssignmentMade
from headrace.connect.naming import TaskId

if TYPE_CHECKING:
    from headrace.connect.log import ClusterView

__all__ = ["Assignment", "Place"]


class Place(NamedTuple):
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
    >>> plan.owner(Place("orders", None)), plan.owner(Place("orders", 0))
    ('w1', None)
    """

    #: 0: there has been none yet.
    generation: int = 0
    connectors: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[TaskId, str] = field(default_factory=dict)
    #: Workers that are gone, and until when (wall clock, s) what they ran waits for them.
    lost: Mapping[str, float] = field(default_factory=dict)
    #: What waits for a lost worker: it is still given to it.
    delayed: frozenset[Place] = frozenset()
    #: What is given to nobody until its old copy is gone.
    waiting: frozenset[Place] = frozenset()

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

    def owner(self, place: Place) -> str | None:
        """Give the worker that is to run a connector or task; None: nobody."""
        if place.task is None:
            return self.connectors.get(place.connector)
        return self.tasks.get(TaskId(place.connector, place.task))

    @property
    def due(self) -> float | None:
        """When a lost worker's time is over, and a new assignment due."""
        owners = {self.owner(place) for place in self.delayed}
        return min((until for one, until in self.lost.items() if one in owners), default=None)
