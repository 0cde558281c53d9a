"""Failpoints: named places where a test can make the process die.

A failpoint does nothing unless the environment names it when the process starts::

    HEADRACE_FAILPOINTS="store.unit.middle=kill:3"   # SIGKILL at the third hit
    HEADRACE_FAILPOINTS="store.unit.end=kill,store.append.written=kill:10"

Kill tests use them to stop a broker at exactly the moment that would hurt most.
"""

from __future__ import annotations

import os
import signal
import threading

from headrace.errors import SettingsError

__all__ = ["ENVIRONMENT_VARIABLE", "failpoint", "parse_failpoints"]

ENVIRONMENT_VARIABLE = "HEADRACE_FAILPOINTS"

_lock = threading.Lock()


def parse_failpoints(text: str) -> dict[str, int]:
    """Read the value of the environment variable: hits until the process dies, by name.

    Raises
    ------
    SettingsError
        When the text does not have the form ``name=kill[:n]``, with commas between.

    Examples
    --------
    >>> parse_failpoints("store.unit.middle=kill:3, store.unit.end=kill")
    {'store.unit.middle': 3, 'store.unit.end': 1}
    """
    armed: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        verb, _, hits = action.partition(":")
        if not name or verb != "kill" or not (hits or "1").isdigit() or hits == "0":
            raise SettingsError(
                f"{ENVIRONMENT_VARIABLE}: {item!r} is not of the form name=kill[:n]",
                hint="n counts from 1; without it the first hit kills",
            )
        armed[name] = int(hits or "1")
    return armed


_armed = parse_failpoints(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def failpoint(name: str) -> None:
    """Kill this process with SIGKILL if the environment asked for it at this hit."""
    if not _armed:
        return
    with _lock:
        if name not in _armed:
            return
        _armed[name] -= 1
        if _armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
