"""Levels of loggers, set in any process of a worker: in its own, its hosts, its engine."""

from __future__ import annotations

import logging

#: What the root of all loggers is called.
ROOT = "root"


def known_loggers() -> dict[str, logging.Logger]:
    """Return the loggers of this process by their names, without the root."""
    found = logging.root.manager.loggerDict
    return {name: one for name, one in list(found.items()) if isinstance(one, logging.Logger)}


def set_level(logger: str, level: int) -> list[str]:
    """Set the level of a logger and of those below it that there are; give their names.

    >>> set_level("doctest.of.levels", logging.WARNING)
    ['doctest.of.levels']
    """
    below = [one for one in known_loggers() if one.startswith(f"{logger}.")]
    names = sorted({logger, *below}) if logger != ROOT else [ROOT]
    for one in names:
        logging.getLogger(None if one == ROOT else one).setLevel(level)
    return names


class LevelsToCome:
    """Levels that were set, for processes that start later.

    Examples
    --------
    >>> levels = LevelsToCome()
    >>> for name, level in [("a.b", 10), ("a", 30), ("a.b", 20)]:
    ...     levels.set(name, level)
    >>> levels.in_order()
    [('a', 30), ('a.b', 20)]
    """

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}

    def set(self, name: str, level: int) -> None:
        """Note a level, as the last one."""
        self._levels.pop(name, None)
        self._levels[name] = level

    def in_order(self) -> list[tuple[str, int]]:
        """Return all levels; each holds for those below, too, that were set before."""
        return list(self._levels.items())
