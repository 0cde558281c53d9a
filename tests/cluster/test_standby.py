"""Drivers that stand by on other machines, and cores: whose they are, and who waits for them."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.spark_cluster import MARKS, SparkCluster
from tests.faults.harness import at_most

pytestmark = MARKS

#: How soon after a lease there are results, s.
LIMIT = 20.0
#: How soon others have the cores of a driver whose machine is cut off, s.
GIVEN_UP = 20.0


@pytest.fixture(scope="module")
def two_cores(machines: SparkCluster) -> SparkCluster:
    for name in ("worker-1", "worker-2"):
        machines.worker(name)
    return machines


@pytest.mark.budget(180)
def test_cores_go_to_a_job_that_waits_when_a_driver_is_cut_off(two_cores: SparkCluster) -> None:
    """The one that comes back waits in turn, until there are more."""
    for setting in ("keepalive_time=8", "keepalive_intvl=3", "keepalive_probes=3", "retries2=5"):
        two_cores.network["master"].run("sysctl", "-w", f"net.ipv4.tcp_{setting}")
    trials = {name: two_cores.trial(name) for name in ("early", "late")}
    early = two_cores.job("early", "--partitions", 2)
    trials["early"].await_results(early, count=1)
    # The cores are taken: the other one starts while the first shows that it works.
    late = two_cores.job("late", "--partitions", 2, machine="driver-2")
    trials["early"].await_results(early)
    told = f"job late waits for cores: {two_cores.master} has 2, of which 0 are free; early has 2 ("
    # A page that does not answer soon is asked again.
    late.await_output(told)
    began = time.time()
    two_cores.network["driver"].cut()
    trials["late"].await_results(late)
    assert trials["late"].times()[0] < began + GIVEN_UP + at_most(LIMIT)
    two_cores.network["driver"].mend()
    early.await_output("waits for cores")
    mended = time.time()
    two_cores.worker("worker-3")
    trials["early"].await_results(early, after=mended)
    for trial in trials.values():
        trial.end_feeding()
    for trial in trials.values():
        trial.finish()
    for job in (early, late):
        job.send(signal.SIGINT)
    for job in (early, late):
        job.end(60)


@pytest.mark.budget(200)
def test_a_driver_on_another_machine_takes_over(two_cores: SparkCluster) -> None:
    """All cores are the job's: what stands by holds none of them."""
    trial = two_cores.trial("standing")
    first = two_cores.job("standing", "--partitions", 2, "--standby")
    trial.await_results(first, count=1)
    second = two_cores.job("standing", "--partitions", 2, "--standby", machine="driver-2")
    trial.await_results(first)
    second.await_output("Standing by")
    began = time.time()
    two_cores.network["driver"].stop()
    trial.await_results(second, after=began + 1)
    assert trial.longest_gap(began) < two_cores.brokers.lease + at_most(LIMIT)
    trial.finish()
