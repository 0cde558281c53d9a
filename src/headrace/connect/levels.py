"""Levels of loggers, set in any process of a worker: in its own, its hosts, its engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import ConnectNotFoundError

#: What the root of all loggers is called.
ROOT = "root"


def known_loggers() -> dict[str, logging.Logger]:
    """Return the loggers of this process by their names, without the root."""
    found = logging.root.manager.loggerDict
    return {name: one for name, one in list(found.items()) if isinstance(one, logging.Logger)}


def set_level(logger: str, level: int) -> list[str]:
    """Set the level of a logger and of the existing ones below it, and return their names.

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


#: Kafka Connect's words for levels, and Python's.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
_WORDS = {
    5: "TRACE",
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
    logging.CRITICAL + 10: "OFF",
}


class Loggers:
    """The loggers of a worker, by Kafka Connect's words: what is set holds in all its processes.

    Parameters
    ----------
    spread
        Takes a logger's name and level to the processes of plugins and to the engine.

    Examples
    --------
    >>> loggers = Loggers()
    >>> loggers.set("doctest.of.loggers", "warn")
    ['doctest.of.loggers']
    >>> loggers.level("doctest.of.loggers")["level"]
    'WARN'
    """

    def __init__(self, spread: Callable[[str, int], None] = lambda *_: None) -> None:
        self._spread = spread
        self._changed_ms: dict[str, int] = {}

    def levels(self) -> dict[str, dict[str, Any]]:
        """Return every logger of the worker's process with the level that holds for it."""
        named = {ROOT: logging.root, **known_loggers()}
        return {name: self._one(name, logger) for name, logger in sorted(named.items())}

    def level(self, name: str) -> dict[str, Any]:
        """Return the level that holds for a logger.

        Raises
        ------
        ConnectNotFoundError
            Nothing has logged by that name.
        """
        logger = logging.root if name == ROOT else known_loggers().get(name)
        if logger is None:
            raise ConnectNotFoundError(f"Logger {name} not found.")
        return self._one(name, logger)

    def set(self, name: str, level: str) -> list[str]:
        """Set the level of a logger and of those below it, and return their names.

        Raises
        ------
        ConnectNotFoundError
            There is no such level.
        """
        number = check_level(level)
        names = set_level(name, number)
        self._changed_ms |= dict.fromkeys(names, time.time_ns() // 1_000_000)
        self._spread(name, number)
        return names

    def _one(self, name: str, logger: logging.Logger) -> dict[str, Any]:
        number = logger.getEffectiveLevel()
        word = _WORDS.get(number, logging.getLevelName(number))
        return {"level": word, "last_modified": self._changed_ms.get(name)}


def check_level(word: str) -> int:
    """Return Python's number for a level.

    Raises
    ------
    ConnectNotFoundError
        There is no such level.

    Examples
    --------
    >>> check_level("warn")
    30
    """
    number = _LEVELS.get(word.upper())
    if number is None:
        raise ConnectNotFoundError(f"invalid log level '{word}'.", hint=f"use {', '.join(_LEVELS)}")
    return number
