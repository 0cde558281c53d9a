"""The example of transactional topologies: every count follows from the spout's state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.transaction_test_topology import check, expected

ROOT = Path(__file__).parents[2]


def output_of(*options: str) -> list[str]:
    command = [sys.executable, "-m", "examples.transaction_test_topology", *options]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_every_count_follows_from_the_state_of_the_spout() -> None:
    """R42."""
    assert output_of() == ["5000 sentences, 32500 words: every count is right"]


def test_a_failure_in_the_first_batch_leaves_nothing_behind() -> None:
    """R43."""
    failure, result = output_of("--fail")
    assert failure.startswith("stateful bolt 'count', task ")
    assert ", batch 1: failed in execute: RuntimeError: the fuse has burnt" in failure
    assert result == "5000 sentences, 32500 words: every count is right"


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([{"the": 1}], "5 sentences, but"),
        ([dict(expected(6))], "5 sentences, but"),
        ([dict(expected(5)), {"mill": 1}], r"counted in two tasks: \['mill'\]"),
    ],
    ids=["lost", "twice", "two-tasks"],
)
def test_the_check_finds_what_is_wrong(states: list[dict[str, int]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(5, states)
    check(5, [dict(expected(5))])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="R42", marks=pytest.mark.soak), pytest.param(("--fail",), id="R43")],
)
def test_on_spark_the_last_commit_is_right(options: tuple[str, ...]) -> None:
    """R42 and R43: exactly one roll-back where the first batch fails."""
    roll_backs, result = output_of("--on", "spark", *options)
    assert roll_backs == f"{len(options)} roll-backs"
    assert result.endswith(": every count is right")
    assert int(result.split()[0]) >= 3_000
