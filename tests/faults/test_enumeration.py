"""Every failpoint of the protocol is deadly once, in drivers without Spark and in the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.enumeration import Enumeration, Hit

#: Every step of a batch, an open and a restore; a driver that misses one misses a place to die.
NAMES = {
    "broker.jobs.appended",
    "broker.jobs.committed",
    "broker.jobs.staged",
    "job.after_commit",
    "job.before_commit",
    "job.before_open",
    "job.opened",
    "job.published",
    "plan.planned",
    "plan.split",
    "stage.before_chunk",
    "stage.chunk",
    "state.apply.read",
    "state.apply.written",
    "state.catch_up.block",
    "state.changes.begun",
    "state.changes.kept",
    "state.replay.block",
    "state.replay.emptied",
    "store.unit.end",
    "store.unit.middle",
    "store.unit.synced",
    "task.begun",
    "task.persisted",
    "task.processed",
    "task.staged",
}


@pytest.fixture(scope="module")
def enumeration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enumeration]:
    found = Enumeration(tmp_path_factory.mktemp("enumeration"))
    try:
        yield found
    finally:
        found.close()


def test_a_run_passes_every_failpoint_of_the_protocol(enumeration: Enumeration) -> None:
    assert {hit.name for hit in enumeration.hits} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_death_in_the_middle_of_a_run_changes_nothing(
    enumeration: Enumeration, name: str
) -> None:
    numbers = [hit.number for hit in enumeration.hits if hit.name == name]
    assert enumeration.survives(Hit(name, numbers[len(numbers) // 2])) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_changes_anything(enumeration: Enumeration) -> None:
    hits = [hit for hit in enumeration.hits if str(hit) >= os.environ.get("FAULTS_FROM", "")]
    for hit in hits:
        assert enumeration.survives(hit) == [], f"FAULTS_FROM={hit}"
    print(f"{len(hits)} deaths, each at another place, changed nothing")
