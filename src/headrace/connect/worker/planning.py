"""What a worker has to do next: a pure comparison of what is wanted with what is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connect.naming import UnitId

if TYPE_CHECKING:
    from headrace.connect.log import ClusterView, ConnectorEntry

__all__ = ["PassPlan", "StopCopy", "may_start", "plan"]

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
    """Tell whether a copy that is held, and does not run yet, is one to start."""
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
