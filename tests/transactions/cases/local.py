"""A driver of a workload without Spark: ``python -m tests.transactions.cases.local BATCHES NAME=VALUE...``.

It plans, runs, commits and goes back after failures as the driver on Spark does, with the same
decisions; the rest is :class:`~tests.faults.local_driver.LocalDriver`.  It ends with 0 when it has
caught up or batch number BATCHES is committed (0: no bound), with 3 when another driver took over,
and with 1 when it gives up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import FencedError, HeadraceError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.time_limit import FailureRecord, after_failure
from headrace.settings import JobSettings
from headrace.spark.transactions import settings_of
from headrace.transactions import TransactionTopology
from tests.faults.local_driver import LocalDriver

__all__ = ["FENCED", "status_of"]

FENCED = 3

#: A case takes long enough without the pauses of a real job.
_PAUSE = 0.05
_PASSED_ON = (
    "lease_expiry",
    "partitions",
    "guarantee",
    "batch_timeout",
    "request_timeout",
    "retry_timeout",
)


class LocalJob:
    """Runs batches until it has caught up, and goes back to the last commit after failures."""

    def __init__(self, topology: TransactionTopology, settings: JobSettings, last: int) -> None:
        (self._topology,) = topology.groups
        self._settings = settings_of(topology, settings)
        self._last = last
        self._life = 0
        self._name = str(DriverName.here())

    def run(self) -> None:
        """Run to the end.

        Raises
        ------
        HeadraceError
            What no further try may mend.
        """
        standing = FailureRecord()
        while True:
            driver = self._open()
            try:
                self._batches(driver)
                return
            except HeadraceError as error:
                retry = after_failure(
                    self._settings.rollback_retries, standing, driver.record.batch, error
                )
                if retry is None:
                    raise
                standing = retry.standing
                print(f"back to batch {driver.record.batch} after: {error}", flush=True)
                # On Spark, too, the workers and what they keep outlive a failure of a batch.
                driver.abandon()
                time.sleep(_PAUSE)

    def _open(self) -> LocalDriver:
        settings = self._settings
        assert settings.namesrv is not None
        driver = LocalDriver(
            settings.namesrv,
            settings.data_dir,
            settings.max_records_per_batch,
            job=self._topology,
            life=self._life,
            name=self._name,
            **{name: getattr(settings, name) for name in _PASSED_ON},
        )
        self._life = self._life or driver.epoch
        return driver

    def _batches(self, driver: LocalDriver) -> None:
        while self._last == 0 or driver.record.batch < self._last:
            planned = driver.plan()
            if planned is None:
                return
            driver.commit(driver.process(planned))
            print(f"epoch {driver.epoch} committed batch {driver.record.batch}", flush=True)


def status_of(run: Callable[[], None]) -> int:
    """Run a driver to its end, say what ended it, and give the exit status for that."""
    try:
        run()
    except FencedError as error:
        print(error, flush=True)
        return FENCED
    except HeadraceError as error:
        print(error, flush=True)
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Run the workload that the environment names."""
    from tests.transactions.cases.program import topology

    last, *pairs = arguments
    given: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs)
    return status_of(LocalJob(topology.build(), JobSettings(**given), int(last)).run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
