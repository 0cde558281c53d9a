"""A job that stands by, without Spark."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace import Topology
from headrace.errors import HeadraceError
from headrace.runtime.job_plan import JobConnection
from headrace.settings import JobSettings
from headrace.spark.cluster import Prepared, make_connection, prepare_topics
from headrace.spark.standby import Standby
from headrace.spark.statistics import pickle_plan
from tests.faults.local_driver import PARTITIONS
from tests.faults.word_pipeline import topology

DOUBT = 1.0


class Waiting:
    """A job that stands by in a thread."""

    def __init__(
        self,
        namesrv: str,
        folder: Path,
        *,
        alone: bool,
        error: HeadraceError | None = None,
        journal: bool = False,
        jobs: Sequence[Topology] = (topology,),
        **more: Any,
    ) -> None:
        self._fault = error
        self.error: HeadraceError | None = None
        settings = JobSettings(namesrv=namesrv, data_dir=folder, partitions=PARTITIONS, **more)
        self.prepared = [_prepared(job, settings, journal=journal) for job in jobs]
        self.go, self.alone, self.ready = threading.Event(), threading.Event(), threading.Event()
        if alone:
            self.alone.set()
        #: Whether there was a driver before it; None while it waits.
        self.answer: bool | None = None
        #: Batches of nothing, by job.
        self.warmed: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def prepare(self) -> list[Prepared]:
        return self.prepared

    def _wait(self) -> None:
        standby = Standby(self, warm=self._warm, doubt=DOUBT)
        try:
            self.answer = standby.wait(self.go, alone=self.alone, ready=self.ready.set)
        except HeadraceError as error:
            self.error = error

    def _warm(self, prepared: Prepared, batches: int, over: threading.Event) -> None:
        if self._fault is not None:
            raise self._fault
        self.warmed[prepared.connection.plan.job] += batches

    def ends(self, patience: float = 20.0) -> bool:
        self._thread.join(patience)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.go.set()
        self._thread.join()
        for prepared in self.prepared:
            prepared.connection.close()


def _prepared(job: Topology, settings: JobSettings, *, journal: bool) -> Prepared:
    assert settings.namesrv is not None
    connection = make_connection(job, settings, settings.namesrv)
    if journal:
        connection = JobConnection(replace(connection.plan, embedded=False))
    return Prepared(connection, pickle_plan(connection.plan), prepare_topics(connection))


@contextmanager
def waiting(namesrv: str, folder: Path, *, alone: bool, **more: Any) -> Iterator[Waiting]:
    """Let a job stand by for the time of a test; ``more`` as of :class:`Waiting`."""
    standby = Waiting(namesrv, folder, alone=alone, **more)
    try:
        yield standby
    finally:
        standby.close()
