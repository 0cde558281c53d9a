"""Gangs of resident tasks: what Spark does with a barrier stage, and sockets between its tasks.

Spark starts all tasks of such a stage, or none.  Where one fails or dies its job has failed at once,
and nobody tells the others, which live for a while yet; none is started again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

import headrace.spark.resident
from headrace.runtime.resident import channels
from tests.simulation.pipes import Listener, Pipes, SimulatedSocket
from tests.simulation.spark import Call, ProcessDiedError, SimulatedSession
from tests.simulation.threads import sleep
from tests.simulation.world import World, this_thread

#: How long tasks live after Spark has given up their stage, s.
_OUTLIVE = (0.0, 4.0)


class SimulatedContext:
    """Spark's context, as far as gangs need it."""

    def __init__(self, session: SimulatedSession) -> None:
        self._session = session
        self._groups: dict[str, list[Call]] = {}
        self._group = ""

    def setJobGroup(self, group: str, _: str) -> None:  # noqa: N802 - Spark's name
        self._session.require_java()
        self._group = group

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        self._session.require_java()
        self._give_up(self._groups.get(group, []))

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {}

    def parallelize(self, numbers: Sequence[int], slices: int) -> SimulatedContext:
        assert len(numbers) == slices
        self._tasks = slices
        return self

    def barrier(self) -> SimulatedContext:
        return self

    def mapPartitionsWithIndex(  # noqa: N802
        self, run: Callable[[int, Iterator[int]], Iterator[int]]
    ) -> SimulatedContext:
        self._run = run
        return self

    def collect(self) -> None:
        """Run the stage until all of its tasks have ended, or one has failed."""
        session, world, run = self._session, self._session.world, self._run
        session.require_java()

        def begin(number: int) -> list[int]:
            session.numbers.begin(next(session._attempts))
            return list(run(number, iter(())))

        calls = [
            Call(world, process, partial(begin, number))
            for number, process in enumerate(session.processes(self._tasks))
        ]
        self._groups[self._group] = calls
        waiting = list(calls)
        while waiting:
            for call in [each for each in waiting if each.is_done]:
                try:
                    call.result()
                except Exception as error:
                    self._give_up(calls)
                    session.require_java()
                    if isinstance(error, ProcessDiedError):
                        raise PySparkException(f"a worker died: {error}") from error
                    raise PySparkException(f"Job aborted due to stage failure: {error}") from error
                waiting.remove(call)
            if session.java.dead:
                raise Py4JNetworkError("Answer from Java side is empty")
            sleep(world, 0.01)

    def _give_up(self, calls: Sequence[Call]) -> None:
        world = self._session.world
        for call in calls:
            world.after(world.chance.uniform(*_OUTLIVE), partial(_end, call))


def _end(call: Call) -> None:
    if not call.is_done:
        call.process.kill()


class _Listener(Listener):
    """Takes the connections of a process."""

    _numbers = itertools.count(1)

    def __init__(self, pipes: Pipes, *_: object) -> None:
        process = pipes.process()
        path = f"{process.name}-{process.pid}-{next(self._numbers)}"
        self.address = channels.Address(path)
        super().__init__(pipes, path)

    def accept(self, seconds: float) -> SimulatedSocket | None:  # type: ignore[override]
        return self.take(seconds)


def _ready(
    world: World, among: Sequence[channels.MemberChannel], seconds: float | None
) -> list[channels.MemberChannel]:
    deadline = None if seconds is None else world.now + seconds
    me = this_thread()
    assert me is not None
    ends: list[tuple[channels.MemberChannel, Any]] = [(each, each.socket.end) for each in among]  # type: ignore[attr-defined]
    while True:
        world.pause()
        found = [each for each, end in ends if end.parts or end.is_deserted]
        rest = None if deadline is None else deadline - world.now
        if found or (rest is not None and rest <= 0):
            return found
        for _, end in ends:
            end.waiting.append(me)
        world.block(rest)
        for _, end in ends:
            if me in end.waiting:
                end.waiting.remove(me)


@contextmanager
def gangs_of(world: World) -> Iterator[None]:
    """Have gangs run on simulated Sparks, and talk by simulated sockets."""
    pipes = Pipes(world)

    def connect(address: channels.Address) -> SimulatedSocket:
        return pipes.connect(address.place, 10.0)  # type: ignore[arg-type]

    with ExitStack() as stack:
        for place, name, instead in (
            (channels, "connect", connect),
            (channels, "ready", partial(_ready, world)),
            (headrace.runtime.resident.gang, "MemberListener", partial(_Listener, pipes)),
            (headrace.spark.resident, "MemberListener", partial(_Listener, pipes)),
            (headrace.spark.resident, "_slots", lambda *_: 2),
        ):
            stack.enter_context(patch.object(place, name, instead))
        yield
