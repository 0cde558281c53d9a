"""What deleted connectors leave behind: their positions go at once, what they printed later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.connect.log import ClusterView, Leftover, LeftoversGone, Outcome, Record
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.worker.launching import Launcher
    from headrace.connect.worker.settings import WorkerSettings


logger = logging.getLogger(__name__)

#: Seconds between two tries.
_PAUSE = 1.0
#: Stands for the time of a mark whose logs are gone.
_DONE = float("inf")


class Forgetter(Protocol):
    """Who runs connectors: the worker."""

    @property
    def view(self) -> ClusterView:
        """What is decided."""

    @property
    def settings(self) -> WorkerSettings:
        """How long what is kept."""

    async def append(self, record: Record) -> Outcome:
        """Put a record into the log."""

    def wakeup(self) -> None:
        """Look again what is to be done."""


class Forgetting:
    """Has removed what deleted connectors leave behind, once nothing of them lives.

    Parameters
    ----------
    forgetter
        Whose view says what can go.
    launcher
        Removes it.
    """

    def __init__(self, forgetter: Forgetter, launcher: Launcher) -> None:
        self._forgetter = forgetter
        self._launcher = launcher
        #: Since when each name has something to remove; since when it is a mark.
        self._due: dict[str, float] = {}
        self._marked: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, *, first: bool) -> None:
        """Do what is due.

        Parameters
        ----------
        first
            Whether it is up to this worker; else it does what is left undone.
        """
        now = asyncio.get_running_loop().time()
        patience = 0.0 if first else self._forgetter.settings.rebalance_delay.total_seconds()
        entries = self._forgetter.view.entries
        unused = {name: entry.unused for name, entry in entries.items() if entry.leftovers}
        due = {name: leftovers for name, leftovers in unused.items() if leftovers}
        self._due = {name: self._due.get(name, now) for name in due}
        for name, leftovers in due.items():
            if now - self._due[name] >= patience and name not in self._tasks:
                work = self._forget(name, leftovers)
                self._tasks[name] = asyncio.get_running_loop().create_task(work, name=name)
                self._tasks[name].add_done_callback(self._done)
        self._drop_logs(now)

    async def stop(self) -> None:
        """Leave it to others, or to the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task.get_name()]
        if not task.cancelled():
            task.result()
            self._forgetter.wakeup()

    async def _forget(self, name: str, leftovers: Sequence[Leftover]) -> None:
        try:
            for one in leftovers:
                await self._forget_one(name, one)
            gone = LeftoversGone(name=name, kept_as=[one.kept_as for one in leftovers])
            await self._forgetter.append(gone)
        except HeadraceError as error:
            logger.warning("what connector %s had committed is not removed yet: %s", name, error)
            await asyncio.sleep(_PAUSE)

    async def _forget_one(self, name: str, leftover: Leftover) -> None:
        try:
            await self._launcher.forget(leftover.kept_as, leftover.config)
        except HeadraceError as error:
            if error.retriable:
                raise
            logger.error(
                "what connector %s had committed stays, though nobody uses it: %s", name, error
            )

    def _drop_logs(self, now: float) -> None:
        view, age = self._forgetter.view, self._forgetter.settings.purge_after.total_seconds()
        marks = {name for name, entry in view.entries.items() if entry.deleted}
        old = {
            name
            for name, since in self._marked.items()
            if since < _DONE
            and (name not in view.entries or (name in marks and since + age <= now))
        }
        for name in old:
            self._launcher.drop_logs(name)
        self._marked = {
            name: _DONE if name in old else self._marked.get(name, now) for name in marks
        }
