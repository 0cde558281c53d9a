"""The copies that a worker has: those that may live, and the last that ended of each unit."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.connect.lifecycle import Phase, RecordState

if TYPE_CHECKING:
    from collections.abc import KeysView

    from headrace.connect.naming import UnitId
    from headrace.connect.worker.copies import UnitCopy

__all__ = ["Roster"]

logger = logging.getLogger(__name__)

_ENDED = 500


class Roster:
    """Keeps each copy until it is proven gone, and counts what became of all of them."""

    def __init__(self) -> None:
        self._here: dict[UnitId, UnitCopy] = {}
        self._ended: OrderedDict[tuple[str, int | None], UnitCopy] = OrderedDict()
        self._runs: dict[UnitId, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        #: Tasks that run, as an immutable snapshot; from any thread.
        self.running: tuple[UnitId, ...] = ()
        #: Copies that were started, had to be killed, ended in Error.
        self.launched = self.forced = self.failed = 0

    def __iter__(self) -> Iterator[UnitCopy]:
        """Give all copies that are not proven gone, whatever is done with them meanwhile."""
        return iter(list(self._here.values()))

    def units(self) -> KeysView[UnitId]:
        """Tell which copies are not proven gone."""
        return self._here.keys()

    def get(self, unit: UnitId) -> UnitCopy | None:
        """Give a copy that is not proven gone."""
        return self._here.get(unit)

    def told(self) -> list[UnitCopy]:
        """Give all copies that can be told of: also the last one that ended of each unit."""
        return [*self._here.values(), *self._ended.values()]

    def add(self, copy: UnitCopy) -> None:
        """Take in a copy that is about to start."""
        self._ended.pop(_name(copy), None)
        self._here[copy.id] = copy
        self._empty.clear()
        self.launched += 1

    def note(self, copy: UnitCopy, record: RecordState) -> None:
        """Take note of a copy's new state."""
        if copy.id.task is not None and record.phase is not Phase.PENDING:
            self._publish(copy)
        if record.gone:
            self.forced += record.forced
            self.failed += record.phase is Phase.ERROR

    def drop(self, copy: UnitCopy) -> None:
        """Let go of a copy that is proven gone, but for what can be told of it."""
        self._here.pop(copy.id, None)
        self._ended.pop(_name(copy), None)
        self._ended[_name(copy)] = copy
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)
        if not self._here:
            self._empty.set()

    def counts(self) -> Mapping[tuple[str, Phase], int]:
        """Count the copies that are not proven gone, by kind and phase."""
        counts: dict[tuple[str, Phase], int] = {}
        for unit, copy in self._here.items():
            key = "connector" if unit.task is None else "task", copy.unit.phase
            counts[key] = counts.get(key, 0) + 1
        return counts

    def failures(self) -> set[UnitId]:
        """Tell which copies stand in Error."""
        return {unit for unit, copy in self._here.items() if copy.unit.phase is Phase.ERROR}

    async def until_empty(self, patience: float) -> None:
        """Wait until all copies are proven gone, or until it takes too long."""
        try:
            await asyncio.wait_for(self._empty.wait(), patience)
        except TimeoutError:
            left = ", ".join(f"{copy.id.what} ({copy.pid})" for copy in self)
            logger.warning("the worker ends though these are not proven gone: %s", left)

    def _publish(self, copy: UnitCopy) -> None:
        if copy.unit.phase is Phase.RUNNING:
            self._runs[copy.id] = None
        else:
            self._runs.pop(copy.id, None)
        # One assignment: whoever reads it in another thread sees the old one or the new one.
        self.running = tuple(self._runs)


def _name(copy: UnitCopy) -> tuple[str, int | None]:
    return copy.id.connector, copy.id.task
