"""The cases of transactions, and the negative controls, without Spark."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.transactions.cases.broken import CONTROLS
from tests.transactions.cases.case import controlled, read_case
from tests.transactions.cases.executions import (
    ON_SPARK_ONLY,
    finding,
    problems_of,
    problems_on_rocketmq,
    runs_of,
)

pytestmark = pytest.mark.spread

FILE = Path(__file__).parents[1] / "cases" / "transactions.json"
CONTENT = json.loads(FILE.read_text())
CASES = {raw["id"]: read_case(raw) for raw in CONTENT["cases"]}

RUNS = [
    pytest.param(name, workload, variant, id=f"{name}-{workload}-{variant}".strip("-"))
    for name, case in CASES.items()
    if name not in ON_SPARK_ONLY
    for workload, variant in runs_of(case)
]


#: What RocketMQ does otherwise shows in these; the long tests run the others there, too.
ON_ROCKETMQ = {"TX03", "TX05", "TX07", "TX16", "TX17", "TX24"}


#: What takes as long as their cases say: a topic that is away, a bolt that hangs, a lease.
SLOW = {"TX15", "TX20"}
SLOW_ON_ROCKETMQ = {"TX16"}


def _runs(usual: Collection[str], slow: Collection[str]) -> list[Any]:
    """Give every run: one of each usual case for the suite, the others for the long tests."""
    found: dict[str, list[Any]] = {}
    for run in RUNS:
        runs = found.setdefault(str(run.values[0]), [])
        brief = run.values[0] in usual and not runs
        marks = [] if brief else [pytest.mark.soak]
        if brief and run.values[0] in slow:
            marks = [pytest.mark.slow, pytest.mark.budget(35)]
        runs.append(pytest.param(*run.values, id=run.id, marks=marks))
    return [run for runs in found.values() for run in runs]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "workload", "variant"), _runs(CASES, SLOW))
def test_case(name: str, workload: str, variant: str) -> None:
    problems = problems_of(CASES[name], workload, variant)
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(240)
@pytest.mark.rocketmq
@pytest.mark.parametrize(("name", "workload", "variant"), _runs(ON_ROCKETMQ, SLOW_ON_ROCKETMQ))
def test_case_on_rocketmq(
    rocketmq_of_short_leases: Cluster, tmp_path: Path, name: str, workload: str, variant: str
) -> None:
    problems = problems_on_rocketmq(
        CASES[name], workload, variant, rocketmq_of_short_leases, tmp_path
    )
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("control", "name"),
    [
        pytest.param(
            *pair, marks=[pytest.mark.slow, pytest.mark.budget(35)] if pair[1] in SLOW else []
        )
        for pair in controlled(CONTENT)
    ],
)
def test_broken_build_is_caught(control: str, name: str) -> None:
    build = CONTROLS[control]
    assert finding(CASES[name], build) is not None, f"{name} passes although {build.what}"
