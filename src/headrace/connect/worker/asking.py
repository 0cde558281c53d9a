"""Asking connectors for their tasks: once per config, and whenever they want it anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from headrace.connect.lifecycle import Cause
from headrace.connect.log import ClusterView, Outcome, Record, TasksPut
from headrace.connect.naming import UnitId
from headrace.connect.worker.requests import new_request
from headrace.connect.worker.settings import most_tasks
from headrace.errors import HeadraceError, WorkerStoppingError

if TYPE_CHECKING:
    from headrace.connect.log import ConnectorEntry
    from headrace.connect.worker.catalog import Catalog

__all__ = ["Asker", "TaskQuestions"]


class Asker(Protocol):
    """Who needs the answers: the worker."""

    @property
    def view(self) -> ClusterView:
        """What is decided."""

    async def append(self, record: Record) -> Outcome:
        """Put an answer into the log."""

    def fail(self, unit: UnitId, cause: Cause) -> None:
        """Note that a connector could not say what its tasks are."""

    def wakeup(self) -> None:
        """Look again what is to be done."""


class TaskQuestions:
    """Asks connectors for their tasks, each in a process of its own, never twice at a time.

    Parameters
    ----------
    asker
        Who needs the answers.
    catalog
        Asks.
    """

    def __init__(self, asker: Asker, catalog: Catalog) -> None:
        self._asker = asker
        self._catalog = catalog
        self._anew: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def want(self, connector: str) -> None:
        """Note that a connector wants its tasks made anew."""
        self._anew.add(connector)

    def ask(self, due: Collection[str]) -> None:
        """Ask the connectors that are due, and those that want to be asked and run."""
        connectors = self._asker.view.connectors()
        self._anew &= connectors.keys()
        for name in {*due, *(name for name in self._anew if connectors[name].healthy)}:
            if name not in self._tasks:
                self._anew.discard(name)
                work = self._ask(connectors[name])
                self._tasks[name] = asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        """Wait for no answer any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, entry: ConnectorEntry) -> None:
        try:
            configs = await self._answer(entry)
            record = TasksPut(
                request=new_request(),
                name=entry.name,
                config_version=entry.version,
                configs=configs,
            )
            with contextlib.suppress(WorkerStoppingError):
                await self._asker.append(record)
        except HeadraceError as error:
            self._asker.fail(UnitId(entry.name, None, entry.generation), Cause(error.message))
        finally:
            del self._tasks[entry.name]
            self._asker.wakeup()

    async def _answer(self, entry: ConnectorEntry) -> list[dict[str, str]]:
        plugin = await self._catalog.of(entry.config)
        return await self._catalog.task_configs(plugin, entry.config, most_tasks(entry.config))
