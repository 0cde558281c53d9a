"""The states of tasks in their store: one entry per task, in pieces where it is large.

======  =========================================================================
part    what it holds
======  =========================================================================
key     ``t``, number of the task (u32), number of the piece (u32), big-endian
value   of the first piece: number of pieces (u32), then epoch, batch and attempt
        that wrote it (u64 each), then bytes of the state; of the others: bytes
======  =========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.errors import DeserializationError, HeadraceError, SerializationError, StateError
from headrace.keys import decode_key, encode_key
from headrace.runtime.bolts.instances import BatchNumbers, Instance, TaskInBatch
from headrace.runtime.chunk import Chunk, Int64s, spout_mark
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.state.layouts import PlainLayout, Read, Span, StateEntry, StateLayout
from headrace.topology.operators.bolts import Bolt, Spout
from headrace.topology.tuples import COMMIT_FAIL, DEFAULT_STREAM

if TYPE_CHECKING:
    from headrace.runtime.state.interface import Attempted, StateStore


# Places of tasks and key ranges: pure arithmetic, the same in every process.
#
# Task *t* of a component is in partition ``t % partitions``.  Range *r* of a key-value bolt is in
# partition ``r % partitions``, whatever its parallelism is, and belongs to one of the tasks there.


def tasks_in(partition: int, partitions: int, parallelism: int) -> range:
    """Return the tasks of a component that are in a partition.

    >>> list(tasks_in(1, 4, 6)), list(tasks_in(3, 4, 6))
    ([1, 5], [3])
    """
    return range(partition, parallelism, partitions)


def key_value_tasks(parallelism: int, partitions: int) -> int:
    """Return how many tasks a key-value bolt has: every partition has ranges, and so a task."""
    return max(parallelism, partitions)


def task_of_ranges(ranges: Int64s, partitions: int, tasks: int) -> Int64s:
    """Return the task that each key range belongs to.

    Examples
    --------
    >>> import numpy as np
    >>> task_of_ranges(np.array([0, 1, 4, 5, 8]), 4, 6).tolist()
    [0, 1, 4, 5, 0]
    """
    places = ranges % partitions
    own = (tasks - 1 - places) // partitions + 1
    found: Int64s = places + partitions * ((ranges // partitions) % own)
    return found


_KEY = struct.Struct(">cII")
_HEAD = struct.Struct(">IQQQ")
_FAMILY = b"t"
#: A message of a state topic holds so much of a state at most; brokers take some MB.
_PIECE_BYTES = 1 << 20


def damaged_state(operator: Spout | Bolt, error: DeserializationError) -> StateError:
    """Make the error of state that its job cannot have written."""
    return StateError(
        f"the state of {operator.label} '{operator.name}', added at {operator.origin}, is damaged:"
        f" {error.message}",
        hint=error.hint,
    )


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a task as of the last commit."""

    #: The attempt that wrote it; None where nothing was written.
    wrote: Attempted | None
    data: bytes | None
    pieces: int = 0


class TaskStates:
    """Reads and writes the states of a component's tasks in one partition.

    Parameters
    ----------
    store
        The component's store.

    Examples
    --------
    >>> from headrace.runtime import MemoryStore
    >>> states = TaskStates(MemoryStore())
    >>> states.write(3, b"state", (1, 7, 0), states.read(3))
    >>> states.read(3)
    Saved(wrote=(1, 7, 0), data=b'state', pieces=1)
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def read(self, task: int) -> Saved:
        """Return the state of a task."""
        first = self._store.get(_key(task))
        if first is None:
            return Saved(None, None)
        pieces, *wrote = _HEAD.unpack_from(first)
        more = self._store.get_many([_key(task, piece) for piece in range(1, pieces)])
        data = b"".join([first[_HEAD.size :], *(piece or b"" for piece in more)])
        return Saved((wrote[0], wrote[1], wrote[2]), data, pieces)

    def write(self, task: int, data: bytes, attempt: Attempted, before: Saved) -> None:
        """Replace the state of a task."""
        starts = range(0, len(data), _PIECE_BYTES) or range(1)
        pieces = [data[start : start + _PIECE_BYTES] for start in starts]
        pieces[0] = _HEAD.pack(len(pieces), *attempt) + pieces[0]
        self._store.put_many([_key(task, number) for number in range(len(pieces))], pieces)
        for number in range(len(pieces), before.pieces):
            self._store.delete(_key(task, number))


def _key(task: int, piece: int = 0) -> bytes:
    return _KEY.pack(_FAMILY, task, piece)


class TaskLayout(StateLayout):
    """The states of tasks: the record key of each is the number of the task."""

    def spans(self, key: bytes) -> list[Span]:
        """Return the pieces of a task's state."""
        task = decode_key(key)
        if type(task) is not int or not 0 <= task < 1 << 32:
            return []
        return [(_key(task), _key(task, (1 << 32) - 1))]

    def key_of(self, entry: bytes) -> bytes:
        """Return the number of the task."""
        return encode_key(_KEY.unpack(entry)[1])

    def place(self, key: bytes, partitions: int) -> int:
        """Return the partition of a task."""
        task = decode_key(key)
        return task % partitions if type(task) is int else 0

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the state, or a piece of a large one."""
        _, task, number = _KEY.unpack(entry)
        if number == 0:
            pieces = _HEAD.unpack_from(value)[0]
            value = value[_HEAD.size :]
            if pieces == 1:
                return [StateEntry(task, read(value, ""))]
        return [StateEntry(task, _Piece(value, read), part="pieces", item=number)]

    def gathered(self, entries: Sequence[StateEntry]) -> Any:
        """Put the pieces of a large state together."""
        pieces = [entry.value for entry in entries if isinstance(entry.value, _Piece)]
        if not pieces:
            return super().gathered(entries)
        return pieces[0].read(b"".join(piece.data for piece in pieces), "")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a state that is too large for one message."""

    data: bytes
    read: Read

    def __repr__(self) -> str:
        return f"<{len(self.data):,} bytes of a state>"


class KeyRangeLayout(PlainLayout):
    """State keys are the record keys; the range of a key decides its partition.

    Parameters
    ----------
    ranges
        Number of key ranges.
    """

    def __init__(self, ranges: int = 256) -> None:
        self._ranges = ranges

    def of(self, shape: Mapping[str, str]) -> KeyRangeLayout:
        """Return the layout of one bolt's store."""
        return KeyRangeLayout(int(shape.get("ranges", self._ranges)))

    def place(self, key: bytes, partitions: int) -> int:
        """Return the partition of a key's range."""
        return super().place(key, self._ranges) % partitions

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return the key's value."""
        return [StateEntry(decode_key(entry), read(value, "value"))]


# What processors of spouts and bolts have in common: tasks, times of tuples, saved states.

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
        """Return the place of a task in this batch."""
        job = self.context.control.job
        return TaskInBatch(self.operator, task, self.parallelism, job, self.numbers)

    def hand_over(self, given: dict[str, list[Chunk]]) -> Chunk:
        """Return what tasks emitted to whoever subscribed.

        What they emit by default is returned.
        """
        main = Chunk.merge(given.pop(DEFAULT_STREAM, []))
        for stream, chunks in given.items():
            self.give(stream, Chunk.merge(chunks))
        return main

    def outside(self) -> tuple[Int64s, Int64s]:
        """Return time and mark of what is emitted while no tuple is executed."""
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
        """Return the instance of a task, ready for tuples."""
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
