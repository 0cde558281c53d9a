"""Every failpoint of the protocol is deadly once, in drivers without Spark and in the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.clusters import Cluster
from tests.faults.cluster_job import ClusterNames
from tests.faults.enumeration import (
    DRIVERS,
    EMBEDDED,
    ROCKETMQ,
    Enumeration,
    middle,
    still_to_survive,
)
from tests.faults.own_cluster import running_cluster

#: Where a process dies in `make test`: in a task, around the commit, in the broker's log.
_SAMPLE = {"task.staged", "job.before_commit", "job.after_commit", "store.unit.middle"}
_SAMPLE_ON_ROCKETMQ = ROCKETMQ - DRIVERS | {"job.opened", "task.staged"}
#: Where it matters on which broker something lies.
_SAMPLE_ON_TWO = {
    "journal.commit.appended",
    *(f"journal.publish.{part}" for part in ("begin", "sent", "done")),
}


@pytest.fixture(scope="module")
def enumeration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enumeration]:
    with closing(Enumeration(tmp_path_factory.mktemp("enumeration"))) as found:
        yield found


@pytest.fixture(scope="module")
def on_rocketmq(
    rocketmq: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Enumeration]:
    folder = tmp_path_factory.mktemp("enumeration")
    with closing(Enumeration(folder, rocketmq.namesrv)) as found:
        yield found


#: Two brokers, and three where that may make a difference: places of one that is gone.
TWO = pytest.mark.parametrize("on_cluster", [2], indirect=True)
TWO_OR_THREE = pytest.mark.parametrize(
    "on_cluster", [2, pytest.param(3, marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture(scope="module")
def on_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Enumeration]:
    folder = tmp_path_factory.mktemp("enumeration")
    with (
        running_cluster(folder / "brokers", request.param) as address,
        closing(Enumeration(folder, address, ClusterNames)) as found,
    ):
        yield found


def survive_all(enumeration: Enumeration) -> None:
    """Die at every hit."""
    hits = still_to_survive(enumeration.hits)
    for hit in hits:
        assert enumeration.survives(hit) == [], f"FAULTS_FROM={hit}"
    print(f"{len(hits)} deaths, each at another place, changed nothing", flush=True)


def test_a_run_passes_every_failpoint_of_the_protocol(enumeration: Enumeration) -> None:
    assert {hit.name for hit in enumeration.hits} == EMBEDDED


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _SAMPLE else pytest.mark.slow)
        for name in sorted(EMBEDDED)
    ],
)
def test_a_death_in_the_middle_of_a_run_changes_nothing(
    enumeration: Enumeration, name: str
) -> None:
    assert enumeration.survives(middle(enumeration.hits, name)) == []


@pytest.mark.slow
@pytest.mark.rocketmq
def test_a_run_on_rocketmq_passes_every_failpoint_of_the_protocol(on_rocketmq: Enumeration) -> None:
    assert {hit.name for hit in on_rocketmq.hits} == ROCKETMQ


@pytest.mark.slow
@pytest.mark.rocketmq
@pytest.mark.parametrize("name", sorted(_SAMPLE_ON_ROCKETMQ))
def test_a_death_on_rocketmq_changes_nothing(on_rocketmq: Enumeration, name: str) -> None:
    assert on_rocketmq.survives(middle(on_rocketmq.hits, name)) == []


@pytest.mark.slow
@pytest.mark.rocketmq
def test_without_a_look_at_the_tails_a_death_doubles_results(on_rocketmq: Enumeration) -> None:
    hit = middle(on_rocketmq.hits, "journal.publish.done")
    found = on_rocketmq.survives(hit, without="publish_tail")
    assert any("repeated" in problem for problem in found), found
    assert any("what is published differs" in problem for problem in found), found


@TWO_OR_THREE
def test_a_place_without_its_broker_is_found(on_cluster: Enumeration) -> None:
    hit = middle(on_cluster.hits, "journal.publish.sent")
    found = on_cluster.survives(hit, forgets_brokers=True)
    assert found == ["what is published differs from what a run without faults publishes"]


@TWO
@pytest.mark.slow
def test_a_run_on_several_brokers_passes_every_failpoint_of_the_protocol(
    on_cluster: Enumeration,
) -> None:
    assert {hit.name for hit in on_cluster.hits} == ROCKETMQ


@TWO
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_SAMPLE_ON_TWO))
def test_a_death_on_several_brokers_changes_nothing(on_cluster: Enumeration, name: str) -> None:
    assert on_cluster.survives(middle(on_cluster.hits, name)) == []


@TWO_OR_THREE
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_on_several_brokers_changes_anything(on_cluster: Enumeration) -> None:
    survive_all(on_cluster)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_changes_anything(enumeration: Enumeration) -> None:
    survive_all(enumeration)


@pytest.mark.soak
@pytest.mark.rocketmq
@pytest.mark.timeout(0)
def test_no_death_on_rocketmq_changes_anything(on_rocketmq: Enumeration) -> None:
    survive_all(on_rocketmq)
