"""Workers that have nothing but Java and Spark."""

from __future__ import annotations

import pytest

from tests.cluster.machines import HOME
from tests.cluster.spark_cluster import MARKS, SparkCluster, Trial

pytestmark = MARKS


@pytest.fixture(scope="module")
def bare(machines: SparkCluster) -> tuple[SparkCluster, Trial]:
    machines.worker("worker-1", bare=True, HEADRACE_WORKER_STATE_DIR=str(HOME / "disk"))
    machines.worker("worker-2", bare=True)
    trial = machines.trial("shipped")
    return machines, trial


@pytest.mark.budget(60)
def test_a_machine_without_python_is_named_at_once(bare: tuple[SparkCluster, Trial]) -> None:
    machines, _ = bare
    job = machines.job("shipped", "--partitions", 2)
    # What is held stands below: it ends by itself, and tries nothing again.
    assert job.end(240) == 1
    names = [machines.network[name].address for name in ("worker-1", "worker-2")]
    (line,) = [line for line in job.output().splitlines() if line.startswith("error:")]
    assert any(f"machine {name} has no Python at " in line for name in names), job.output()
    assert "rollback" not in job.output()
    assert "goes back" not in job.output()


@pytest.mark.budget(180)
def test_an_archive_is_all_that_they_need(bare: tuple[SparkCluster, Trial]) -> None:
    machines, trial = bare
    told = machines.headrace("pack", "shipped.py", "--output", "env.tar.gz", limit=240)
    assert "env.tar.gz: " in told
    job = machines.job("shipped", "--partitions", 2, "--archive", "env.tar.gz")
    trial.await_results(job)
    trial.finish()
    # Each machine keeps its copies of the state where it says, or where its executor works.
    assert list(machines.network["worker-1"].folder.glob("disk/shipped/*/*"))
    assert list(machines.network["worker-2"].folder.glob("work/*/*/.headrace/state/shipped/*/*"))
