"""Machines that are cut off, one after the other, under a job that goes on: exact, and soon again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster.machines import Running
from tests.cluster.spark_cluster import MARKS, SparkCluster, Trial
from tests.faults.harness import at_most

#: How long a machine is cut off, s: a worker longer than its executors may be silent.
CUTS = {"worker": 25.0, "broker": 15.0, "driver": 15.0}
if os.environ.get("MINUTES"):
    CUTS = dict.fromkeys(CUTS, 60.0)
#: What it may cost beyond that, s.
LIMITS = {"worker": 30.0, "broker": 15.0, "driver": 15.0}

pytestmark = MARKS


@pytest.fixture(scope="module")
def running(machines: SparkCluster) -> Iterator[tuple[SparkCluster, Trial, Running]]:
    for name in ("worker-1", "worker-2", "worker-3"):
        machines.worker(name)
    trial = machines.trial("cut")
    job = machines.job("cut", "--partitions", 2)
    trial.await_results(job)
    yield machines, trial, job
    job.interrupt()


@pytest.mark.budget(150)
@pytest.mark.parametrize("which", LIMITS)
def test_a_job_goes_on_soon_after(running: tuple[SparkCluster, Trial, Running], which: str) -> None:
    machines, trial, job = running
    cut = CUTS[which]
    name = machines.busy_worker() if which == "worker" else which
    began = time.time()
    machines.network[name].cut()
    time.sleep(cut)
    machines.network[name].mend()
    trial.await_results(job, after=began + cut)
    gap = trial.longest_gap(began)
    print(f"{which}: {gap:.0f} s of which {cut:.0f} cut off, load {os.getloadavg()[0]:.0f}")
    assert gap < cut + at_most(LIMITS[which])
    if which == "worker":
        address = machines.network[name].address
        assert f"worker {address} has not been heard from for 2" in job.output()


def test_nothing_was_lost_or_counted_twice(
    running: tuple[SparkCluster, Trial, Running],
) -> None:
    _, trial, _ = running
    trial.finish()
