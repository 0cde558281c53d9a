"""What tasks have moved, told by the engine every now and then."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from headrace.connect.data.orders import Measured
from headrace.errors import HeadraceError
from headrace.watched import end_process, watched_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.connect.data.orders import EngineEvent, Unit
    from headrace.connect.worker.launching import Figures

__all__ = ["Measurable", "Measuring"]

logger = logging.getLogger(__name__)

#: A task is looked at so soon after a commit, and so seldom without one, s: a lag grows by itself.
_EVERY, _SELDOM = 1.0, 5.0


class Measurable(Protocol):
    """What has figures: the job of a task."""

    @property
    def batch(self) -> int:
        """The last committed batch."""

    def figures(self) -> Figures:
        """Tell what it has moved."""


class Measuring:
    """Tells what tasks have moved, each time that it has changed.

    Parameters
    ----------
    jobs
        Gives the jobs that run.
    tell
        Takes what the supervisor is to hear.
    """

    def __init__(
        self,
        jobs: Callable[[], Mapping[Unit, Measurable]],
        tell: Callable[[EngineEvent], None],
    ) -> None:
        self._jobs = jobs
        self._tell = tell
        self._looked: dict[Unit, tuple[int, float]] = {}
        self._told: dict[Unit, Figures] = {}

    def start(self) -> None:
        """Look and tell for as long as the process lives."""
        watched_thread(self._run, name="engine-figures", on_failure=end_process).start()

    def look(self, now: float) -> None:
        """Tell what has changed since the last time."""
        jobs = self._jobs()
        for unit in self._looked.keys() - jobs.keys():
            del self._looked[unit]
            self._told.pop(unit, None)
        for unit, job in jobs.items():
            batch, looked = self._looked.get(unit, (-1, 0.0))
            if job.batch != batch or now - looked >= _SELDOM:
                self._looked[unit] = job.batch, now
                self._measure(unit, job)

    def _measure(self, unit: Unit, job: Measurable) -> None:
        try:
            figures = job.figures()
        except HeadraceError as error:
            # It starts, it ends, or its broker is away: the next look tells.
            logger.debug("no figures of %s-%d: %s", unit.connector, unit.task, error)
            return
        if figures != self._told.get(unit):
            self._told[unit] = figures
            self._tell(Measured(unit, figures))

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY)
            try:
                self.look(time.monotonic())
            except Exception:
                logger.exception("the figures of tasks could not be told; they are again soon")
