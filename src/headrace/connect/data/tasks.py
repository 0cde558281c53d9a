"""A task as a worker sees it: a host, and a query that feeds it or takes what it gives."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from headrace.connect.data.process import Hold, StartQuery, StopQuery, TaskCopy
from headrace.connect.hosts.terms import Terms
from headrace.connect.lifecycle import Cause
from headrace.connect.worker.launching import Exited, Failed, HostEvent, Listens, Started, WaitsFor
from headrace.errors import EngineAwayError, JobFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.connect.data.plane import DataPlane
    from headrace.connect.hosts.process_host import HostedUnit
    from headrace.connect.worker.launching import HostSpec, Listener, PluginAnswer

__all__ = ["QueryTask", "pauses"]

#: A task's query has so long to end in order before its host is asked to stop all the same, s.
_DRAINING = 2.0
#: And so long to end after its host, s; the commit protocol refuses what it tries after that.
_ENDING = 10.0
#: A query that cannot begin is begun again after so long, then twice as long, and so on, s.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: A host that has failed itself says so within so long after its query, s.
_FIRST_WORD = 0.5


class QueryTask:
    """A task's host with its query.

    Parameters
    ----------
    plane
        Has the engine.
    spec
        What runs.
    listener
        Hears of it.
    """

    def __init__(self, plane: DataPlane, spec: HostSpec, listener: Listener) -> None:
        assert spec.task is not None
        self.spec = spec
        self.unit = TaskCopy(spec.connector, spec.task, spec.generation)
        self._plane = plane
        self._listener = listener
        #: What the host said when its query could begin.
        self._said: Listens | Started | None = None
        self._ending = self._beginning = False
        #: What the host waits for, and what the query does.
        self._host_waits = self._query_waits = ""
        self._paused = spec.paused
        self.host: HostedUnit

    def hear(self, event: HostEvent) -> None:
        """Pass on what the host says; that it has started only when its query runs.

        A source's query comes first: its task starts where the open record of the query's epoch
        has it.
        """
        match event:
            case Listens():
                self._said = event
                self._plane.spawn(self._begin_query())
                return
            case Started() if self.spec.role == "sink":
                self._said = event
                self._plane.spawn(self._begin(event))
                return
            case Exited():
                self._plane.let_go(self)
                self._plane.spawn(self._end(event))
                return
            case WaitsFor():
                self._host_waits = event.what
                self._tell_what_it_waits_for()
                return
            case Failed():
                self._ending = True
        self._listener(event)

    async def _end(self, event: Exited) -> None:
        """Tell of the host's end once its query is over: a successor's would meet it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.end_query(), _ENDING)
        self._listener(event)

    async def _begin(self, event: Started) -> None:
        if await self._begin_query():
            self._listener(event)

    async def begin_again(self, problem: str = "") -> None:
        """Begin the query anew: it ended, or the engine with it, and the host did not."""
        if self._said is None or self._ending or self._beginning:
            return
        # From here on: what else ends meanwhile must not begin it a second time.
        self._beginning = True
        if problem:
            self.waits(problem)
            await asyncio.sleep(_FIRST_PAUSE)
        await self._begin_query()

    async def _begin_query(self) -> bool:
        """Have the query begin; while brokers are away, try again and again."""
        self._beginning = True
        try:
            for pause in pauses():
                if self._ending:
                    return False
                try:
                    await self._plane.engine.ask(self._order)
                except EngineAwayError as error:
                    self.waits(str(error))
                    await asyncio.sleep(pause)
                else:
                    break
        except (JobFailedError, TimeoutError) as error:
            self.fail(f"it could not be started: {error}")
            return False
        finally:
            self._beginning = False
        return True

    def _order(self, number: int) -> StartQuery:
        """Say what begins, once the engine can hear it: nobody would end it if it began now."""
        if self._ending:
            raise JobFailedError("it was stopped before it began")
        assert self._said is not None
        return StartQuery(
            request=number,
            unit=self.unit,
            role=self.spec.role,
            address=self._said.address,
            terms=msgspec.convert(self._said.terms, Terms),
            tasks=self.spec.tasks,
            paused=self._paused,
            kept_as=self.spec.kept_as,
        )

    def waits(self, what: str) -> None:
        """Say what the task's query waits for; nothing: it goes on."""
        self._query_waits = what
        self._tell_what_it_waits_for()

    def _tell_what_it_waits_for(self) -> None:
        if not self._ending:
            self._listener(WaitsFor(self._host_waits or self._query_waits))

    async def query_failed(self, problem: str) -> None:
        """The query has ended for good: the host may know better why, so it has the first word."""
        await asyncio.sleep(_FIRST_WORD)
        self.fail(problem)

    @property
    def _who(self) -> str:
        return f"the query of task {self.unit.task} of connector '{self.unit.connector}'"

    def fail(self, problem: str) -> None:
        """The query has ended, and with it the task."""
        if not self._ending:
            self._ending = True
            summary, _, _ = problem.partition("\n")
            self._listener(Failed(Cause(f"{self._who}: {summary}", problem)))

    async def end_query(self) -> None:
        """End the query, where there is one."""
        self._ending = True
        if self._said is not None:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: StopQuery(number, self.unit))

    # What a worker asks of a host.

    @property
    def pid(self) -> int:
        """Id of the host's process."""
        return self.host.pid

    def ask_stop(self) -> None:
        """End the query between two batches, then have the host stop."""
        self._plane.spawn(self._stop())

    async def _stop(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.end_query(), _DRAINING)
        self.host.ask_stop()

    def pause(self, *, paused: bool) -> None:
        """Begin no more batches, or go on; so does a query that begins anew."""
        self._paused = paused
        self.host.pause(paused=paused)
        self._plane.spawn(self._hold(held=paused))

    async def _hold(self, *, held: bool) -> None:
        if self._said is not None:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: Hold(number, self.unit, held))

    @property
    def waits_for(self) -> str:
        """What it waits for outside, as it said last; empty: nothing."""
        return self._host_waits

    async def task_configs(self, most: int) -> PluginAnswer | None:
        """Give nothing: a task has no tasks."""
        del most
        return None

    async def cancel(self) -> None:
        """End the query."""
        await self.end_query()

    def kill(self) -> None:
        """End the host and all that it forked, by SIGKILL."""
        self.host.kill()

    def alive(self) -> bool:
        """Whether anything is left of the host."""
        return self.host.alive()


def pauses() -> Iterator[float]:
    """Give the seconds to wait between tries of what brokers or engine cannot do now, for ever.

    >>> from itertools import islice
    >>> list(islice(pauses(), 6))
    [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    """
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)
