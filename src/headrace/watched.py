"""Threads and tasks that live as long as their owner, none of which ends without a word.

Where one ends with an error, however unlikely, its owner hears of it and ends what waits for it,
with that error: nobody waits for a thread that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)

OnFailure = Callable[[BaseException], None]
"""Told of the error that ended a thread or a task, in that thread or on its loop."""


def watched_thread(
    work: Callable[[], object], *, name: str, on_failure: OnFailure
) -> threading.Thread:
    """Make a daemon thread whose end with an error is reported; the caller starts it.

    Parameters
    ----------
    work
        What it does; if it returns, that end was wanted.
    on_failure
        Ends what waits for the thread.

    Examples
    --------
    >>> def work() -> None:
    ...     raise MemoryError
    >>> told: list[BaseException] = []
    >>> thread = watched_thread(work, name="example", on_failure=told.append)
    >>> thread.start(), thread.join(), told
    (None, None, [MemoryError()])
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            _tell(name, on_failure, error)

    return threading.Thread(target=run, name=name, daemon=True)


def watched_task(
    work: Coroutine[Any, Any, None],
    *,
    name: str,
    on_failure: OnFailure,
    loop: asyncio.AbstractEventLoop | None = None,
) -> asyncio.Task[None]:
    """Start a task whose end with an error is reported; the caller keeps it, and may cancel it.

    Parameters
    ----------
    work
        What it does; a return, or a cancellation, is an end that was wanted.
    on_failure
        Ends what waits for the task.
    loop
        Where it runs; the running loop by default.
    """
    task = (asyncio.get_running_loop() if loop is None else loop).create_task(work, name=name)
    task.add_done_callback(partial(_look_at_end, on_failure))
    return task


def end_process(error: BaseException) -> None:
    """Show an error and end this process: what to do where all of it waits for the thread."""
    try:
        traceback.print_exception(error)
        sys.stderr.flush()
    finally:
        os._exit(1)


def _look_at_end(on_failure: OnFailure, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _tell(task.get_name(), on_failure, error)


def _tell(name: str, on_failure: OnFailure, error: BaseException) -> None:
    on_failure(error)
    # Last, as it may take memory that is not there.
    logger.critical("%s has ended, and what waits for it ends too", name, exc_info=error)
