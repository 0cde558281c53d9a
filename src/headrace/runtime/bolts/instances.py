"""Instances of users' components: kept from batch to batch in the process that runs their task."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, RollbackError
from headrace.topology.tuples import BatchGroupId, TaskContext
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.runtime.bolts.collectors import TaskOutput
    from headrace.runtime.control import Control
    from headrace.runtime.state.interface import Attempted
    from headrace.topology.operators.bolts import Bolt, Spout


# The order of callbacks: which ones begin a batch for a task.  Pure: numbers in, names out.
#
# A task of a component is served by instances, copies of the user's object, one after the other and
# each in one process.  What an instance has in memory is worth keeping for the next batch only if it
# is what the last commit says; else the instance is dropped and another one begins with the state.

Opening = Literal["prepare", "init_state", "roll_back", "ack_commit"]
"""A callback that may come before the first tuple of a batch."""


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """Which batch runs."""

    #: First epoch of the driver's life.
    life: int
    epoch: int
    batch: int
    #: Whether it is the first batch of its epoch.
    begins_epoch: bool = False

    @classmethod
    def of(cls, control: Control) -> BatchNumbers:
        """Read them from what the driver tells."""
        lineage = control.lineage
        begins = not lineage or lineage[-1][0] != control.epoch
        return cls(control.life or control.epoch, control.epoch, control.batch, begins)

    @property
    def rolls_back(self) -> bool:
        """Whether a batch failed before it within the driver's life."""
        return self.begins_epoch and self.epoch > self.life


@dataclass(slots=True)
class InstanceState:
    """What an instance has lived through."""

    life: int
    epoch: int
    #: The batch that it finished last; 0 for none.
    finished: int = 0
    #: Whether it has begun a batch and not finished it.
    running: bool = False
    #: The batch whose commit it was told of last.
    acked: int = 0
    #: The attempt that wrote the state which it goes on from; None where there is none.
    wrote: Attempted | None = None

    def serves(self, numbers: BatchNumbers, saved: Attempted | None, *, keeps: bool = True) -> bool:
        """Tell whether the instance can go on with a batch.

        Parameters
        ----------
        numbers
            The batch.
        saved
            The attempt that wrote the state which the batch begins with.
        keeps
            Whether the component keeps state in memory; else an instance serves any batch.
        """
        if self.running or self.life != numbers.life:
            return False
        if not keeps:
            return True
        if numbers.rolls_back and self.epoch < numbers.epoch:
            # It is told to go back, so it does not matter where it is.
            return True
        follows = self.epoch == numbers.epoch and self.finished == numbers.batch - 1
        return follows and self.wrote == saved

    def is_stale(self, numbers: BatchNumbers, *, keeps: bool = True) -> bool:
        """Tell whether the instance cannot serve this batch or any later one."""
        if self.life != numbers.life:
            return True
        same = self.epoch == numbers.epoch
        return keeps and same and not self.running and self.finished < numbers.batch - 1


def opening(standing: InstanceState | None, numbers: BatchNumbers) -> list[Opening]:
    """Give the callbacks that begin a batch, for a component that keeps state.

    Parameters
    ----------
    standing
        Of the instance that goes on; None for one that is new.
    numbers
        The batch.

    Examples
    --------
    >>> opening(None, BatchNumbers(life=1, epoch=1, batch=1, begins_epoch=True))
    ['prepare', 'init_state']
    >>> opening(None, BatchNumbers(life=1, epoch=2, batch=5, begins_epoch=True))
    ['prepare', 'init_state', 'roll_back', 'ack_commit']
    """
    steps: list[Opening] = ["prepare", "init_state"] if standing is None else []
    if numbers.rolls_back:
        steps.append("roll_back")
    if numbers.batch - 1 > (0 if standing is None else standing.acked):
        steps.append("ack_commit")
    return steps


@dataclass(frozen=True, slots=True)
class TaskInBatch:
    """A task of a component in one batch."""

    component: Spout | Bolt
    task: int
    #: How many tasks the component has.
    tasks: int
    #: Name of the job.
    job: str
    numbers: BatchNumbers

    @property
    def context(self) -> TaskContext:
        """What the task is told of itself."""
        own = self.component
        return TaskContext(self.job, own.name, self.task, self.tasks, own.group_id, own.config)

    def batch(self, number: int) -> BatchGroupId:
        """Name a batch of the group."""
        return BatchGroupId(number, self.component.group_id)


