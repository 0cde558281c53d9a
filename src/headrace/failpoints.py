"""Failpoints: named places where a test can make the process die or stand still.

A failpoint does nothing unless the environment names it when the process starts::

    HEADRACE_FAILPOINTS="store.unit.middle=kill:3"   # SIGKILL at the third hit
    HEADRACE_FAILPOINTS="store.unit.end=kill,store.append.written=kill:10"
    HEADRACE_FAILPOINTS="job.before_commit=stop:2"   # SIGSTOP at the second hit

Kill tests use them to stop a process at exactly the moment that would hurt most.  A process
that was stopped goes on with SIGCONT, as one does that a machine has put to sleep.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

from headrace.errors import SettingsError

__all__ = ["ENVIRONMENT_VARIABLE", "Failpoint", "failpoint", "parse_failpoints"]

ENVIRONMENT_VARIABLE = "HEADRACE_FAILPOINTS"

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_lock = threading.Lock()


@dataclass(slots=True)
class Failpoint:
    """What happens at one failpoint, and when."""

    #: "kill" or "stop".
    action: str
    #: Hits that are left until then.
    hits: int


def parse_failpoints(text: str) -> dict[str, Failpoint]:
    """Read the value of the environment variable: what happens, by the name of the failpoint.

    Raises
    ------
    SettingsError
        When the text does not have the form ``name=kill[:n]`` or ``name=stop[:n]``, with commas
        between.

    Examples
    --------
    >>> parse_failpoints("store.unit.middle=kill:3, job.before_commit=stop")
    {'store.unit.middle': Failpoint(action='kill', hits=3),
     'job.before_commit': Failpoint(action='stop', hits=1)}
    """
    armed: dict[str, Failpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition("=")
        action, _, hits = rest.partition(":")
        if not name or action not in _SIGNALS or not (hits or "1").isdigit() or hits == "0":
            raise SettingsError(
                f"{ENVIRONMENT_VARIABLE}: {item!r} is not of the form name=kill[:n] or name=stop[:n]",
                hint="n counts from 1; without it the first hit counts",
            )
        armed[name] = Failpoint(action, int(hits or "1"))
    return armed


_armed = parse_failpoints(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def failpoint(name: str) -> None:
    """Kill or stop this process if the environment asked for it at this hit."""
    if not _armed:
        return
    with _lock:
        armed = _armed.get(name)
        if armed is None:
            return
        armed.hits -= 1
        due = armed.hits == 0
    if due:
        # To this thread: one sent to the process may be taken by another thread, and this one
        # would run on until that one is scheduled.
        signal.pthread_kill(threading.get_ident(), _SIGNALS[armed.action])
