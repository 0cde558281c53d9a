"""Who assigns: every worker has a coordinator, and the one that holds the lease acts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.connect.assignment import Assignment, assign
from headrace.connect.lifecycle import Cause, Ending, Phase
from headrace.connect.log import ClusterView, Log, Purged, Record, StatusSet, fold
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.coordination.lease import CoordinatorLease
    from headrace.connect.coordination.members import Members

__all__ = ["Coordinator", "CoordinatorStatistics"]

logger = logging.getLogger(__name__)

#: News that come together are one turn.
_GATHER = 0.02
_LONGEST_PAUSE = 5.0
#: A log is compacted when it has so many records more than its sum.
_SURPLUS = 1000
#: Seconds between two tries to compact, which fail while others write.
_BETWEEN = 15.0


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """What a coordinator has done."""

    #: Whether it holds the lease.
    acting: bool
    turns: int
    assignments: int
    compactions: int


class Coordinator:
    """Assigns connectors and tasks to the workers that are alive, while it holds the lease.

    It also settles what lost workers leave behind, purges marks and compacts the log.

    Parameters
    ----------
    log
        The cluster's log.
    members
        The workers that are alive.
    lease
        Whether this one acts.
    worker
        Name of this worker.
    delay
        Seconds for which what a lost worker ran waits for it.
    purge_after
        Seconds for which the mark of a deleted connector is kept.
    """

    def __init__(
        self,
        log: Log,
        members: Members,
        lease: CoordinatorLease,
        worker: str,
        *,
        delay: float,
        purge_after: float,
    ) -> None:
        self._log = log
        self._members = members
        self._lease = lease
        self._worker = worker
        self._delay = delay
        self._purge_after = purge_after
        self._view = ClusterView()
        self._wake = asyncio.Event()
        self._read = asyncio.Condition()
        self._marked: dict[str, float] = {}
        #: When this coordinator first missed a worker.
        self._missed: dict[str, float] = {}
        self._compact_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._acting = False
        self._turns = self._assignments = self._compactions = 0

    def start(self) -> None:
        """Begin to watch the log and the members."""
        watched: list[Callable[[], Awaitable[None]]] = [self._follow, self._listen, self._run]
        for work in watched:
            task = asyncio.ensure_future(work())
            self._tasks.append(task)

    async def stop(self) -> None:
        """End, and let another worker act."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(HeadraceError):  # the lease ends by itself
            await self._lease.release()

    def statistics(self) -> CoordinatorStatistics:
        """Tell what it has done."""
        return CoordinatorStatistics(
            acting=self._acting,
            turns=self._turns,
            assignments=self._assignments,
            compactions=self._compactions,
        )

    # What it watches

    async def _follow(self) -> None:
        async for position, record in self._log.follow(0):
            self._view, _ = fold(self._view, record, position)
            async with self._read:
                self._read.notify_all()
            self._wake.set()

    async def _listen(self) -> None:
        while True:
            await self._members.changed()
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                pause = await self._turn()
            except HeadraceError as error:
                logger.warning("coordinator on %s: %s", self._worker, error)
                pause = 1.0
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
                await asyncio.sleep(_GATHER)

    # One turn

    async def _turn(self) -> float:
        """Do what is due; give the seconds until the next turn, if nothing happens before."""
        self._wake.clear()
        self._acting = await self._lease.held()
        if not self._acting:
            return _LONGEST_PAUSE
        self._turns += 1
        workers = await self._members.workers()
        now = time.time()
        plan = self._plan(workers, now)
        for status in self._left_behind(plan, now):
            await self._append(status)
        plan = self._plan(workers, now)
        before = 0 if self._view.assignment is None else self._view.assignment.generation
        if plan.generation != before:
            logger.info("assignment %d: workers %s", plan.generation, ", ".join(sorted(workers)))
            await self._append(plan.record(self._view, self._worker))
            self._assignments += 1
        await self._tidy()
        due = _LONGEST_PAUSE if plan.due is None else plan.due - time.time()
        return min(max(due, 0.05), _LONGEST_PAUSE)

    def _plan(self, workers: set[str], now: float) -> Assignment:
        previous = Assignment.of(self._view.assignment)
        missed = {*previous.lost, *self._missed} - workers
        self._missed = {one: self._missed.get(one, now) for one in missed}
        # Another coordinator's clock is not trusted: who was lost waits the delay by this one's.
        lost = {
            one: max(until, self._missed.get(one, now) + self._delay)
            for one, until in previous.lost.items()
        }
        plan = assign(self._view, workers, replace(previous, lost=lost), now, self._delay)
        self._missed |= {one: self._missed.get(one, now) for one in plan.lost}
        return plan

    def _left_behind(self, plan: Assignment, now: float) -> Iterator[StatusSet]:
        """Say for workers that were lost for too long that nothing of theirs lives any more.

        They have stopped it themselves, as they could not read the log.
        """
        for worker, until in plan.lost.items():
            if now < until:
                continue
            for status in list(self._view.alive(worker)):
                failed = status.phase is Phase.ERROR
                yield StatusSet(
                    connector=status.connector,
                    task=status.task,
                    generation=status.generation,
                    # What failed stays failed; anything else may run again.
                    phase=Phase.ERROR if failed else Phase.NEW,
                    target=status.target,
                    worker=worker,
                    cause=status.cause or Cause(f"worker '{worker}' was lost"),
                    gone=True,
                    ending=status.ending if failed else Ending.DIED,
                    at_ms=round(now * 1000),
                )

    async def _tidy(self) -> None:
        marks = {name for name, entry in self._view.entries.items() if entry.deleted}
        now = time.monotonic()
        self._marked = {name: self._marked.get(name, now) for name in marks}
        old = [
            name
            for name, since in self._marked.items()
            if now - since >= self._purge_after and not any(self._view.entries[name].alive())
        ]
        if old:
            await self._append(Purged(names=sorted(old)))
        if now < self._compact_at:
            return
        if self._log.statistics().records > _SURPLUS + len(self._view.entries):
            self._compact_at = now + _BETWEEN
            self._compactions += await self._log.compact(self._view)

    async def _append(self, record: Record) -> None:
        position = await self._log.append(record)
        async with self._read:
            await self._read.wait_for(lambda: self._view.position >= position)
