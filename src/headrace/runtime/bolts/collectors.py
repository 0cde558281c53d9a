"""Collectors: what tasks emit, kept by stream until the task has done its part of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.chunk import Chunk, Int64s
from headrace.topology.tuples import DEFAULT_STREAM

if TYPE_CHECKING:
    from headrace.topology.operators.bolts import Bolt, Spout
    from headrace.topology.tuples import Tuple

__all__ = ["NO_TUPLE", "BoltOutput", "TaskOutput", "SpoutOutput"]

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
        """Give what was emitted; each has time and mark of its cause, the last ones without one."""
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
        """Give the batch up."""
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
        """Give the batch up."""
        self.failed = reason or "no reason given"

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.barrier, self.emitted = False, 0
