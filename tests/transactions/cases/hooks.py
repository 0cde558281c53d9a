"""Faults inside the callbacks of a workload, and the trace of every callback.

A folder, named by the environment, says which fault is armed and takes the traces; all processes
of a job share it, and what was done once is counted over all of them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.transactions import COMMIT_FAIL
from tests.transactions.automaton import Call

__all__ = [
    "BROKEN",
    "FLAW",
    "VARIABLE",
    "Fault",
    "FaultError",
    "arm",
    "has_flaw",
    "here",
    "release",
    "times_hit",
    "traced",
    "traces",
]

VARIABLE = "HEADRACE_CASE_FOLDER"
FLAW = "HEADRACE_CASE_FLAW"
BROKEN = "HEADRACE_CASE_BROKEN"
"""Names a way in which the engine is wrong: see :mod:`tests.transactions.cases.broken`."""

_CALLBACKS = (
    "prepare",
    "init_state",
    "roll_back",
    "next_tuple",
    "execute",
    "finish_batch",
    "commit",
    "ack_commit",
    "cleanup",
)
_POLL = 0.02
_numbers = itertools.count()


class FaultError(Exception):
    """What an armed fault raises."""


@dataclass(frozen=True)
class Fault:
    """What happens at one place of a workload's callbacks."""

    #: ``component.callback``, or some of them with spaces between.
    place: str
    #: The id of the tuple, or the batch, for which it happens; None for the first that comes.
    at: int | None
    #: One for each time it happens; the last one goes on for ever where ``always`` is set.
    #: "raise", "commit_fail", "kill", "wait", "hold" (waits, then raises), "sleep:SECONDS",
    #: "pass" (nothing happens this time).
    actions: tuple[str, ...]
    always: bool = False


def has_flaw(name: str) -> bool:
    """Tell whether the workload's own code is to have a flaw."""
    return os.environ.get(FLAW) == name


def arm(folder: Path, fault: Fault | None) -> None:
    """Choose the fault of all processes that share a folder."""
    path = folder / "fault.json"
    if fault is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(asdict(fault)))


def times_hit(folder: Path) -> int:
    """Tell how often the armed fault happened."""
    path = folder / "hits"
    return path.stat().st_size if path.exists() else 0


def release(folder: Path) -> None:
    """Let those go on that wait."""
    (folder / "go").touch()


def here(place: str, at: int, state: Any = None) -> Any:
    """Let the armed fault happen if this is its place; else give the state as it is."""
    folder = _folder()
    if folder is None:
        return state
    fault = _armed(folder)
    if fault is None or place not in fault.place.split() or fault.at not in (None, at):
        return state
    action = _next_action(folder, fault)
    return state if action in (None, "pass") else _do(folder, action, f"{place} of {at}")


def _folder() -> Path | None:
    """Give the folder of the present case: on Spark, the environment names a link to it."""
    named = os.environ.get(VARIABLE)
    return None if named is None else Path(named).resolve()


def _armed(folder: Path) -> Fault | None:
    try:
        fields = json.loads((folder / "fault.json").read_text())
    except FileNotFoundError:
        return None
    return Fault(**{**fields, "actions": tuple(fields["actions"])})


def _next_action(folder: Path, fault: Fault) -> str | None:
    # A byte per hit, appended in one step: processes never count the same one.
    file = os.open(folder / "hits", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, b".")
        number = os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)
    if number <= len(fault.actions):
        return fault.actions[number - 1]
    return fault.actions[-1] if fault.always else None


def _do(folder: Path, action: str, what: str) -> Any:
    kind, _, seconds = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise FaultError(f"asked for at {what}")
    if kind == "sleep":
        time.sleep(float(seconds))
    if kind in ("wait", "hold"):
        # Nor does one wait whose driver is dead and whose case is over.
        while folder.exists() and not (folder / "go").exists():
            time.sleep(_POLL)
    if kind == "hold":
        raise FaultError(f"held back at {what}")
    return COMMIT_FAIL if kind == "commit_fail" else None


def traced(component: type) -> type:
    """Let a component write down each of its callbacks."""
    for name in _CALLBACKS:
        if callable(getattr(component, name, None)):
            setattr(component, name, _noting(name, getattr(component, name)))
    return component


def _noting(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def noted(self: Any, *given: Any) -> Any:
        if name == "prepare":
            self.__dict__["_task"] = (next(_numbers), given[0].component, given[0].task)
            self.__dict__["_folder"] = _folder()
        # What one callback calls of the others is its own affair.
        if self.__dict__.get("_inside"):
            return callback(self, *given)
        _note(self, name, given)
        self.__dict__["_inside"] = True
        try:
            return callback(self, *given)
        finally:
            self.__dict__["_inside"] = False

    return noted


def _note(component: Any, name: str, given: tuple[Any, ...]) -> None:
    # A worker may close it when the next case has begun.
    folder = component.__dict__["_folder"]
    if folder is None or not folder.exists() or name in ("execute", "next_tuple"):
        return
    number, *where = component.__dict__["_task"]
    batch = getattr(given[0], "batch_id", None) if given else None
    line = json.dumps(
        {
            "name": name,
            "batch": batch,
            "task": where,
            "instance": f"{os.getpid()}-{number}",
            "time": time.time_ns(),
        }
    )
    file = os.open(folder / "trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


def traces(folder: Path) -> Iterator[Call]:
    """Give the callbacks of all tasks, in the order in which they began."""
    path = folder / "trace"
    for line in path.read_text().splitlines() if path.exists() else ():
        told = json.loads(line)
        yield Call(**{**told, "task": tuple(told["task"])})
