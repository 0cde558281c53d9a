"""Who assigns: every worker has a coordinator, and the first of those that are alive acts."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from headrace.connect.assignment import Assignment, assign
from headrace.connect.coordination.members import Members
from headrace.connect.log import AssignmentMade, ClusterView, Log, Purged, Record, fold, settle
from headrace.connect.log.topic import TopicLog
from headrace.errors import HeadraceError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client import AsyncClient


logger = logging.getLogger(__name__)

#: News that come together are one turn.
_GATHER = 0.02
_LONGEST_PAUSE = 2.0
#: What the first of the workers leaves undone for so long is done by the second, and so on.
_STEP = 2.0
#: A log is compacted when it has so many records more than its sum.
_SURPLUS = 1000
#: Seconds between two tries to compact, which fail while others write.
_BETWEEN = 15.0


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """What a coordinator has done."""

    #: Whether it is the first of those that are alive.
    acting: bool
    turns: int
    assignments: int
    compactions: int


class Coordinator:
    """Assigns connectors and tasks to the workers that are alive, where no worker before it does.

    Every coordinator works out what is due, and the first of the workers alive writes it at once;
    the next ones only what it leaves undone.  Two that write at the same time do no harm: of two
    assignments on the same one, the first in the log holds.  The acting one also settles what lost
    workers leave behind, purges marks and compacts the log.

    Parameters
    ----------
    log
        The cluster's log.
    members
        The workers that are alive.
    worker
        Name of this worker.
    delay
        Seconds for which what a lost worker ran waits for it.
    purge_after
        Seconds for which the mark of a deleted connector is kept.
    """

    def __init__(
        self, log: Log, members: Members, worker: str, *, delay: float, purge_after: float
    ) -> None:
        self._log = log
        self._members = members
        self._worker = worker
        self._delay = delay
        self._purge_after = purge_after
        self._view = ClusterView()
        self._wake = asyncio.Event()
        #: Names of the workers that are alive, as of when; the members' changes make them old.
        self._alive: tuple[list[str], float] = [], float("-inf")
        self._read = asyncio.Condition()
        self._marked: dict[str, float] = {}
        #: When this coordinator read the first assignment of those that count a worker as lost.
        self._lost_since: dict[str, float] = {}
        #: What is due, by the assignment that it builds on, and since when.
        self._due_since: tuple[int, float] | None = None
        self._compact_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        #: Told of the error that has ended it.
        self.on_failure: OnFailure = lambda _error: None
        self._acting = False
        self._turns = self._assignments = self._compactions = 0

    def start(self) -> None:
        """Begin to watch the log and the members."""
        for name, work in (
            ("follower", self._follow()),
            ("listener", self._listen()),
            ("turns", self._run()),
        ):
            task = watched_task(work, name=f"coordinator-{name}", on_failure=self._fail)
            self._tasks.append(task)

    async def stop(self) -> None:
        """End, and leave it to the other workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def statistics(self) -> CoordinatorStatistics:
        """Return what the coordinator has done."""
        return CoordinatorStatistics(
            acting=self._acting,
            turns=self._turns,
            assignments=self._assignments,
            compactions=self._compactions,
        )

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)

    # What it watches

    async def _follow(self) -> None:
        async for position, record in self._log.follow(0):
            self._view, _ = fold(self._view, record, position)
            self._count_lost(self._view.assignment)
            async with self._read:
                self._read.notify_all()
            self._wake.set()

    def _count_lost(self, made: AssignmentMade | None) -> None:
        now = time.monotonic()
        lost = {} if made is None else made.lost
        self._lost_since = {one: self._lost_since.get(one, now) for one in lost}

    async def _listen(self) -> None:
        while True:
            await self._members.changed()
            self._alive = [], float("-inf")
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                pause = await self._turn()
            except HeadraceError as error:
                logger.warning("coordinator on %s: %s", self._worker, error)
                pause = 1.0
            # No wait_for: in Python 3.11 it may swallow that it is cancelled.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                await asyncio.sleep(_GATHER)

    # One turn

    async def _turn(self) -> float:
        """Do what is due, and return the seconds until the next turn, if nothing happens before."""
        self._wake.clear()
        workers = await self._workers()
        self._acting = workers[:1] == [self._worker]
        if self._worker not in workers:
            # It is cut off, or brokers do not know of it yet.
            return _LONGEST_PAUSE
        self._turns += 1
        over, plan = self._plan(set(workers), time.monotonic())
        if plan.generation != self._generation:
            pause = self._turn_of(workers) - time.monotonic()
            if pause > 0:
                return min(pause, _LONGEST_PAUSE)
            await self._assign(plan, over, workers)
        self._due_since = None
        if self._acting:
            await self._tidy()
        due = _LONGEST_PAUSE if plan.due is None else plan.due - time.monotonic()
        return min(max(due, 0.05), _LONGEST_PAUSE)

    async def _workers(self) -> list[str]:
        """Return the names of the workers that are alive, in the order in which they act."""
        # An answer that came late may have lain in a buffer: it is asked for once more.
        for _ in range(2):
            if time.monotonic() - self._alive[1] >= _LONGEST_PAUSE:
                asked = time.monotonic()
                self._alive = sorted(await self._members.workers(self._lost_since)), asked
        return self._alive[0]

    @property
    def _generation(self) -> int:
        return 0 if self._view.assignment is None else self._view.assignment.generation

    def _turn_of(self, workers: list[str]) -> float:
        """Return the time at which it is up to this worker to do what is due."""
        if self._due_since is None or self._due_since[0] != self._generation:
            self._due_since = self._generation, time.monotonic()
        return self._due_since[1] + workers.index(self._worker) * _STEP

    def _plan(self, workers: set[str], now: float) -> tuple[set[str], Assignment]:
        """Work out the next assignment, and of which lost workers nothing lives any more.

        Nothing does once the delay is over that began when this one had read in the log that the
        worker is lost: the worker's own lease is shorter, and ends no later by that assignment.
        """
        previous = Assignment.of(self._view.assignment)
        lost = {one: self._lost_since.get(one, now) + self._delay for one in previous.lost}
        over = {one for one, until in lost.items() if until <= now} - workers
        over &= {status.worker for status in self._view.alive()}
        view = settle(self._view, over, self._view.position)
        return over, assign(view, workers, replace(previous, lost=lost), now, self._delay)

    async def _assign(self, plan: Assignment, over: set[str], workers: list[str]) -> None:
        logger.info("assignment %d: workers %s", plan.generation, ", ".join(workers))
        # In the log stands the wall clock, for people: nothing is decided by it.
        ahead = time.time() - time.monotonic()
        shown = replace(plan, lost={one: until + ahead for one, until in plan.lost.items()})
        await self._append(shown.record(self._view, self._worker, over))
        self._assignments += 1

    async def _tidy(self) -> None:
        marks = {name for name, entry in self._view.entries.items() if entry.deleted}
        now = time.monotonic()
        self._marked = {name: self._marked.get(name, now) for name in marks}
        old = [
            name
            for name, since in self._marked.items()
            if now - since >= self._purge_after and self._view.entries[name].purgeable
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


# One worker's part in a cluster: the log, its membership and its coordinator, together.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """How long a cluster waits for what."""

    #: What a lost worker ran moves after so long; its workers have the same `rebalance_delay`.
    delay: timedelta = timedelta(seconds=30)
    #: A worker that gives no sign of life for so long is lost, ...
    session: timedelta = timedelta(seconds=15)
    #: ... and they come so often.
    heartbeat: timedelta = timedelta(seconds=2)
    #: Marks of deleted connectors are purged after so long.
    purge_after: timedelta = timedelta(hours=1)
    #: A broker holds back a pull that finds nothing for so long.
    pull_wait: timedelta = timedelta(seconds=5)


class Cluster:
    """A worker as a member of a cluster of workers.

    Made by `join`; a worker runs on its ``log``, and joins again by `join_again`.

    Examples
    --------
    >>> async def run(client: AsyncClient) -> None:
    ...     cluster = await Cluster.join(client, "headrace-connect", "worker-1")
    ...     ...  # run a worker on cluster.log
    ...     await cluster.leave()
    """

    def __init__(self, log: TopicLog, members: Members, coordinator: Coordinator) -> None:
        self.log = log
        self._members = members
        self._coordinator = coordinator

    @classmethod
    async def join(
        cls, client: AsyncClient, group: str, worker: str, times: ClusterTimes | None = None
    ) -> Self:
        """Read the log of a cluster to its end, and become a member.

        Parameters
        ----------
        client
            Connection to the cluster of brokers; it stays open.
        group
            Name of the cluster of workers: its log is the topic of this name.
        worker
            Name of this worker, which no other one may have.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name is alive.
        ConnectError
            The topic of the group cannot hold a log.
        """
        times = ClusterTimes() if times is None else times
        topic = f"{group}-log"
        log = await TopicLog.open(client, topic, wait=times.pull_wait)
        members = Members(
            client, group, topic, worker, interval=times.heartbeat, timeout=times.session
        )
        try:
            await members.join()
        except BaseException:
            await log.close()
            raise
        coordinator = Coordinator(
            log,
            members,
            worker,
            delay=times.delay.total_seconds(),
            purge_after=times.purge_after.total_seconds(),
        )
        coordinator.start()
        return cls(log, members, coordinator)

    def watch(self, on_failure: OnFailure) -> None:
        """Pass an error to a callback if it ends a part of the membership, or has ended the log."""
        self._members.on_failure = self._coordinator.on_failure = on_failure
        if self.log.failure is not None:
            on_failure(self.log.failure)

    async def join_again(self) -> None:
        """Become a member anew, after having been cut off for so long that others took over.

        Raises
        ------
        WorkerIdTakenError
            Another worker has the name by now.
        """
        await self._members.join_again()

    async def leave(self) -> None:
        """Leave the cluster; what this worker ran has to be stopped before."""
        await self._coordinator.stop()
        await self._members.leave()
        await self.log.close()

    def statistics(self) -> CoordinatorStatistics:
        """Return what this worker's coordinator has done."""
        return self._coordinator.statistics()
