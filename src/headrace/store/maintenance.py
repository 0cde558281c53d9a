"""The maintenance thread: what a store does now and then, away from readers and the writer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.watched import OnFailure, watched_thread

__all__ = ["Maintenance"]

_logger = logging.getLogger(__name__)


class Maintenance:
    """Does its work again and again until it is closed; what fails is tried again later.

    Parameters
    ----------
    work
        What to do.
    interval
        Seconds between two times.
    on_failure
        Told of the error that has ended it.
    """

    def __init__(
        self, work: Callable[[], object], interval: float, *, name: str, on_failure: OnFailure
    ) -> None:
        self._work = work
        self._interval = interval
        self._wake = threading.Event()
        self._closing = False
        self._thread = watched_thread(self._run, name=name, on_failure=on_failure)
        self._thread.start()

    def wake(self) -> None:
        """Do the work soon."""
        self._wake.set()

    def close(self) -> None:
        """Finish what is being done, then stop."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            self._wake.clear()
            if self._closing:
                return
            try:
                self._work()
            except Exception:
                _logger.exception("maintenance failed, it is tried again")
