"""Executors come and go while a job runs on a cluster: no result is lost or doubled."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.faults.broker import running_broker
from tests.faults.feeder import Feeder
from tests.faults.harness import Driver, await_true, kill_test
from tests.faults.verification import problems, read_results
from tests.run.forking import descendants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: A master, two workers and their executors, all of them processes of this machine.
CLUSTER = {
    "--master": "local-cluster[2,1,512]",
    "--max-records-per-batch": "240",
    "--spark-config": "spark.executor.memory=512m",
}


def executors(driver: Driver) -> set[int]:
    """Give the ids of the processes that run tasks for a driver."""
    return {process.pid for process in driver.executors()}


@pytest.mark.timeout(600)
def test_executors_leave_and_join_a_running_job(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        driver = run.start_driver(options=CLUSTER)
        run.await_batches(1)
        await_true("two executors", lambda: len(executors(driver)) == 2)
        seen = executors(driver)
        # The second one to leave is the other that was there first: then only new ones are left.
        for oldest in sorted(executors(driver)):
            psutil.Process(oldest).kill()
            await_true("another executor", lambda: len(executors(driver) - seen) == 1)
            (joined,) = executors(driver) - seen
            seen.add(joined)
            await_true("tasks of it", partial(workers, joined))
            run.await_batches(1)
        feeder.stop()
        run.await_caught_up()
        assert len(seen) == 4
        assert len(run.drivers) == 1, "the job goes on by itself"
        assert driver.stop() == 0, driver.said
        assert problems(read_results(broker.address), feeder.confirmed) == []


def workers(pid: int) -> bool:
    """Tell whether an executor has started Python processes for its tasks."""
    with contextlib.suppress(psutil.Error):
        return bool(descendants(pid))
    return False
