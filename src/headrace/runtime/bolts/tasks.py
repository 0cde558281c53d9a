"""What processors of spouts and bolts have in common: tasks, times of tuples, saved states."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from headrace.errors import DeserializationError, HeadraceError, SerializationError
from headrace.runtime.bolts.instances import BatchNumbers, Instance, TaskInBatch
from headrace.runtime.bolts.states import Saved, TaskStates, damaged_state, tasks_in
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.marks import spout_mark
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.topology.operators.bolts import Bolt, Spout
from headrace.topology.tuples import COMMIT_FAIL, DEFAULT_STREAM

__all__ = ["ComponentProcessor", "StatefulTasks"]

ComponentT = TypeVar("ComponentT", bound=Spout | Bolt)


class ComponentProcessor(Processor[ComponentT]):
    """Runs the tasks of a component that are in one partition."""

    def __init__(self, operator: ComponentT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.numbers = BatchNumbers.of(context.control)
        self.partition = context.partition
        #: Instances that have begun the batch, by task.
        self.begun: dict[int, Instance] = {}

    @property
    def parallelism(self) -> int:
        """How many tasks the component has."""
        return self.operator.parallelism

    @property
    def tasks(self) -> range:
        """The tasks that are in the partition."""
        return tasks_in(self.partition, self.context.partitions, self.parallelism)

    def place(self, task: int) -> TaskInBatch:
        """Name a task in this batch."""
        job = self.context.control.job
        return TaskInBatch(self.operator, task, self.parallelism, job, self.numbers)

    def hand_over(self, given: dict[str, list[Chunk]]) -> Chunk:
        """Give what tasks emitted to whoever subscribed; what they emit by default is returned."""
        main = Chunk.merge(given.pop(DEFAULT_STREAM, []))
        for stream, chunks in given.items():
            self.give(stream, Chunk.merge(chunks))
        return main

    def outside(self) -> tuple[Int64s, Int64s]:
        """Give time and mark of what is emitted while no tuple is executed."""
        clock, mark = self.context.wall_clock, spout_mark(self.partition)
        return np.array([clock], np.int64), np.array([mark], np.int64)


class StatefulTasks:
    """The tasks of a component with one state each: begins them, and ends their batch.

    Parameters
    ----------
    processor
        Runs the component.
    """

    def __init__(self, processor: ComponentProcessor[Any]) -> None:
        self._processor = processor
        self._serde = processor.operator.state_serde
        self._saved: dict[int, Saved] = {}
        self._opened: TaskStates | None = None

    def begin(self, task: int, output: Any) -> Instance:
        """Give the instance of a task, ready for tuples."""
        processor = self._processor
        if task not in processor.begun:
            saved = self._saved[task] = self._states.read(task)
            processor.begun[task] = processor.context.instances.begin_stateful(
                processor.place(task),
                lambda: output(processor.operator),
                saved.wrote,
                lambda: self._read(task, saved),
            )
        return processor.begun[task]

    def finish(self, task: int, instance: Instance, *, busy: bool) -> None:
        """End the batch of a task: its state goes into the store."""
        place, saved = instance.place, self._saved[task]
        batch = place.batch(place.numbers.batch)
        state = instance.call("commit", batch, instance.call("finish_batch"))
        if state is COMMIT_FAIL:
            raise instance.refusal("commit gave COMMIT_FAIL")
        data = self._written(task, state)
        wrote = saved.wrote
        if busy or wrote is None or data != saved.data:
            wrote = (*self._processor.context.epoch_and_batch, self._processor.context.attempt)
            self._states.write(task, data, wrote, saved)
        instance.finish(wrote)

    @property
    def _states(self) -> TaskStates:
        if self._opened is None:
            processor = self._processor
            self._opened = TaskStates(processor.context.store(processor.operator))
        return self._opened

    def _read(self, task: int, saved: Saved) -> Any:
        if saved.data is None:
            return None
        try:
            return self._serde.deserialize(saved.data)
        except DeserializationError as error:
            raise damaged_state(self._processor.operator, error) from error
        except HeadraceError:
            raise
        except Exception as error:
            raise self._unreadable(task, "read", error) from error

    def _written(self, task: int, state: Any) -> bytes:
        try:
            data: bytes = self._serde.serialize(state)
        except Exception as error:
            raise self._unreadable(task, "written", error) from error
        return data

    def _unreadable(self, task: int, what: str, error: Exception) -> SerializationError:
        own = self._processor.operator
        return SerializationError(
            f"the state of {own.label} '{own.name}', task {task}, cannot be {what}"
            f" ({self._serde!r}): {type(error).__name__}: {error}",
            hint=f"it was added at {own.origin}; let commit give plain data, or objects of classes"
            " that workers can import",
        )
