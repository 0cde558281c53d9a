"""Failpoints: named places where a test can make the process die or stand still.

A failpoint does nothing unless the environment names it when the process starts::

    HEADRACE_FAILPOINTS="store.unit.middle=kill:3"   # SIGKILL at the third hit
    HEADRACE_FAILPOINTS="store.unit.end=kill,store.append.written=kill:10"
    HEADRACE_FAILPOINTS="job.before_commit=stop:2"   # SIGSTOP at the second hit
    HEADRACE_FAILPOINTS="folder:/tmp/points"         # counted, and armed, by many processes

Kill tests use them to stop a process at exactly the moment that would hurt most.  A process
that was stopped goes on with SIGCONT, as one does that a machine has put to sleep.

Processes that share a folder count every hit there (:func:`read_hits`), and look in it for what
is armed (:func:`arm_in_folder`): so a run can be asked for all the places that it passes, and
any one of them, in whichever process it is, can be chosen later, while the job runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import SettingsError

ENVIRONMENT_VARIABLE = "HEADRACE_FAILPOINTS"

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_FOLDER = "folder:"
_ARMED, _HITS = "armed", ".hits"

#: What a process is, by a word of its command line.
_KINDS = {
    "python_streaming_source_runner": "planner",
    "pyspark": "worker",
    "headrace/broker": "broker",
}
#: Every hit has a line of this length, so that its place in the file is its number.
_LINE = 32

_lock = threading.Lock()


@dataclass(slots=True)
class Failpoint:
    """What happens at one failpoint, and when."""

    #: "kill" or "stop".
    action: str
    #: Hits that are left until then.
    hits: int


class _Armed(Protocol):
    def hit(self, name: str) -> str | None:
        """Count a hit, and return what is to happen if it is due."""


class _Here:
    """Failpoints of one process, each with its count."""

    def __init__(self, armed: dict[str, Failpoint]) -> None:
        self._armed = armed

    def hit(self, name: str) -> str | None:
        with _lock:
            armed = self._armed.get(name)
            if armed is None:
                return None
            armed.hits -= 1
            return armed.action if armed.hits == 0 else None


class _Together:
    """Failpoints of all processes that share a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hit(self, name: str) -> str | None:
        number = self._count(name)
        armed = _armed_in(self._folder).get(name)
        return armed.action if armed is not None and armed.hits == number else None

    def _count(self, name: str) -> int:
        line = f"{_kind()} {os.getpid()}".ljust(_LINE - 1) + "\n"
        file = os.open(self._folder / f"{name}{_HITS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line.encode())
            # The system appends and moves on in one step: no other process is counted in between.
            return os.lseek(file, 0, os.SEEK_CUR) // _LINE
        finally:
            os.close(file)


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


def read_hits(folder: Path) -> dict[str, list[str]]:
    """Return the kinds of process that hit each failpoint, in order.

    Driver, planner, worker, broker.

    Examples
    --------
    >>> read_hits(Path("no such folder"))
    {}
    """
    return {
        path.name.removesuffix(_HITS): [line.split()[0] for line in path.read_text().splitlines()]
        for path in sorted(folder.glob(f"*{_HITS}"))
    }


def arm_in_folder(folder: Path, text: str) -> None:
    """Arm failpoints, and no others, for all processes that share a folder.

    The n of ``name=kill:n`` counts the hits of all of them, since the folder was made.
    """
    parse_failpoints(text)
    draft = folder / f"{_ARMED}.draft"
    draft.write_text(text)
    # At once, so that nobody reads half of it.
    draft.replace(folder / _ARMED)


def arm(text: str) -> None:
    """Arm failpoints of this process, and no others, as if the environment had named them."""
    global _armed
    _armed = _parsed(text)


def failpoint(name: str) -> None:
    """Kill or stop this process if the environment asked for it at this hit."""
    if _armed is None:
        return
    action = _armed.hit(name)
    if action is not None:
        # To this thread: one sent to the process may be taken by another thread, and this one
        # would run on until that one is scheduled.
        signal.pthread_kill(threading.get_ident(), _SIGNALS[action])


def _parsed(text: str) -> _Armed | None:
    if text.startswith(_FOLDER):
        return _Together(Path(text.removeprefix(_FOLDER)))
    armed = parse_failpoints(text)
    return _Here(armed) if armed else None


def _armed_in(folder: Path) -> dict[str, Failpoint]:
    try:
        return parse_failpoints((folder / _ARMED).read_text())
    except FileNotFoundError:
        return {}


def _kind() -> str:
    command = " ".join(sys.argv)
    return next((kind for word, kind in _KINDS.items() if word in command), "driver")


_armed = _parsed(os.environ.get(ENVIRONMENT_VARIABLE, ""))
