"""The maintenance thread: what a store does now and then, away from readers and the writer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

__all__ = ["Maintenance"]

_logger = logging.getLogger(__name__)


class Maintenance:
    """Does its work again and again until it is closed; what fails is tried again later."""

    def __init__(self, work: Callable[[], object], interval: timedelta) -> None:
        self._work = work
        self._interval = interval.total_seconds()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is being done, then stop."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                self._work()
            except Exception:
                _logger.exception("maintenance failed, it is tried again")
