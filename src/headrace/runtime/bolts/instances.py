"""Instances of users' components: kept from batch to batch in the process that runs their task."""

from __future__ import annotations

import contextlib
import copy
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.errors import HeadraceError, RollbackError
from headrace.runtime.chunk import Chunk, Int64s
from headrace.topology.tuples import DEFAULT_STREAM, BatchGroupId, TaskContext, Tuple
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.runtime.control import Control
    from headrace.runtime.state.interface import Attempted
    from headrace.topology.operators.bolts import Bolt, Spout


# Collectors: what tasks emit, kept by stream until the task has done its part of a batch.

#: In place of the number of the tuple that is executed: none is.
NO_TUPLE = -1


class _Stream:
    """What was emitted to one stream."""

    __slots__ = ("causes", "is_direct", "rows", "targets", "width")

    def __init__(self, width: int, *, is_direct: bool) -> None:
        self.width = width
        self.is_direct = is_direct
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.rows: list[tuple[Any, ...]] = []
        #: Number of the tuple whose execution emitted each.
        self.causes = array("q")
        self.targets = array("q")

    def drop_last(self) -> None:
        """Take back what was emitted last."""
        self.rows.pop()
        self.causes.pop()
        if self.is_direct:
            self.targets.pop()

    def chunk(self, times: Int64s, marks: Int64s, task: int) -> Chunk:
        """Return what was emitted.

        Each has time and mark of its cause, the last ones without one.
        """
        causes = np.frombuffer(self.causes, np.int64) if self.rows else np.empty(0, np.int64)
        targets = np.frombuffer(self.targets, np.int64) if self.is_direct else None
        emitters = np.full(len(causes), task, np.int64)
        chunk = Chunk(
            None, self.rows, times[causes], marks[causes], emitters=emitters, targets=targets
        )
        self.clear()
        return chunk


class TaskOutput:
    """Takes what a task emits, and remembers when it gave up.

    Parameters
    ----------
    component
        The operator of the task.
    """

    def __init__(self, component: Spout | Bolt) -> None:
        self._name = component.name
        self._streams = {
            stream: _Stream(len(fields), is_direct=stream in component.direct_streams)
            for stream, fields in component.streams.items()
        }
        #: Number of the tuple that is executed.
        self.cause = NO_TUPLE
        #: Why the task gave up, once it did.
        self.failed: object = None

    def taken(self, times: Int64s, marks: Int64s, task: int) -> dict[str, Chunk]:
        """Take what was emitted, by stream."""
        return {
            stream: kept.chunk(times, marks, task)
            for stream, kept in self._streams.items()
            if kept.rows
        }

    def clear(self) -> None:
        """Forget everything."""
        for stream in self._streams.values():
            stream.clear()
        self.cause, self.failed = NO_TUPLE, None

    def forget_cause(self) -> None:
        """Take back what the execution of the present tuple emitted."""
        for kept in self._streams.values():
            while kept.causes and kept.causes[-1] == self.cause:
                kept.drop_last()

    def _put(self, values: Sequence[Any], stream: str, target: int | None = None) -> None:
        kept = self._streams.get(stream)
        if type(values) is not tuple:
            values = self._listed(values)
        if kept is None or len(values) != kept.width or kept.is_direct != (target is not None):
            raise self._refusal(values, stream, kept, target)
        kept.rows.append(values)
        kept.causes.append(self.cause)
        if target is not None:
            kept.targets.append(target)

    def _listed(self, values: Iterable[Any]) -> tuple[Any, ...]:
        if isinstance(values, (str, bytes, Mapping)):
            message = f"'{self._name}' emits {values!r:.100}: give a list or tuple of values"
            raise TypeError(message)
        return tuple(values)

    def _refusal(
        self, values: Sequence[Any], stream: str, kept: _Stream | None, target: int | None
    ) -> Exception:
        if kept is None:
            declared = ", ".join(map(repr, self._streams)) or "none"
            return KeyError(f"'{self._name}' emits to stream {stream!r}; it declared {declared}")
        if kept.is_direct != (target is not None):
            other = "emit_direct" if kept.is_direct else "emit"
            return TypeError(f"'{self._name}' must use {other} for its stream {stream!r}")
        return ValueError(
            f"'{self._name}' emits {len(values)} values to stream {stream!r}, which has"
            f" {kept.width} fields: {values!r:.200}"
        )


class BoltOutput(TaskOutput):
    """The collector of a bolt's task."""

    def emit(
        self,
        values: Sequence[Any],
        anchor: Tuple | None = None,  # noqa: ARG002 - a batch succeeds as a whole
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Send a tuple to every bolt that subscribed to the stream."""
        kept = self._streams.get(stream)
        if (
            values.__class__ is not tuple
            or kept is None
            or len(values) != kept.width
            or kept.is_direct
        ):
            self._put(values, stream)
            return
        # This runs for every tuple: a call less is worth the repetition.
        kept.rows.append(values)
        kept.causes.append(self.cause)

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchor: Tuple | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Send a tuple to one task."""
        del anchor
        self._put(values, stream, task)

    def ack(self, taken: Tuple) -> None:
        """Do nothing: a batch succeeds as a whole."""

    def fail(self, reason: object) -> None:
        """Abandon the batch."""
        self.failed = reason or "no reason given"


class SpoutOutput(TaskOutput):
    """The collector of a spout's task; its tuples are numbered as they come."""

    def __init__(self, component: Spout) -> None:
        super().__init__(component)
        #: Whether the spout ended the batch.
        self.barrier = False
        self.emitted = 0

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Send a tuple to every bolt that subscribed to the stream."""
        self.cause = self.emitted
        self._put(values, stream)
        self.emitted += 1

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Send a tuple to one task."""
        self.cause = self.emitted
        self._put(values, stream, task)
        self.emitted += 1

    def emit_barrier(self) -> None:
        """End the batch here."""
        self.barrier = True

    def fail(self, reason: object) -> None:
        """Abandon the batch."""
        self.failed = reason or "no reason given"

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.barrier, self.emitted = False, 0


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
        """Return whether the instance can go on with a batch.

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
        """Return whether the instance can serve neither this batch nor any later one."""
        if self.life != numbers.life:
            return True
        same = self.epoch == numbers.epoch
        return keeps and same and not self.running and self.finished < numbers.batch - 1


def opening(standing: InstanceState | None, numbers: BatchNumbers) -> list[Opening]:
    """Return the callbacks that begin a batch, for a component that keeps state.

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
        """Return the id of a batch of the group."""
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
        """Clean up the user's object; what it raises now changes nothing any more."""
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
        """Return the instance that serves a task with state, told all that comes before tuples.

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
        """Return the instance that serves a task which keeps nothing in memory."""
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
