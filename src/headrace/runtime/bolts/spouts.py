"""Processors of spouts: they emit tuples until their part of the batch ends."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.bolts.collectors import SpoutOutput
from headrace.runtime.bolts.states import TaskLayout
from headrace.runtime.bolts.tasks import ComponentProcessor, StatefulTasks
from headrace.runtime.marks import spout_mark
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code.calls import UserFunction
from headrace.topology.operators.bolts import Spout, Subscription, Tuples

if TYPE_CHECKING:
    from headrace.runtime.bolts.instances import Instance
    from headrace.runtime.chunk import Chunk


# Processors at the two ends of components: records become tuples, tuples go to a bolt.


class SubscriptionProcessor(Processor[Subscription]):
    """Passes tuples on: the edge behind it chooses their tasks."""

    def process(self, chunk: Chunk) -> Chunk:
        """Pass tuples on; only a direct grouping asks for the task that they were emitted to."""
        if chunk.targets is None or self.operator.grouping.kind == "direct":
            return chunk
        return replace(chunk, targets=None)


class TuplesProcessor(Processor[Tuples]):
    """Makes tuples of records; the task that emits them is the one that reads their topic."""

    def __init__(self, operator: Tuples, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        values = values_getter(operator.fields)
        keyed = operator.key_field is not None
        function = (lambda key, value: (key, *values(value))) if keyed else values
        self._function = UserFunction(operator, function, context.locator)
        self._takes_key = keyed

    def process(self, chunk: Chunk) -> Chunk:
        """Make a tuple of each record."""
        columns = (chunk.key_list(), chunk.values) if self._takes_key else (chunk.values,)
        kept, rows = self._function.each(chunk, *columns)
        task = self.context.partition
        emitters = np.full(len(kept), task, np.int64)
        return replace(kept.with_values(rows), keys=None, headers=None, emitters=emitters)


def values_getter(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Give what makes the values of a tuple out of a record's value.

    Examples
    --------
    >>> values_getter(("word",))("be"), values_getter(("a", "b"))({"b": 2, "a": 1})
    (('be',), (1, 2))
    >>> values_getter(("a", "b"))([1, 2])
    (1, 2)
    """
    if len(fields) == 1:
        return lambda value: (value,)
    items, attributes, count = itemgetter(*fields), attrgetter(*fields), len(fields)

    def values(value: Any) -> tuple[Any, ...]:
        if isinstance(value, Mapping):
            return tuple(items(value))
        if not isinstance(value, (list, tuple)):
            return tuple(attributes(value))
        if len(value) != count:
            message = f"{len(value)} values for the {count} fields {', '.join(fields)}"
            raise ValueError(message)
        return tuple(value)

    return values


#: A task whose batches follow each other at once emits for so long, s.
_LONGEST_TURN = 1.0


class SpoutProcessor(ComponentProcessor[Spout]):
    """Runs the tasks of a spout."""

    layout = TaskLayout()

    def __init__(self, operator: Spout, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._states = StatefulTasks(self)
        self._emitted = 0

    def process(self, chunk: Chunk) -> Chunk:
        """Give what comes: nothing does."""
        return chunk

    def finish(self) -> Chunk:
        """Let every task emit its part of the batch, and keep its state."""
        given: dict[str, list[Chunk]] = defaultdict(list)
        before = self._emitted
        for task in self.tasks:
            instance = self._states.begin(task, SpoutOutput)
            self._emit(instance)
            output: SpoutOutput = instance.output
            busy = output.emitted > 0
            self._states.finish(task, instance, busy=busy)
            for stream, chunk in self._taken(task, output).items():
                given[stream].append(chunk)
        if self.tasks:
            clock = self.context.wall_clock
            self.due = clock if self._emitted > before else clock + self.operator.delay_ms
        return self.hand_over(given)

    def _emit(self, instance: Instance) -> None:
        """Ask for tuples until the batch is full, the spout has none or ends it, or time is up."""
        output: SpoutOutput = instance.output
        most = self.operator.batch_size or float("inf")
        ends = time.monotonic() + (self.operator.delay_ms / 1000 or _LONGEST_TURN)
        next_tuple = instance.user.next_tuple
        try:
            while True:
                before = output.emitted
                next_tuple(output)
                if output.emitted == before or output.emitted >= most or output.barrier:
                    break
                if output.failed is not None or time.monotonic() >= ends:
                    break
        except Exception as error:
            raise instance.failure("next_tuple", error) from error
        instance.check("next_tuple")

    def _taken(self, task: int, output: SpoutOutput) -> dict[str, Chunk]:
        count = max(output.emitted, 1)
        first = spout_mark(self.partition) + self._emitted
        times = np.full(count, self.context.wall_clock, np.int64)
        taken = output.taken(times, np.arange(first, first + count), task)
        self._emitted += output.emitted
        counters = self.context.counters
        counters["records_in"] = counters.get("records_in", 0) + output.emitted
        return taken
