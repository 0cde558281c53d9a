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
from typing import TYPE_CHECKING, Any

from headrace.errors import StateError
from headrace.keys import decode_key, encode_key
from headrace.runtime.state.layouts import PlainLayout, Read, Span, StateEntry, StateLayout

if TYPE_CHECKING:
    from headrace.errors import DeserializationError
    from headrace.runtime.chunk import Int64s
    from headrace.runtime.state.interface import Attempted, StateStore
    from headrace.topology.operators.bolts import Bolt, Spout


# Places of tasks and key ranges: pure arithmetic, the same in every process.
#
# Task *t* of a component is in partition ``t % partitions``.  Range *r* of a key-value bolt is in
# partition ``r % partitions``, whatever its parallelism is, and belongs to one of the tasks there.


def tasks_in(partition: int, partitions: int, parallelism: int) -> range:
    """Give the tasks of a component that are in a partition.

    >>> list(tasks_in(1, 4, 6)), list(tasks_in(3, 4, 6))
    ([1, 5], [3])
    """
    return range(partition, parallelism, partitions)


def key_value_tasks(parallelism: int, partitions: int) -> int:
    """Give how many tasks a key-value bolt has: every partition has ranges, and so a task."""
    return max(parallelism, partitions)


def task_of_ranges(ranges: Int64s, partitions: int, tasks: int) -> Int64s:
    """Give the task that each key range belongs to.

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
        """Give the state of a task."""
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
        """Give the pieces of a task's state."""
        task = decode_key(key)
        if type(task) is not int or not 0 <= task < 1 << 32:
            return []
        return [(_key(task), _key(task, (1 << 32) - 1))]

    def key_of(self, entry: bytes) -> bytes:
        """Give the number of the task."""
        return encode_key(_KEY.unpack(entry)[1])

    def place(self, key: bytes, partitions: int) -> int:
        """Give the partition of a task."""
        task = decode_key(key)
        return task % partitions if type(task) is int else 0

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the state, or a piece of a large one."""
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
        """Give the layout of one bolt's store."""
        return KeyRangeLayout(int(shape.get("ranges", self._ranges)))

    def place(self, key: bytes, partitions: int) -> int:
        """Give the partition of a key's range."""
        return super().place(key, self._ranges) % partitions

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give the key's value."""
        return [StateEntry(decode_key(entry), read(value, "value"))]
