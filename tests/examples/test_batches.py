"""The example of batches: in one process, and on Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(*options: str) -> list[str]:
    command = [sys.executable, "-m", "examples.batches", *options]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_example_fills_the_database() -> None:
    assert output_of() == ["jam: 1", "tea: 2"]


@pytest.mark.slow
@pytest.mark.spark
def test_example_on_spark_writes_the_files_too() -> None:
    assert output_of("--on", "spark") == [
        "order jam 5",
        "order tea 3",
        "order tea 4",
        "jam: 1",
        "tea: 2",
    ]
