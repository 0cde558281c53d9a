"""A time limit for the user's code in a task: what hangs is broken off, and named.

An alarm of the operating system raises in the task's own thread, which ends sleeps, waits for
locks and sockets, and endless loops alike.  What cannot be broken off this way, because it never
comes back from C, is left to the driver: it cancels the batch, and Spark ends the worker.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from headrace.backoff import Backoff
from headrace.errors import BatchTimeoutError, HeadraceError
from headrace.private import owners_folder
from headrace.topology.operators.core import Operator
from headrace.user_lines import is_ours, line_of_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


# What a job does after a failure: go back to its last commit and try again, or stop.
#
# Pure: the decision follows from the failure and from what was decided since the last commit, so
# that all of it is one table of tests.


_BACKOFF = Backoff(0.5, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """What a supervisor remembers of failures."""

    #: Last committed batch when the job failed last.
    batch: int = -1
    #: Failures since that batch was committed.
    failures: int = 0


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Roll back, wait, and try again."""

    standing: FailureRecord
    #: Seconds to wait.
    pause: float


def after_failure(
    retries: int, standing: FailureRecord, batch: int, error: HeadraceError
) -> TryAgain | None:
    """Decide what follows a failure; None to stop.

    Parameters
    ----------
    retries
        How often to try again without a commit in between.
    standing
        What is remembered of earlier failures.
    batch
        The last committed batch: a commit since the last failure means progress.
    error
        What happened.

    Examples
    --------
    >>> from headrace.errors import RequestTimeoutError, UserCodeError
    >>> first = after_failure(1, FailureRecord(), 3, RequestTimeoutError("slow"))
    >>> first
    TryAgain(standing=FailureRecord(batch=3, failures=1), pause=0.5)
    >>> after_failure(1, first.standing, 3, RequestTimeoutError("slow")) is None
    True
    >>> after_failure(1, first.standing, 4, RequestTimeoutError("slow")).pause
    0.5
    >>> after_failure(1, FailureRecord(), 3, UserCodeError("wrong")) is None
    True
    """
    progress = batch > standing.batch
    now = FailureRecord(batch=batch, failures=1 if progress else standing.failures + 1)
    if not error.retriable or now.failures > retries:
        return None
    return TryAgain(now, _BACKOFF.after(now.failures))


def given_up(retries: int, batch: int, error: HeadraceError) -> HeadraceError:
    """Return an error with a note that all tries are used up."""
    if error.retriable:
        error.message += (
            f"\n  the job stops: {retries} roll-backs to batch {batch} did not help"
            " (setting rollback_retries)"
        )
    return error


# Where tasks hang that no alarm can break off: each process leaves a trace of its stacks.
#
# Python's fault handler writes it from a thread that needs no lock of Python's, so also while
# compiled code holds that.  A driver on the same machine reads it before it has the process ended.

_FOLDER = "hangs"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.*)$')

#: The file of this process: it is kept open, as tasks are many and hang seldom.
_files: dict[tuple[int, Path], IO[str]] = {}


@contextmanager
def traced(root: Path, seconds: float) -> Iterator[None]:
    """Leave a trace of this process's stacks if something takes longer.

    Python writes those of the hundred newest threads: where there are more, the main one's lack.

    Parameters
    ----------
    root
        Folder of the job's local state.
    seconds
        How long it may take.
    """
    faulthandler.dump_traceback_later(seconds, file=_file(root))
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def read_traces(root: Path, since: float) -> list[str]:
    """Return the traces that processes have left since a time, in seconds since 1970."""
    traces = []
    for path in sorted((root / _FOLDER).glob("*.txt")):
        if path.stat().st_mtime >= since and (trace := path.read_text(errors="replace")):
            traces.append(trace)
        # A process that lives goes on with its file.
        path.write_text("") if Path("/proc", path.stem).exists() else path.unlink()
    return traces


