"""The values that travel between spouts and bolts, and those that their callbacks get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

DEFAULT_STREAM: Final = "default"
"""The stream that components emit to unless they name another."""

TupleRow = tuple[Any, ...]
"""A record's value between components: the values of a tuple."""

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class BatchGroupId:
    """Names a batch of a group; batches of a group are numbered from 1.

    Examples
    --------
    >>> BatchGroupId(1, 0) < BatchGroupId(2, 0)
    True
    """

    batch_id: int
    group_id: int = 0


class CommitFail:
    """The type of :data:`COMMIT_FAIL`, which stays one object even after it was pickled.

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(pickle.dumps(COMMIT_FAIL)) is COMMIT_FAIL
    True
    """

    def __reduce__(self) -> str:
        return "COMMIT_FAIL"

    def __repr__(self) -> str:
        return "COMMIT_FAIL"


COMMIT_FAIL: Final = CommitFail()
"""The result of a ``commit`` that failed: the batch is rolled back."""


class Tuple(msgspec.Struct, frozen=True, gc=False):
    """A bolt's input: values by index, or by the names that the emitting component declared.

    Parameters
    ----------
    values
        The values, in the order of the fields.
    fields
        Their names.
    source_component
        Id of the component that emitted it.
    source_task
        Number of the task that emitted it, from 0.
    source_stream
        The stream that it was emitted to.

    Examples
    --------
    >>> found = Tuple(("be", 2), ("word", "count"), "count", 0)
    >>> found["word"], found[1], found.get("count"), list(found)
    ('be', 2, 2, ['be', 2])
    >>> found
    Tuple(word='be', count=2)
    """

    values: tuple[Any, ...]
    fields: tuple[str, ...]
    source_component: str
    source_task: int
    source_stream: str = DEFAULT_STREAM

    def get(self, name: str) -> Any:
        """Return the value of a field.

        Raises
        ------
        KeyError
            The stream that it came by has no such field.
        """
        try:
            return self.values[self.fields.index(name)]
        except ValueError:
            raise self._unknown(name) from None

    def __getitem__(self, place: Any) -> Any:
        # This runs for every value that is read: saving a call is worth the repetition.
        if place.__class__ is not str:
            return self.values[place]
        try:
            return self.values[self.fields.index(place)]
        except ValueError:
            raise self._unknown(place) from None

    def _unknown(self, name: str) -> KeyError:
        return KeyError(
            f"no field {name!r} in a tuple of '{self.source_component}', stream"
            f" '{self.source_stream}': it has {', '.join(self.fields) or 'none'}"
        )

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        named = zip(self.fields, self.values, strict=False)
        return f"Tuple({', '.join(f'{name}={value!r}' for name, value in named)})"


Sequence.register(Tuple)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Tells a task about itself when it is prepared.

    Examples
    --------
    >>> TaskContext("sentences", "count", task=1, parallelism=2).component
    'count'
    """

    #: The name of the topology, or of the group's job if the topology has several groups.
    topology: str
    #: Id of the component.
    component: str
    #: Number of the task, from 0.
    task: int
    #: How many tasks the component has.
    parallelism: int
    #: Number of the group that the task works for.
    group_id: int = 0
    #: The topology's configuration, defaults included.
    config: Mapping[str, Any] = field(default_factory=lambda: _NO_CONFIG)


class SpoutCollector(Protocol):
    """Takes what a spout emits."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Send a tuple to every bolt that subscribed to the stream."""

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Send a tuple to one task of every bolt that takes the stream by direct grouping."""

    def emit_barrier(self) -> None:
        """End the batch here: what is emitted later belongs to the next one."""

    def fail(self, reason: str | BaseException) -> None:
        """Abandon the batch: the group rolls back to its last commit."""


class BoltCollector(Protocol):
    """Takes what a bolt emits."""

    def emit(
        self, values: Sequence[Any], anchor: Tuple | None = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Send a tuple to every bolt that subscribed to the stream; the anchor changes nothing."""

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchor: Tuple | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Send a tuple to one task of every bolt that takes the stream by direct grouping."""

    def ack(self, taken: Tuple) -> None:
        """Do nothing: a batch succeeds as a whole."""

    def fail(self, reason: str | BaseException | Tuple) -> None:
        """Abandon the batch: the group rolls back to its last commit."""


class CustomGrouping(Protocol):
    """Chooses the tasks that take a tuple; it is pickled and runs where tuples are emitted."""

    def choose(self, values: tuple[Any, ...], tasks: int) -> Sequence[int]:
        """Return the numbers of the tasks, out of 0 to ``tasks - 1``, that take a tuple."""
