"""Workers that join, leave in order and start anew; tasks that run twice; too little memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.audit import SLOW
from tests.cluster.machines import Machine, Running
from tests.cluster.spark_cluster import MARKS, SparkCluster
from tests.faults.harness import at_most, await_true

pytestmark = MARKS

#: Seconds without a result, at most.
LIMIT = 15.0
_PATIENCE = 90
_ON_DEMAND = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
}


@pytest.fixture(scope="module")
def workers(machines: SparkCluster) -> dict[str, Running]:
    return {"worker-1": machines.worker("worker-1")}


@pytest.fixture
def struck(machines: SparkCluster, workers: dict[str, Running]) -> Iterator[SparkCluster]:
    """Machines that a test makes slow or hungry, with all three workers."""
    for name in ("worker-1", "worker-2", "worker-3"):
        if name not in workers:
            workers[name] = machines.worker(name)
    yield machines
    for name in machines.network:
        for file in ("slow", "hungry"):
            (machines.network[name].folder / file).unlink(missing_ok=True)


@pytest.fixture
def start(machines: SparkCluster) -> Iterator[Callable[..., Running]]:
    """Starts jobs, which end with the test: they would hold cores that another waits for."""
    jobs: list[Running] = []

    def begin(name: str, **settings: str) -> Running:
        given = [word for pair in settings.items() for word in ("--spark-config", "=".join(pair))]
        jobs.append(machines.job(name, "--partitions", 2, *given))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.interrupt()


def ran(machine: Machine) -> float:
    """Return when a task ran there last; 0.0: none did."""
    file = machine.folder / "ran"
    return file.stat().st_mtime if file.exists() else 0.0


def await_work(machine: Machine) -> None:
    """Wait for a task on a machine."""
    began = time.time()
    await_true(f"work on {machine.name}", lambda: ran(machine) > began, patience=_PATIENCE)


def executors(worker: Running) -> int:
    """Count those that a worker runs."""
    return sum("java" in process.name() for process in worker.tree()) - 1


@pytest.mark.budget(150)
def test_workers_join_leave_in_order_and_start_anew(
    machines: SparkCluster, workers: dict[str, Running], start: Callable[..., Running]
) -> None:
    trial = machines.trial("grown")
    job = start("grown")
    trial.await_results(job)

    workers["worker-2"] = machines.worker("worker-2")
    await_work(machines.network["worker-2"])

    first, second = (machines.network[name] for name in ("worker-1", "worker-2"))
    began = time.time()
    workers["worker-1"].send(signal.SIGPWR)
    await_true("no executor", lambda: executors(workers["worker-1"]) == 0, patience=_PATIENCE)
    trial.await_results(job, after=time.time())
    job.await_output(f"worker {first.address} was decommissioned")
    workers["worker-1"].send(signal.SIGTERM)
    workers["worker-1"].end(_PATIENCE)
    workers["worker-1"] = machines.start_worker(first)
    await_work(first)
    assert trial.longest_gap(began) < at_most(LIMIT)

    began = time.time()
    workers["worker-2"].send(signal.SIGTERM)
    workers["worker-2"].end(_PATIENCE)
    workers["worker-2"] = machines.start_worker(second)
    await_work(second)
    assert trial.longest_gap(began) < at_most(LIMIT)

    trial.finish()


@pytest.mark.budget(120)
def test_two_attempts_of_one_task_count_once(
    struck: SparkCluster, workers: dict[str, Running], start: Callable[..., Running]
) -> None:
    """Cores are given back and asked for meanwhile."""
    trial = struck.trial("twice")
    twice = {"spark.speculation": "true", "spark.cores.max": "3"}
    job = start("twice", **twice, **_ON_DEMAND)
    trial.await_results(job)
    slow = max((struck.network[name] for name in workers), key=ran)
    (slow.folder / "slow").touch()
    await_true("a slow task", (slow.folder / "began").exists, patience=_PATIENCE)
    began = time.time()
    trial.await_results(job, after=began + 1)
    assert time.time() - began < SLOW - 10, "the slow attempt was waited for"
    trial.finish()
    assert "goes back to batch" not in job.output()


@pytest.mark.budget(120)
def test_a_worker_without_memory_is_named_and_its_tasks_run_elsewhere(
    struck: SparkCluster, workers: dict[str, Running], start: Callable[..., Running]
) -> None:
    trial = struck.trial("starved")
    limit = {"spark.executor.pyspark.memory": "4g"}
    job = start("starved", **limit)
    trial.await_results(job)
    starved = max((struck.network[name] for name in workers), key=ran)
    (starved.folder / "hungry").touch()
    job.await_output(f"on machine {starved.address} ran out of memory")
    (starved.folder / "hungry").unlink()
    trial.await_results(job, after=time.time())
    # So does Linux end it where the machine has no memory left.
    killed = max((struck.network[name] for name in workers), key=ran)
    told = f"a Python worker on machine {killed.address} ended in the middle of a task"
    ends = time.monotonic() + _PATIENCE
    while told not in job.output():
        assert time.monotonic() < ends, job.output()
        # What runs again at once is over before the driver looks.
        (killed.folder / "doomed").touch()
        time.sleep(3)
    (killed.folder / "doomed").unlink(missing_ok=True)
    trial.await_results(job, after=time.time())
    trial.finish()
    assert "goes back to batch" not in job.output()
