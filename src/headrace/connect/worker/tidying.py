"""Keeping the log short: it is summed up now and then, and marks of deleted names go in the end."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Protocol

from headrace.connect.log import ClusterView, Log, Outcome, Purged, Record
from headrace.errors import WorkerStoppingError

if TYPE_CHECKING:
    from headrace.connect.worker.settings import WorkerSettings

__all__ = ["Tidier", "Tidying"]

logger = logging.getLogger(__name__)


class Tidier(Protocol):
    """Who keeps the log short: the worker."""

    @property
    def view(self) -> ClusterView:
        """What is decided."""

    @property
    def settings(self) -> WorkerSettings:
        """How often."""

    async def append(self, record: Record) -> Outcome:
        """Put a record into the log."""


class Tidying:
    """Sums the log up, and removes the marks of connectors that were deleted long ago.

    Nothing that anybody sees changes by it.

    Parameters
    ----------
    log
        The log.
    tidier
        Whose view says what can go.
    """

    def __init__(self, log: Log, tidier: Tidier) -> None:
        self._log = log
        self._tidier = tidier
        self._compacted = 0
        self._marked: dict[str, float] = {}

    async def consider(self) -> None:
        """Do what is due."""
        view, settings = self._tidier.view, self._tidier.settings
        if old := self._old_marks(view, settings.purge_after.total_seconds()):
            with contextlib.suppress(WorkerStoppingError):
                await self._tidier.append(Purged(names=old))
        if view.position - self._compacted >= settings.compact_after:
            await self._compact(view)

    async def _compact(self, view: ClusterView) -> None:
        # With newer records under way it is left for the next pass.
        if await self._log.compact(view):
            self._compacted = view.position
            logger.info("the log was summed up at position %d", view.position)

    def _old_marks(self, view: ClusterView, age: float) -> list[str]:
        now = time.monotonic()
        marks = {name for name, entry in view.entries.items() if entry.deleted}
        self._marked = {name: self._marked.get(name, now) for name in marks}
        return sorted(
            name
            for name, since in self._marked.items()
            if now - since >= age and view.entries[name].purgeable
        )
