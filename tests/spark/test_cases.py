"""Some cases of streams on Spark; ``tests/run_cases.py streams FILE --on spark`` runs all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.streams.cases.spark import run_on_spark

pytestmark = pytest.mark.spark

FILE = Path(__file__).parents[1] / "cases" / "streams.json"
CASES = {case["name"]: case for case in json.loads(FILE.read_text())["cases"]}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name", ["wordcount_updates", "null_key_is_skipped", "rip58_left_join_no_window"]
)
def test_case(name: str) -> None:
    run_on_spark(CASES[name])
