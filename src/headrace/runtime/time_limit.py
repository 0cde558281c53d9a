"""A time limit for the user's code in a task: what hangs is broken off, and named.

An alarm of the operating system raises in the task's own thread, which ends sleeps, waits for
locks and sockets, and endless loops alike.  What cannot be broken off this way, because it never
comes back from C, is left to the driver: it cancels the batch, and Spark ends the worker.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import BatchTimeoutError
from headrace.topology.operators.core import Operator
from headrace.user_lines import is_ours, line_of_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["patience", "time_limit"]

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
    """Give the seconds after which a driver no longer waits for an alarm to break a task off.

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
    """Give the operator whose code a frame belongs to, and its function, if it has one there."""
    while frame is not None:
        owner = frame.f_locals.get("self") if is_ours(frame.f_code.co_filename) else None
        for name in ("_operator", "operator"):
            found = getattr(owner, name, None)
            if isinstance(found, Operator):
                return found, getattr(owner, "_function", None)
        frame = frame.f_back
    return None, None
