"""States on their way into the log: in order for each unit, again and again until it takes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.backoff import Backoff
from headrace.connect.lifecycle import Cause, Phase, Target, UnitState
from headrace.connect.log import Rejected, RungTaken, StatusSet
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.connect.worker.following import LogFollower
    from headrace.connect.worker.launching import UnitCopy


logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 2.0
#: A record must fit a message; the end of a trace says most.
_LONGEST_TRACE = 32_768

_Unit = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class _Item:
    unit: _Unit
    #: None: nothing is written, the copy is dropped.
    status: StatusSet | None = None
    copy: UnitCopy | None = None
    #: Done when the status is in the log.
    written: asyncio.Future[None] | None = None


class Outbox:
    """Writes states to the log in the background.

    A copy is dropped only when its last state is in the log: until then no successor may start.

    Parameters
    ----------
    follower
        Appends.
    worker
        Name of the worker that speaks.
    dropped
        Told of each copy that is dropped.
    on_failure
        Told of the error that has ended it.
    """

    def __init__(
        self,
        follower: LogFollower,
        worker: str,
        dropped: Callable[[UnitCopy], None],
        on_failure: OnFailure,
    ) -> None:
        self._follower = follower
        self._worker = worker
        self._dropped = dropped
        self._items: list[_Item] = []
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._task: asyncio.Task[None] | None = None
        self._on_failure = on_failure
        #: The error that has ended it.
        self._lost: BaseException | None = None
        self._failing_since: float | None = None
        #: Why the last attempt to write failed.
        self.failure = ""

    @property
    def waiting(self) -> int:
        """States that are not in the log yet."""
        return len(self._items)

    @property
    def failing_for(self) -> float | None:
        """Seconds for which the log has taken nothing; None where all is well."""
        return None if self._failing_since is None else time.monotonic() - self._failing_since

    def start(self) -> None:
        """Begin to write."""
        self._task = watched_task(self._run(), name="connect-outbox", on_failure=self._fail)

    def put(self, copy: UnitCopy, state: UnitState, target: Target) -> None:
        """Write a copy's new state."""
        self._put(_Item(_key(copy), self._status(copy, state, target)))

    async def claim(self, copy: UnitCopy, target: Target) -> None:
        """Report that a copy is about to start, and wait until the log says so, too."""
        written = asyncio.get_running_loop().create_future()
        status = self._status(copy, UnitState(id=copy.id, phase=Phase.PENDING), target)
        self._put(_Item(_key(copy), status, written=written))
        await written

    def drop(self, copy: UnitCopy) -> None:
        """Drop a copy once all that was put for it is written."""
        self._put(_Item(_key(copy), copy=copy))

    def settle(self, status: StatusSet, phase: Phase) -> None:
        """Report that a copy which an earlier process of this worker had is gone."""
        settled = msgspec.structs.replace(status, phase=phase, gone=True, at_ms=_now_ms())
        self._put(_Item((status.connector, status.task), settled))

    def unassign(self, copy: UnitCopy, target: Target) -> None:
        """Report that a unit waits for a worker."""
        state = UnitState(id=copy.id, gone=True)
        self._put(_Item(_key(copy), self._status(copy, state, target)))

    async def written(self) -> None:
        """Wait until nothing is left to write."""
        await self._none.wait()
        if self._lost is not None:
            raise self._lost

    async def stop(self) -> None:
        """Write what is left, unless the log takes nothing, and end."""
        if self._task is None:
            return
        lost = self._lost is not None or self._follower.lost is not None
        if not lost and self._failing_since is None:
            try:
                await asyncio.wait_for(self.written(), _LONGEST_PAUSE)
            except TimeoutError:
                logger.warning("%d states were not written: %s", self.waiting, self.failure)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    def _fail(self, error: BaseException) -> None:
        self._lost = error
        for item in self._items:
            _refuse(item, error)
        self._none.set()
        self._on_failure(error)

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        if self._lost is not None:
            _refuse(item, self._lost)
            return
        self._none.clear()
        self._some.set()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            chains: dict[_Unit, list[_Item]] = {}
            batch = list(self._items)
            for item in batch:
                chains.setdefault(item.unit, []).append(item)
            await asyncio.gather(*(self._write_all(chain) for chain in chains.values()))
            del self._items[: len(batch)]
            if not self._items:
                self._some.clear()
                self._none.set()

    async def _write_all(self, chain: list[_Item]) -> None:
        for item in chain:
            if item.status is not None:
                await self._write(item.status)
            if item.written is not None and not item.written.done():
                item.written.set_result(None)
            if item.copy is not None:
                self._dropped(item.copy)

    async def _write(self, status: StatusSet) -> None:
        backoff = Backoff(0.1, _LONGEST_PAUSE)
        while True:
            # Of one that is sent again while the first is held up, only one counts: it says after
            # what it comes.  Where something came between, it is said once more.
            told = msgspec.structs.replace(status, read=self._follower.view.position)
            try:
                outcome = await self._follower.append(told)
            except Exception as error:  # noqa: BLE001 - disk, broker or network: all may come back
                self._note_failure(error)
            else:
                self._failing_since = None
                if isinstance(outcome, Rejected) and outcome.reason == "behind":
                    continue
                return
            await asyncio.sleep(backoff.next())

    def _note_failure(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            logger.warning("the log takes no states, they are kept: %s", self.failure)

    def _status(self, copy: UnitCopy, state: UnitState, target: Target) -> StatusSet:
        return StatusSet(
            connector=copy.id.connector,
            task=copy.id.task,
            generation=copy.id.generation,
            phase=state.phase,
            target=target,
            worker=self._worker,
            cause=_short(state.cause),
            forced=state.forced,
            gone=state.gone,
            ending=state.ending,
            at_ms=_now_ms(),
            rungs=_rungs(copy),
            waits_for=state.waits_for[:_LONGEST_TRACE],
        )


def _refuse(item: _Item, error: BaseException) -> None:
    if item.written is not None and not item.written.done():
        item.written.set_exception(error)


def _key(copy: UnitCopy) -> _Unit:
    return copy.id.connector, copy.id.task


def _rungs(copy: UnitCopy) -> tuple[RungTaken, ...]:
    now_ms, now = _now_ms(), asyncio.get_running_loop().time()
    return tuple(
        RungTaken(rung.step, now_ms - round((now - rung.at) * 1000)) for rung in copy.unit.rungs
    )


def _short(cause: Cause | None) -> Cause | None:
    if cause is None or len(cause.trace) <= _LONGEST_TRACE:
        return cause
    return Cause(cause.summary[:_LONGEST_TRACE], f"...{cause.trace[-_LONGEST_TRACE:]}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
