"""Restarts: what a request for one means now, and those that the worker makes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.connect.log import ConnectorEntry
    from headrace.connect.naming import UnitId

__all__ = ["ATTEMPTS_KEY", "PAUSE_KEY", "PAUSE_MAX_KEY", "AutoRestarts", "RestartPlan", "pauses"]

ATTEMPTS_KEY = "restart.max.attempts"
"""Key of a connector's config: restarts in a row after failures; 0 (default) never, -1 always."""

PAUSE_KEY = "restart.pause.ms"
"""Key of a connector's config: the pause before the first restart; it doubles each time."""

PAUSE_MAX_KEY = "restart.pause.max.ms"
"""Key of a connector's config: the longest pause; who runs for longer is well again."""

_PAUSE_MS = 1_000
_PAUSE_MAX_MS = 60_000


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart does, as things stand.

    Examples
    --------
    >>> from headrace.connect.log import ConnectorEntry
    >>> entry = ConnectorEntry(name="a", config={}, version=1, created=0, changed=0, generation=0)
    >>> RestartPlan.of(entry, include_tasks=True, only_failed=True)
    RestartPlan(connector=False, tasks=frozenset())
    """

    connector: bool
    tasks: frozenset[int]

    @classmethod
    def of(cls, entry: ConnectorEntry, *, include_tasks: bool, only_failed: bool) -> RestartPlan:
        """Choose what is restarted."""
        tasks = range(len(entry.tasks)) if include_tasks else ()
        return cls(
            connector=entry.failed() or not only_failed,
            tasks=frozenset(n for n in tasks if entry.failed(n) or not only_failed),
        )


def pauses(config: Mapping[str, str], attempt: int) -> timedelta | None:
    """Give the pause before a restart, or None where there is none.

    Parameters
    ----------
    config
        Of the connector.
    attempt
        Restarts in a row that have been made.

    Examples
    --------
    >>> [pauses({"restart.max.attempts": "2"}, n) for n in (0, 1, 2)]
    [datetime.timedelta(seconds=1), datetime.timedelta(seconds=2), None]
    >>> pauses({}, 0) is None
    True
    """
    most = _number(config, ATTEMPTS_KEY, 0)
    if 0 <= most <= attempt:
        return None
    first, longest = _number(config, PAUSE_KEY, _PAUSE_MS), _longest(config)
    return timedelta(milliseconds=min(first * 2 ** min(attempt, 40), longest))


class AutoRestarts:
    """Restarts of failed units whose config asks for it, with growing pauses.

    Parameters
    ----------
    restart
        Asks for the restart of a unit.
    """

    def __init__(self, restart: Callable[[UnitId], None]) -> None:
        self._restart = restart
        self._attempts: dict[tuple[str, int | None], int] = {}
        self._timers: dict[tuple[str, int | None], tuple[UnitId, asyncio.TimerHandle]] = {}

    def attempts(self, unit: UnitId) -> int:
        """Restarts in a row that a unit has had."""
        return self._attempts.get((unit.connector, unit.task), 0)

    def due_in(self, unit: UnitId) -> float | None:
        """Seconds until a unit is restarted, where it will be."""
        waiting = self._timers.get((unit.connector, unit.task))
        if waiting is None or waiting[0] != unit:
            return None
        return max(0.0, waiting[1].when() - asyncio.get_running_loop().time())

    def consider(self, unit: UnitId, config: Mapping[str, str]) -> None:
        """Restart a failed unit after a pause, if its config says so."""
        key = (unit.connector, unit.task)
        waiting = self._timers.get(key)
        if waiting is not None and waiting[0] == unit:
            return
        self.forget(unit)
        pause = pauses(config, self._attempts.get(key, 0))
        if pause is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(pause.total_seconds(), self._fire, unit)
            self._timers[key] = unit, timer

    def ran(self, unit: UnitId, seconds: float, config: Mapping[str, str]) -> None:
        """Note for how long a copy has run: who ran for long begins to count anew."""
        if seconds * 1000 > _longest(config):
            self._attempts.pop((unit.connector, unit.task), None)

    def forget(self, unit: UnitId) -> None:
        """Take back a restart that is due."""
        waiting = self._timers.pop((unit.connector, unit.task), None)
        if waiting is not None:
            waiting[1].cancel()

    def forget_all(self, connector: str) -> None:
        """Take back all restarts of a connector and its tasks, and begin to count anew."""
        for unit, _ in list(self._timers.values()):
            if unit.connector == connector:
                self.forget(unit)
        self._attempts = {key: n for key, n in self._attempts.items() if key[0] != connector}

    def keep_only(self, failed: set[UnitId]) -> None:
        """Take back the restarts of all units but these."""
        for unit, _ in list(self._timers.values()):
            if unit not in failed:
                self.forget(unit)

    def _fire(self, unit: UnitId) -> None:
        key = (unit.connector, unit.task)
        self._timers.pop(key, None)
        self._attempts[key] = self._attempts.get(key, 0) + 1
        self._restart(unit)


def _longest(config: Mapping[str, str]) -> int:
    return _number(config, PAUSE_MAX_KEY, _PAUSE_MAX_MS)


def _number(config: Mapping[str, str], key: str, default: int) -> int:
    # Validation refuses what is no number; an older config must not stop the worker.
    try:
        return int(config.get(key, default))
    except ValueError:
        return default