class Instance:
    """A copy of a user's object that serves one task.

    Parameters
    ----------
    place
        The task and the batch that it begins with.
    output
        The collector of the task.
    keeps
        Whether the component keeps state in memory.
    """

    def __init__(self, place: TaskInBatch, output: TaskOutput, *, keeps: bool) -> None:
        self.keeps = keeps
        self.user: Any = copy.deepcopy(place.component.component)
        self.output: Any = output
        self.standing = InstanceState(place.numbers.life, place.numbers.epoch)
        self.place = place

    def begin(self, place: TaskInBatch, saved: Attempted | None = None) -> None:
        """Note that a batch begins: until it is finished, the instance serves no other."""
        self.place = place
        self.output.clear()
        self.standing.running = True
        self.standing.epoch = place.numbers.epoch
        self.standing.wrote = saved

    def finish(self, wrote: Attempted | None = None) -> None:
        """Note that the batch is done, and which attempt wrote the state."""
        self.standing.running = False
        self.standing.finished = self.place.numbers.batch
        self.standing.wrote = wrote

    def call(self, callback: str, *arguments: Any) -> Any:
        """Call the user's object.

        Raises
        ------
        RollbackError
            It raised, or gave the batch up.
        """
        try:
            found = getattr(self.user, callback)(*arguments)
        except Exception as error:
            raise self.failure(callback, error) from error
        self.check(callback)
        return found

    def check(self, callback: str) -> None:
        """Refuse to go on where the task gave the batch up.

        Raises
        ------
        RollbackError
            It did.
        """
        reason = self.output.failed
        if reason is not None:
            told = str(reason) if isinstance(reason, (str, BaseException)) else repr(reason)
            raise self._rollback(f"gave the batch up in {callback}: {told:.500}", None)

    def failure(self, callback: str, error: Exception, where: str = "") -> HeadraceError:
        """Make the error that names component, task, batch, callback and the user's line."""
        if isinstance(error, HeadraceError):
            return error
        line = user_line(error, getattr(type(self.user), callback, None))
        what = f"failed in {callback}{where}: {type(error).__name__}: {error}"
        return self._rollback(what, line)

    def refusal(self, what: str) -> RollbackError:
        """Make the error of a task whose batch did not succeed."""
        return self._rollback(what, None)

    def _rollback(self, what: str, line: str | None) -> RollbackError:
        own, batch = self.place.component, self.place.numbers.batch
        return RollbackError(
            f"{own.label} '{own.name}', task {self.place.task}, batch {batch}: {what}"
            + ("" if line is None else f"\n  at {line}"),
            hint=f"it was added at {own.origin}; nothing of this batch was committed: the group"
            " rolls back to its last commit",
            component=own.name,
            task=self.place.task,
            batch=batch,
            line=line,
        )

    def prepare(self) -> None:
        """Prepare the user's object: a bolt gets its collector too."""
        more = () if self.place.component.label == "spout" else (self.output,)
        self.call("prepare", self.place.context, *more)

    def close(self) -> None:
        """Let the user's object clean up; what it raises now changes nothing any more."""
        with contextlib.suppress(Exception):
            self.user.cleanup()


@dataclass(slots=True)
class Instances:
    """The instances that one process keeps for a job, by component and task."""

    _kept: dict[tuple[str, int], Instance] = field(default_factory=dict)
    _looked: BatchNumbers | None = None

    def begin_stateful(
        self,
        place: TaskInBatch,
        output: Callable[[], TaskOutput],
        saved: Attempted | None,
        state: Callable[[], Any],
    ) -> Instance:
        """Give the instance that serves a task with state, told all that comes before tuples.

        Parameters
        ----------
        place
            The task.
        output
            Makes a collector.
        saved
            The attempt that wrote the task's state; None where there is none.
        state
            Reads the state.
        """
        kept = self._fitting(place, saved, keeps=True)
        instance = kept or self._added(Instance(place, output(), keeps=True))
        steps = opening(None if kept is None else kept.standing, place.numbers)
        instance.begin(place, saved)
        for step in steps:
            if step == "prepare":
                instance.prepare()
            elif step == "ack_commit":
                self._acknowledge(instance)
            else:
                instance.call(step, state())
        return instance

    def begin(
        self, place: TaskInBatch, output: Callable[[], TaskOutput], *, acks: bool = False
    ) -> Instance:
        """Give the instance that serves a task which keeps nothing in memory."""
        kept = self._fitting(place, None, keeps=False)
        instance = kept or self._added(Instance(place, output(), keeps=False))
        instance.begin(place)
        if kept is None:
            instance.prepare()
        if acks and place.numbers.batch - 1 > instance.standing.acked:
            self._acknowledge(instance)
        return instance

    def close(self) -> None:
        """Clean all of them up."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _acknowledge(self, instance: Instance) -> None:
        number = instance.place.numbers.batch - 1
        instance.call("ack_commit", instance.place.batch(number))
        instance.standing.acked = number

    def _fitting(
        self, place: TaskInBatch, saved: Attempted | None, *, keeps: bool
    ) -> Instance | None:
        self._drop_stale(place.numbers)
        key = place.component.name, place.task
        kept = self._kept.get(key)
        if kept is not None and not kept.standing.serves(place.numbers, saved, keeps=keeps):
            self._kept.pop(key).close()
            return None
        return kept

    def _added(self, instance: Instance) -> Instance:
        place = instance.place
        self._kept[place.component.name, place.task] = instance
        return instance

    def _drop_stale(self, numbers: BatchNumbers) -> None:
        """Drop instances of tasks that have moved to other processes: they would only take room."""
        if numbers == self._looked:
            return
        self._looked = numbers
        for key, instance in list(self._kept.items()):
            if instance.standing.is_stale(numbers, keeps=instance.keeps):
                self._kept.pop(key).close()
