"""Every failpoint of the protocol is deadly once, in drivers without Spark and in the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.faults.enumeration import DRIVERS, EMBEDDED, ROCKETMQ, Enumeration, Hit


@pytest.fixture(scope="module")
def enumeration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enumeration]:
    found = Enumeration(tmp_path_factory.mktemp("enumeration"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def on_rocketmq(
    rocketmq: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Enumeration]:
    found = Enumeration(tmp_path_factory.mktemp("enumeration"), rocketmq.namesrv)
    try:
        yield found
    finally:
        found.close()


def middle(enumeration: Enumeration, name: str) -> Hit:
    """The hit of a failpoint in the middle of a run."""
    hits = [hit for hit in enumeration.hits if hit.name == name]
    return hits[len(hits) // 2]


def survive_all(enumeration: Enumeration) -> None:
    """Die at every hit; ``FAULTS_FROM`` names the one to begin with."""
    hits = [hit for hit in enumeration.hits if str(hit) >= os.environ.get("FAULTS_FROM", "")]
    for hit in hits:
        assert enumeration.survives(hit) == [], f"FAULTS_FROM={hit}"
    print(f"{len(hits)} deaths, each at another place, changed nothing", flush=True)


def test_a_run_passes_every_failpoint_of_the_protocol(enumeration: Enumeration) -> None:
    assert {hit.name for hit in enumeration.hits} == EMBEDDED


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_a_death_in_the_middle_of_a_run_changes_nothing(
    enumeration: Enumeration, name: str
) -> None:
    assert enumeration.survives(middle(enumeration, name)) == []


@pytest.mark.rocketmq
def test_a_run_on_rocketmq_passes_every_failpoint_of_the_protocol(on_rocketmq: Enumeration) -> None:
    assert {hit.name for hit in on_rocketmq.hits} == ROCKETMQ


@pytest.mark.rocketmq
@pytest.mark.parametrize("name", sorted(ROCKETMQ - DRIVERS | {"job.opened", "task.staged"}))
def test_a_death_on_rocketmq_changes_nothing(on_rocketmq: Enumeration, name: str) -> None:
    assert on_rocketmq.survives(middle(on_rocketmq, name)) == []


@pytest.mark.rocketmq
def test_without_a_look_at_the_tails_a_death_doubles_results(on_rocketmq: Enumeration) -> None:
    hit = middle(on_rocketmq, "journal.publish.done")
    found = on_rocketmq.survives(hit, unsafe="publish_tail")
    assert any("repeated" in problem for problem in found), found
    assert any("what is published differs" in problem for problem in found), found


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_changes_anything(enumeration: Enumeration) -> None:
    survive_all(enumeration)


@pytest.mark.soak
@pytest.mark.rocketmq
@pytest.mark.timeout(0)
def test_no_death_on_rocketmq_changes_anything(on_rocketmq: Enumeration) -> None:
    survive_all(on_rocketmq)