def hanging_line(trace: str) -> str | None:
    r"""Return the line outside of this package at which a task hangs, by its process's trace.

    >>> frames = ("/app/orders.py", 31, "look_up"), (__file__, 1, "over"), ("/worker.py", 7, "main")
    >>> shown = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    >>> hanging_line("\n".join(["Timeout (0:00:05)!", "Thread 0x00007f:", *shown]))
    '/app/orders.py:31 in look_up'
    """
    # Tasks run in the main thread, which is the oldest and so the last.
    for thread in reversed(trace.split("\n\n")):
        frames = [found for line in thread.splitlines() if (found := _FRAME.match(line))]
        ours = [at for at, frame in enumerate(frames) if is_ours(frame["file"])]
        if ours and ours[0] > 0:
            at = frames[0]
            return f"{at['file']}:{at['line']} in {at['name']}"
    return None


def _file(root: Path) -> IO[str]:
    key = os.getpid(), root
    if key not in _files:
        folder = root / _FOLDER
        owners_folder(folder)
        _files[key] = (folder / f"{os.getpid()}.txt").open("a")
    return _files[key]


#: Code that catches everything is broken off again after so many seconds.
_AGAIN = 1.0
#: How much longer a driver waits: a share of the limit, at most so many seconds.
_GRACE, _MOST_GRACE = 0.25, 10.0


class _Overdue(BaseException):
    """Raised where the task is: code that handles every ``Exception`` does not stop it."""

    def __init__(self, frame: FrameType | None) -> None:
        super().__init__()
        operator, function = _operator_at(frame)
        self.operator = operator
        self.line = line_of_stack(frame, function)


def patience(limit: float) -> float:
    """Return the seconds after which a driver no longer waits for an alarm to break a task off.

    >>> patience(10.0), patience(120.0)
    (12.5, 130.0)
    """
    return limit + min(limit * _GRACE, _MOST_GRACE)


@contextmanager
def time_limit(seconds: float, batch: int, task: int) -> Iterator[None]:
    """Break off what takes longer.

    Outside of a process's main thread, and where an earlier alarm is set already, nothing happens.

    Parameters
    ----------
    seconds
        How long it may take.
    batch, task
        What runs, for the error.

    Raises
    ------
    BatchTimeoutError
        It took longer; the error names the operator and the user's own line.
    """
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield
        return
    began = time.monotonic()
    rung: list[_Overdue] = []

    def ring(_: int, frame: FrameType | None) -> NoReturn:
        rung.append(_Overdue(frame))
        raise rung[-1]

    before = signal.signal(signal.SIGALRM, ring)
    earlier = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            yield
        finally:
            # Before anything else: an alarm that comes later would hit whoever handles the first.
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Overdue as overdue:
        raise _error(overdue, seconds, batch, task) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if earlier[0]:
            rest = max(earlier[0] - (time.monotonic() - began), 0.001)
            signal.setitimer(signal.ITIMER_REAL, rest, earlier[1])
    if rung:
        # Code that caught it and went on has not done what it was meant to do.
        raise _error(rung[0], seconds, batch, task)


def _error(overdue: _Overdue, seconds: float, batch: int, task: int) -> BatchTimeoutError:
    operator = overdue.operator
    what = "a task" if operator is None else f"operator '{operator.name}'"
    made = "" if operator is None else f"the operator was made at {operator.origin}; "
    return BatchTimeoutError(
        f"{what} did not end batch {batch} within {seconds:g} s (partition {task})"
        + ("" if overdue.line is None else f"\n  it was at {overdue.line}"),
        hint=f"{made}give what it waits for a time limit of its own; where a batch may take so"
        " long, raise batch_timeout or lower max_records_per_batch",
        component="" if operator is None else operator.name,
        task=task,
        batch=batch,
        line=overdue.line,
    )


def _operator_at(frame: FrameType | None) -> tuple[Operator | None, Any]:
    """Return the operator whose code a frame belongs to, and its function, if it has one there."""
    while frame is not None:
        owner = frame.f_locals.get("self") if is_ours(frame.f_code.co_filename) else None
        for name in ("_operator", "operator"):
            found = getattr(owner, name, None)
            if isinstance(found, Operator):
                return found, getattr(owner, "_function", None)
        frame = frame.f_back
    return None, None
