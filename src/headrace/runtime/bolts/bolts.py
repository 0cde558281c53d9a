"""Processors of bolts: their tasks take the tuples of a batch and emit others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import orjson

from headrace.errors import HeadraceError
from headrace.runtime.bolts.collectors import NO_TUPLE, BoltOutput
from headrace.runtime.bolts.edges import TupleEdge
from headrace.runtime.bolts.intake import Intake, Taken
from headrace.runtime.bolts.states import TaskLayout
from headrace.runtime.bolts.tasks import ComponentProcessor, StatefulTasks
from headrace.runtime.chunk import Chunk
from headrace.runtime.user_code.errors import Original
from headrace.topology.operators.bolts import Bolt, StatefulBoltNode
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.runtime.bolts.instances import Instance
    from headrace.runtime.edges import Edge
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import ProcessorContext
    from headrace.topology.tuples import Tuple

__all__ = ["BoltProcessor", "StatefulBoltProcessor", "TuplesRunner"]

BoltT = TypeVar("BoltT", bound=Bolt)


class TuplesRunner(ComponentProcessor[BoltT]):
    """What processors of bolts have in common: tuples are executed task by task."""

    def __init__(self, operator: BoltT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._intake = Intake(operator, context.plan, self.partition)
        self._given: dict[str, list[Chunk]] = defaultdict(list)
        self._skips = operator.on_error != "fail"

    @classmethod
    def edge(cls, operator: Bolt, port: int, context: ProcessorContext) -> Edge:
        """Make the way to the bolt over a shuffle."""
        return TupleEdge(operator, port, context)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Execute the tuples of each task."""
        del watermarks
        for task, taken in self._intake.by_task(inputs, self.takers):
            self.execute(self.instance(task), taken)
        return self._handed()

    @property
    def takers(self) -> range:
        """The tasks that may take tuples here."""
        return self.tasks

    def instance(self, task: int) -> Instance:
        """Give the instance of a task, ready for tuples."""
        raise NotImplementedError

    def execute(self, instance: Instance, taken: Taken) -> None:
        """Let a task execute tuples."""
        output: BoltOutput = instance.output
        execute = instance.user.execute
        tuples, one = iter(taken.tuples), None
        done = 0
        while done < len(taken):
            try:
                for output.cause, one in enumerate(tuples, done):
                    execute(one)
                done = len(taken)
            except Exception as error:  # noqa: BLE001 - users' code raises what it likes
                assert one is not None, "nothing but a tuple's execution raises here"
                done = output.cause + 1
                self._take_out(instance, int(taken.marks[output.cause]), one, error)
        output.cause = NO_TUPLE
        instance.check("execute")
        self.collect(instance, taken)

    def collect(self, instance: Instance, taken: Taken | None = None) -> None:
        """Take what a task emitted; what no tuple caused has the last place."""
        time, mark = self.outside()
        if taken is not None:
            time, mark = np.append(taken.times, time), np.append(taken.marks, mark)
        for stream, chunk in instance.output.taken(time, mark, instance.place.task).items():
            self._given[stream].append(chunk)

    def _handed(self) -> Chunk:
        given, self._given = self._given, defaultdict(list)
        return self.hand_over(given)

    def _take_out(self, instance: Instance, mark: int, one: Tuple, error: Exception) -> None:
        """Raise what a tuple failed with, or follow the policy to go on without the tuple."""
        locator = self.context.locator
        passes = isinstance(error, HeadraceError) and error.retriable
        if not self._skips or passes:
            where = f" on a tuple of {locator.locate(mark)}" if mark >= 0 else ""
            raise instance.failure("execute", error, where) from error
        instance.output.forget_cause()
        if mark >= 0:
            locator.divert(self.operator, mark, error, user_line(error))
        else:
            # No message caused it: its values make one.
            body = orjson.dumps(one.values, default=repr, option=orjson.OPT_NON_STR_KEYS)
            original = Original("", 0, -1, body, b"", self.context.wall_clock)
            locator.divert_message(self.operator, original, error)


class BoltProcessor(TuplesRunner[Bolt]):
    """Runs the tasks of a bolt that keeps nothing."""

    @property
    def takers(self) -> range:
        """The tasks that may take tuples here: any stands in where no task of it belongs."""
        near = self.partition % self.parallelism
        return self.tasks or range(near, near + 1)

    def instance(self, task: int) -> Instance:
        """Give the instance of a task, prepared."""
        if task not in self.begun:
            self.begun[task] = self.context.instances.begin(
                self.place(task), lambda: BoltOutput(self.operator)
            )
        return self.begun[task]

    def finish(self) -> Chunk:
        """End the batch."""
        for instance in self.begun.values():
            instance.finish()
        return Chunk.empty()


class StatefulBoltProcessor(TuplesRunner[StatefulBoltNode]):
    """Runs the tasks of a bolt with one state each."""

    layout: ClassVar[Any] = TaskLayout()

    def __init__(self, operator: StatefulBoltNode, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._states = StatefulTasks(self)
        self._busy: set[int] = set()

    def instance(self, task: int) -> Instance:
        """Give the instance of a task, told all that comes before tuples."""
        return self._states.begin(task, BoltOutput)

    def execute(self, instance: Instance, taken: Taken) -> None:
        """Let a task execute tuples."""
        self._busy.add(instance.place.task)
        super().execute(instance, taken)

    def finish(self) -> Chunk:
        """End the batch of every task, also of those that got no tuple."""
        for task in self.tasks:
            instance = self.instance(task)
            self._states.finish(task, instance, busy=task in self._busy)
            self.collect(instance)
        return self._handed()
