"""All cases of streams on Spark: one record a batch, as one batch, and cut at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.streams.cases.spark import run_on_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.slow]

FILE = Path(__file__).parents[1] / "cases" / "streams.json"
CASES = json.loads(FILE.read_text())["cases"]


def case(name: str, operation: str, values: list[Any], expected: list[Any]) -> dict[str, Any]:
    rows = [{"stream": "in", "key": "k", "value": v, "time": t} for t, v in enumerate(values)]
    wanted = [{"after": after, "key": "k", "value": value} for after, value in expected]
    fixed = {"order": "exact", "assert": "per_step", "params": {}}
    return fixed | {"name": name, "operation": operation, "input": rows, "expected": wanted}


def test_all_cases_pass_and_what_is_wrong_fails() -> None:
    differs = case("differs", "keyBy(k).sum()", [1, 2], [(0, 1), (1, 4)])
    unknown = case("unknown", "explode()", [1], [])
    *failures, told, refused = run_on_spark([*CASES, differs, unknown])
    named = zip([one["name"] for one in CASES], failures, strict=True)
    assert {name: failure for name, failure in named if failure} == {}
    assert "one record a batch: after input 1 there must be" in str(told)
    assert "does not know the operation 'explode'" in str(refused)


def test_a_case_that_ends_the_job_fails_alone() -> None:
    raises = case("raises", "map(v -> 1 / v)", [0], [])
    bystander = case("stands-by", "map(v -> v + 1)", [0], [(0, 1)])
    failure, nothing = run_on_spark([raises, bystander])
    assert "division by zero" in str(failure)
    assert nothing is None
