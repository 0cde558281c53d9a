"""The cases of transactions on Spark, and the builds that they must catch there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.transactions.cases.broken import CONTROLS
from tests.transactions.cases.case import controlled, read_case
from tests.transactions.cases.executions import (
    finding,
    problems_of,
    problems_on_rocketmq,
    runs_of,
)
from tests.transactions.cases.hosts import HOSTS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.slow]

FILE = Path(__file__).parents[1] / "cases" / "transactions.json"
CONTENT = json.loads(FILE.read_text())
CASES = {raw["id"]: read_case(raw) for raw in CONTENT["cases"]}

#: Those that only Spark can run, and a roll-back; the long tests run the others.
USUAL = {"TX04", "TX10", "TX11", "TX12", "TX23"}


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """End the sessions that the cases have shared."""
    yield
    HOSTS.close()


def _runs(usual: Collection[str] = ()) -> list[Any]:
    """Give every run: the first one of each usual case for the suite, the others for the long tests."""
    found = []
    for name, case in CASES.items():
        for number, (workload, variant) in enumerate(runs_of(case)):
            brief = name in usual and number == 0
            marks = [] if brief else [pytest.mark.soak]
            run = f"{name}-{workload}-{variant}".strip("-")
            found.append(pytest.param(name, workload, variant, id=run, marks=marks))
    return found


@pytest.mark.parametrize(("name", "workload", "variant"), _runs(USUAL))
def test_case(name: str, workload: str, variant: str) -> None:
    problems = problems_of(CASES[name], workload, variant, "spark")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("name", "workload", "variant"), _runs())
def test_case_on_executors(name: str, workload: str, variant: str) -> None:
    problems = problems_of(CASES[name], workload, variant, "cluster")
    assert not problems, "\n".join(problems)


@pytest.mark.rocketmq
@pytest.mark.parametrize(("name", "workload", "variant"), _runs())
def test_case_on_rocketmq(
    rocketmq_of_short_leases: Cluster, tmp_path: Path, name: str, workload: str, variant: str
) -> None:
    problems = problems_on_rocketmq(
        CASES[name], workload, variant, rocketmq_of_short_leases, tmp_path, "spark"
    )
    assert not problems, "\n".join(problems)


@pytest.mark.soak
@pytest.mark.parametrize(("control", "name"), controlled(CONTENT))
def test_broken_build_is_caught(control: str, name: str) -> None:
    build = CONTROLS[control]
    found = finding(CASES[name], build, "spark")
    assert found is not None, f"{name} passes although {build.what}"
