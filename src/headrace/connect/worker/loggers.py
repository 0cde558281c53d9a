"""Levels of the worker's loggers, seen and set while it runs."""

from __future__ import annotations

import logging
import time
from typing import Any

from headrace.errors import ConnectNotFoundError

__all__ = ["Loggers", "check_level"]

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
_ROOT = "root"


class Loggers:
    """The loggers of this process, by Kafka Connect's words.

    Examples
    --------
    >>> loggers = Loggers()
    >>> loggers.set("doctest.of.loggers", "warn")
    ['doctest.of.loggers']
    >>> loggers.level("doctest.of.loggers")["level"]
    'WARN'
    """

    def __init__(self) -> None:
        self._changed_ms: dict[str, int] = {}

    def levels(self) -> dict[str, dict[str, Any]]:
        """Give every logger that has a level of its own."""
        named = {_ROOT: logging.root, **_existing()}
        return {
            name: self._one(name, logger) for name, logger in sorted(named.items()) if logger.level
        }

    def level(self, name: str) -> dict[str, Any]:
        """Give the level that holds for a logger.

        Raises
        ------
        ConnectNotFoundError
            Nothing has logged by that name.
        """
        logger = logging.root if name == _ROOT else _existing().get(name)
        if logger is None:
            raise ConnectNotFoundError(f"there is no logger '{name}'")
        return self._one(name, logger)

    def set(self, name: str, level: str) -> list[str]:
        """Set the level of a logger and of those below it; give their names.

        Raises
        ------
        ConnectNotFoundError
            There is no such level.
        """
        number = check_level(level)
        below = [one for one in _existing() if one.startswith(f"{name}.")]
        names = sorted({name, *below}) if name != _ROOT else [_ROOT]
        for one in names:
            logging.getLogger(None if one == _ROOT else one).setLevel(number)
            self._changed_ms[one] = time.time_ns() // 1_000_000
        return names

    def _one(self, name: str, logger: logging.Logger) -> dict[str, Any]:
        number = logger.getEffectiveLevel()
        word = _WORDS.get(number, logging.getLevelName(number))
        return {"level": word, "last_modified": self._changed_ms.get(name)}


def check_level(word: str) -> int:
    """Give Python's number for a level.

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
        raise ConnectNotFoundError(f"there is no level '{word}'", hint=f"use {', '.join(_LEVELS)}")
    return number


def _existing() -> dict[str, logging.Logger]:
    found = logging.root.manager.loggerDict
    return {name: one for name, one in list(found.items()) if isinstance(one, logging.Logger)}
