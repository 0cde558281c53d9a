"""Every failpoint that a job on Spark passes is deadly once: driver, planner, worker and broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.faults.enumeration import EMBEDDED, ROCKETMQ, middle, still_to_survive
from tests.faults.enumeration_on_spark import SparkEnumeration, SparkHit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.slow]

#: A master and three executors, all of them processes of this machine.
_CLUSTER = {
    "master": "local-cluster[3,1,1024]",
    "spark_config": {"spark.executor.memory": "512m"},
}
#: Failpoints of the driver that are part of every test run: the death of a driver takes seconds.
SOME = "job.opened", "job.after_commit"
SOME_ON_ROCKETMQ = "job.opened", "journal.commit.appended", "journal.publish.sent"
#: The feeder's messages are appended in the run too.
FED = {"store.append.synced", "store.append.written"}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEnumeration]:
    with closing(SparkEnumeration(tmp_path_factory.mktemp("enumeration"))) as found:
        yield found


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEnumeration]:
    folder = tmp_path_factory.mktemp("enumeration")
    with closing(SparkEnumeration(folder, settings={"executor": "resident"})) as found:
        yield found


@pytest.fixture(scope="module")
def on_rocketmq(
    rocketmq: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkEnumeration]:
    folder = tmp_path_factory.mktemp("enumeration")
    with closing(SparkEnumeration(folder, rocketmq.namesrv)) as found:
        yield found


def each_name(enumeration: SparkEnumeration, *drivers: str) -> list[SparkHit]:
    """One hit of each failpoint of workers, planners and brokers, and of some of the driver."""
    names = sorted({hit.name for hit in enumeration.hits})
    hits = [middle(enumeration.hits, name) for name in names]
    return [hit for hit in hits if hit.kind != "driver" or hit.name in drivers]


def survive_all(enumeration: SparkEnumeration) -> None:
    """Die at every hit, one in a run."""
    hits = still_to_survive(enumeration.hits)
    began = time.monotonic()
    for hit in hits:
        assert enumeration.survives(hit) == [], f"FAULTS_FROM={hit}"
        print(f"{hit} survived, a {hit.kind}", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(hits)} deaths in {seconds:.0f} s: {dict(enumeration.deaths)}", flush=True)


def test_a_job_on_spark_passes_every_failpoint_of_the_protocol(embedded: SparkEnumeration) -> None:
    assert {hit.name for hit in embedded.hits} == EMBEDDED | FED


def test_a_death_at_each_failpoint_in_one_run_changes_nothing(embedded: SparkEnumeration) -> None:
    assert embedded.survives(*each_name(embedded, *SOME)) == []


def test_a_death_at_each_failpoint_of_resident_tasks_changes_nothing(
    resident: SparkEnumeration,
) -> None:
    assert {"resident.sent", "resident.before_report"} <= {hit.name for hit in resident.hits}
    # A gang that has just begun reads its state from the topic, and applies no changes: where all
    # of these die in one run, that is never reached.
    hits = [hit for hit in each_name(resident, *SOME) if not hit.name.startswith("state.apply")]
    assert resident.survives(*hits) == []


def test_half_a_commit_that_is_not_cut_off_is_found(embedded: SparkEnumeration) -> None:
    hit = middle(embedded.hits, "store.unit.middle")
    assert embedded.survives(hit) == []
    found = embedded.survives(hit, without="marks")
    assert any("counted differs" in problem for problem in found), found


@pytest.mark.rocketmq
def test_a_job_on_rocketmq_passes_every_failpoint_of_the_protocol(
    on_rocketmq: SparkEnumeration,
) -> None:
    assert {hit.name for hit in on_rocketmq.hits} == ROCKETMQ


@pytest.mark.rocketmq
def test_a_death_at_each_failpoint_in_one_run_on_rocketmq_changes_nothing(
    on_rocketmq: SparkEnumeration,
) -> None:
    assert on_rocketmq.survives(*each_name(on_rocketmq, *SOME_ON_ROCKETMQ)) == []


@pytest.mark.rocketmq
def test_without_a_look_at_the_tails_a_death_on_rocketmq_is_found(
    on_rocketmq: SparkEnumeration,
) -> None:
    hit = middle(on_rocketmq.hits, "journal.publish.done")
    found = on_rocketmq.survives(hit, without="publish_tail")
    assert any("counted differs" in problem for problem in found), found


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_changes_anything(embedded: SparkEnumeration) -> None:
    survive_all(embedded)


@pytest.mark.soak
@pytest.mark.rocketmq
@pytest.mark.timeout(0)
def test_no_death_on_rocketmq_changes_anything(on_rocketmq: SparkEnumeration) -> None:
    survive_all(on_rocketmq)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_of_resident_tasks_changes_anything(resident: SparkEnumeration) -> None:
    survive_all(resident)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_beside_executors_changes_anything(tmp_path: Path) -> None:
    with closing(SparkEnumeration(tmp_path, settings=_CLUSTER)) as enumeration:
        survive_all(enumeration)
