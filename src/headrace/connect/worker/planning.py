"""What a worker has to do next: a pure comparison of what is wanted with what is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connect.naming import UnitId
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.connect.lifecycle import Phase
    from headrace.connect.log import ClusterView, ConnectorEntry


# A function that runs every so often, or at once when somebody wakes it.

logger = logging.getLogger(__name__)

#: A run that does not end holds up nobody's end for longer.
_PATIENCE = 5.0


class Periodic:
    """Runs a function at intervals, and at once after :meth:`wakeup`.

    Wakeups while it waits become one run; one that comes during a run makes exactly one more.
    A run that raises is logged, and the next one happens all the same.

    Parameters
    ----------
    function
        What is run, never twice at a time.
    interval
        Seconds between the end of a run and the next.
    name
        Says in the log which one failed.
    on_failure
        Told of an error that has ended it, which that of a run does not.
    """

    def __init__(
        self,
        function: Callable[[], Awaitable[None]],
        interval: float,
        *,
        name: str,
        on_failure: OnFailure,
    ) -> None:
        self._function = function
        self._interval = interval
        self._name = name
        self._on_failure = on_failure
        self._wanted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        #: Runs that have ended, well or not.
        self.runs = 0
        #: When the last one ended, by the event loop's clock.
        self.last_run: float | None = None

    def start(self) -> None:
        """Begin, with a run at once."""
        self._loop = asyncio.get_running_loop()
        self._wanted.set()
        self._task = watched_task(self._run(), name=self._name, on_failure=self._on_failure)

    def wakeup(self) -> None:
        """Have the function run now, or once more if it runs already; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if _running_loop() is loop:
            self._wanted.set()
        else:
            loop.call_soon_threadsafe(self._wanted.set)

    async def stop(self) -> None:
        """Let a run end that has begun, and begin no other."""
        task, self._task = self._task, None
        if task is None:
            return
        self._loop = None
        self._over = True
        self._wanted.set()
        await asyncio.wait([task], timeout=_PATIENCE)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        # No wait_for: in Python 3.11 it may swallow what it is woken by.
        loop = asyncio.get_running_loop()
        while not self._over:
            timer = loop.call_later(self._interval, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
            self._wanted.clear()
            if not self._over:
                await self._run_once()

    async def _run_once(self) -> None:
        try:
            await self._function()
        except Exception:
            logger.exception("%s failed; it runs again", self._name)
        self.runs += 1
        self.last_run = asyncio.get_running_loop().time()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# Figures of a worker.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """What a worker has and has done."""

    #: ``starting``, ``running``, ``stopping`` or ``stopped``.
    state: str
    #: Copies that are not proven gone, by kind and phase.
    copies: Mapping[tuple[str, Phase], int]
    launched: int
    #: Copies that had to be killed.
    forced: int
    #: Copies that ended in Error.
    failed: int
    #: Restarts that the worker made by itself.
    restarted: int
    passes: int
    log_position: int
    #: States that wait to be written.
    unwritten: int


Mine = Callable[[UnitId], bool]
"""Whether this worker is to run a unit."""


@dataclass(frozen=True, slots=True)
class StopCopy:
    """A copy that is to end."""

    unit: UnitId
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """What is to be done in one pass; all of it may be done at once."""

    stops: tuple[StopCopy, ...] = ()
    starts: tuple[UnitId, ...] = ()
    #: Connectors that have to be asked for their tasks.
    asks: tuple[str, ...] = ()
    #: Wanted copies that stand in Error.
    failed: tuple[UnitId, ...] = ()


def plan(view: ClusterView, worker: str, held: Collection[UnitId], mine: Mine) -> PassPlan:
    """Compare the view with the copies that a worker holds.

    A copy starts only where no other copy of the same unit may be alive, here or on another
    worker.  Tasks start only while their connector runs, and only when all tasks that are no
    longer wanted are gone, with all that earlier connectors of the name had committed.  They stop when it has failed.

    Parameters
    ----------
    view
        What is decided.
    worker
        Who asks.
    held
        Copies that are not proven gone, on this worker.
    mine
        Whether the worker is to run a unit.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, fold
    >>> put = ConnectorPut(request="a", name="orders", config={})
    >>> view, _ = fold(ClusterView(), put, 0)
    >>> plan(view, "me", [], lambda unit: True).starts
    (UnitId(connector='orders', task=None, generation=0),)
    """
    stops: list[StopCopy] = []
    starts: list[UnitId] = []
    asks: list[str] = []
    failed: list[UnitId] = []
    here: dict[str, list[UnitId]] = {}
    for unit in held:
        here.setdefault(unit.connector, []).append(unit)
    for name in {**view.connectors(), **dict.fromkeys(here)}:
        entry = view.entries.get(name)
        copies = set(here.get(name, ()))
        wanted = {} if entry is None or entry.deleted else _wanted(entry, mine)
        stops += _stops(entry, here.get(name, []), wanted.keys())
        if entry is None or entry.deleted:
            continue
        failed += [unit for unit in wanted if unit not in copies and entry.failed(unit.task)]
        starts += _starts(entry, worker, copies, wanted.keys())
        due = entry.tasks_due or entry.tasks_wanted >= 0
        if due and entry.healthy and mine(UnitId(name, None, entry.generation)):
            asks.append(name)
    return PassPlan(
        stops=tuple(stops), starts=tuple(starts), asks=tuple(asks), failed=tuple(failed)
    )


def may_start(
    view: ClusterView, worker: str, held: Iterable[UnitId], mine: Mine, unit: UnitId
) -> bool:
    """Return whether a copy that is held, and does not run yet, is one to start."""
    entry = view.connector(unit.connector)
    if entry is None:
        return False
    copies = {one for one in held if one.connector == unit.connector and one != unit}
    return unit in _starts(entry, worker, copies, _wanted(entry, mine).keys())


def _wanted(entry: ConnectorEntry, mine: Mine) -> dict[UnitId, None]:
    return dict.fromkeys(filter(mine, entry.units()))


def _stops(
    entry: ConnectorEntry | None, copies: Iterable[UnitId], wanted: Collection[UnitId]
) -> Iterator[StopCopy]:
    # A null entry and a deleted one stop what is there, whoever asks.
    force = entry is not None and entry.force
    connector_failed = entry is not None and not entry.deleted and entry.failed()
    for unit in copies:
        if unit not in wanted:
            yield StopCopy(unit, force)
        elif unit.task is not None and connector_failed:
            yield StopCopy(unit)


def _starts(
    entry: ConnectorEntry, worker: str, copies: set[UnitId], wanted: Collection[UnitId]
) -> Iterator[UnitId]:
    alive = copies | {status.unit for status in entry.alive() if status.worker != worker}
    taken = {unit.task for unit in alive}
    if len(alive) >= len(wanted) and all(unit.task in taken for unit in wanted):
        return
    tasks_may_start = _tasks_may_start(entry, alive)
    for unit in wanted:
        if unit.task in taken or entry.failed(unit.task):
            continue
        if unit.task is None or tasks_may_start:
            yield unit


def _tasks_may_start(entry: ConnectorEntry, alive: set[UnitId]) -> bool:
    if entry.tasks_due or entry.leftovers or not entry.healthy:
        return False
    wanted = set(entry.units())
    return all(unit.task is None or unit in wanted for unit in alive)
