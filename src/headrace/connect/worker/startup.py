"""What a worker does before it can work: told in its log, and by REST from the first second."""

from __future__ import annotations

import logging
import time

from headrace.connect.worker.answers import Health

__all__ = ["Startup"]

logger = logging.getLogger(__name__)


class Startup:
    """The steps of a worker's start.

    Parameters
    ----------
    worker
        Name of the worker.

    Examples
    --------
    >>> startup = Startup("w1")
    >>> startup.step("starts Spark")
    >>> startup.health().message
    'Worker is still starting up. Worker w1 starts Spark, for 0 s by now.'
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._step = "begins"
        self._since = time.monotonic()
        self._over = False

    def step(self, what: str) -> None:
        """Say what it does from now on, such as ``starts Spark``."""
        self._step, self._since = what, time.monotonic()
        logger.info("worker %s %s", self._worker, what)

    def end(self) -> None:
        """Say that the worker ends: nothing that it needs is there any more."""
        self._over = True

    def health(self) -> Health:
        """Say how far it is."""
        if self._over:
            return Health("stopping", f"worker {self._worker} is about to end")
        seconds = time.monotonic() - self._since
        doing = f"Worker {self._worker} {self._step}, for {seconds:.0f} s by now."
        return Health("starting", f"Worker is still starting up. {doing}")
