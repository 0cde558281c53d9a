"""Tuples that came by the ports of a bolt, as each of its tasks takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from headrace.runtime.chunk import ANY_TASK, Chunk, Int64s
from headrace.topology.operators.bolts import Subscription
from headrace.topology.tuples import Tuple

if TYPE_CHECKING:
    from headrace.topology import StagePlan
    from headrace.topology.operators.bolts import Bolt

__all__ = ["Intake", "Taken"]


@dataclass(frozen=True, slots=True)
class Taken:
    """The tuples of one task in the order of their marks."""

    tuples: Iterable[Tuple]
    times: Int64s
    marks: Int64s

    def __len__(self) -> int:
        return len(self.marks)


class Intake:
    """Makes tuples of chunks, for the tasks that take them.

    Parameters
    ----------
    bolt
        The bolt.
    plan
        Knows the subscriptions that feed it.
    partition
        Where tuples are that no shuffle has brought.
    """

    def __init__(self, bolt: Bolt, plan: StagePlan, partition: int) -> None:
        self._ports = [_subscription(plan, name) for name in bolt.parents]
        self._partition = partition

    def by_task(self, inputs: Mapping[int, Chunk], tasks: range) -> Iterator[tuple[int, Taken]]:
        """Give the tuples of each task that gets some; the first takes those that name none."""
        full = {port: _aimed(chunk, tasks) for port, chunk in inputs.items() if len(chunk)}
        if len(full) > 1:
            # Tuples of several ports are made first, and then brought into order.
            made = [
                chunk.with_values(list(self._tuples(port, chunk))) for port, chunk in full.items()
            ]
            yield from self._split(Chunk.merge(made), None, tasks)
        for port, chunk in full.items() if len(full) == 1 else ():
            yield from self._split(chunk, port, tasks)

    def _split(self, chunk: Chunk, port: int | None, tasks: range) -> Iterator[tuple[int, Taken]]:
        for task in tasks:
            own = chunk
            if chunk.targets is not None and len(tasks) > 1:
                mine = (chunk.targets == task) | (chunk.targets == ANY_TASK)
                if not mine.all():
                    own = chunk.take(np.flatnonzero(mine))
            if len(own):
                tuples = own.values if port is None else self._tuples(port, own)
                yield task, Taken(tuples, own.times, own.marks)

    def _tuples(self, port: int, chunk: Chunk) -> Iterator[Tuple]:
        found = self._ports[port]
        emitters: Iterable[int] = repeat(self._partition)
        if chunk.emitters is not None:
            first = int(chunk.emitters[0])
            same = bool((chunk.emitters == first).all())
            emitters = repeat(first) if same else chunk.emitters.tolist()
        return map(
            Tuple,
            chunk.values,
            repeat(found.fields),
            repeat(found.source_component),
            emitters,
            repeat(found.stream),
        )


def _aimed(chunk: Chunk, tasks: range) -> Chunk:
    if chunk.targets is not None or len(tasks) == 1:
        return chunk
    return replace(chunk, targets=np.full(len(chunk), tasks[0], np.int64))


def _subscription(plan: StagePlan, name: str) -> Subscription:
    operators = (operator for stage in plan.stages for operator in stage.operators)
    found = next(operator for operator in operators if operator.name == name)
    assert isinstance(found, Subscription), "bolts are fed by subscriptions alone"
    return found
