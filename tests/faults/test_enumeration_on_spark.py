"""Deaths at failpoints on Spark: of drivers, planners, workers and the broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.enumeration import Hit
from tests.faults.enumeration_on_spark import enumeration_on_spark

pytestmark = pytest.mark.spark

#: Places of the planner, of workers and of the broker, those that hurt most.
SOME = (
    "plan.planned",
    "task.staged",
    "state.apply.written",
    "state.replay.block",
    "store.unit.synced",
)


@pytest.mark.timeout(900)
def test_deaths_at_the_worst_places_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with enumeration_on_spark(tmp_path, {}, {}) as enumeration:
        for name in SOME:
            assert enumeration.survives(Hit(name, 1)) == [], name


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_death_loses_or_doubles_anything(tmp_path: Path) -> None:
    with enumeration_on_spark(tmp_path, {}, {}) as enumeration:
        first = os.environ.get("FAULTS_FROM", "")
        hits = [hit for hit in enumeration.hits() if str(hit) >= first]
        for hit in hits:
            assert enumeration.survives(hit) == [], f"FAULTS_FROM={hit}"
            print(f"{hit} survived", flush=True)
    print(f"{len(hits)} deaths, each at another place: {dict(enumeration.deaths)}", flush=True)
