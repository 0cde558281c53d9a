"""The case files of this repository, and the script that runs any file of their format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run_cases import run_file
from tests.store.compaction.cases import run_case

CASES = Path(__file__).parent / "cases"
COMPACTION = json.loads((CASES / "compaction.json").read_text())["cases"]
SCRIPT = Path(__file__).parent / "run_cases.py"


@pytest.mark.parametrize("case", COMPACTION, ids=lambda case: case["id"])
def test_compaction_case(case: dict[str, Any]) -> None:
    run_case(case)


def write(folder: Path, **case: Any) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps({"format": 1, "cases": [{"id": "X1", "title": "one"} | case]}))
    return path


def test_the_script_prints_a_line_for_each_case_and_fails_when_one_does(tmp_path: Path) -> None:
    steps = [{"append": [["a", "1"]]}, {"survivors": [[0, "a", "2"]]}]
    path = write(tmp_path, steps=steps)
    arguments = [sys.executable, str(SCRIPT), "compaction", str(path)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stdout.startswith("FAIL X1 one\n     step 2 ")
    assert "survivors are [(0, 'a', '1')]" in ran.stdout


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ({"steps": [{"explode": True}]}, "does not know the step 'explode'"),
        ({"steps": [{"compact": {"speed": 1}}]}, "does not know ['speed'] of a compaction"),
        ({"steps": [], "flavour": 1}, "does not know ['flavour'] of a case"),
        ({"steps": [{"restart": {"checkpoint": "eaten"}}]}, "does not know the checkpoint"),
        ({"steps": [{"gen": {"count": 1, "key": "i of 3", "value": "1"}}]}, "not understand"),
        ({"steps": [{"append_refused": [["a", "1"]]}]}, "is not blank"),
    ],
)
def test_what_a_case_asks_that_is_unknown_fails(
    tmp_path: Path, case: dict[str, Any], told: str
) -> None:
    [(_, failure)] = run_file("compaction", write(tmp_path, **case))
    assert failure is not None
    assert told in failure


def test_step_kinds_of_other_files(tmp_path: Path) -> None:
    """What the rules allow beyond the cases here: rounds, tombstones by time, replicas."""
    steps: list[dict[str, Any]] = [
        {"gen_at": {"from": 10, "count": 6, "key": "'k'+(i mod 2)", "value": "'v'+offset"}},
        {"roll": True},
        {"append_at": [[4_294_967_296, "k0", None], [4_294_967_299, "z", "1"]]},
        {"roll": True},
        {"compact": {"rounds": 1, "now_ms": 1000}},
        {"replay": {"from": 0}},
        {"compact": {"now_ms": 1000}},
        {"survivors": [[15, "k1", "v15"], [4_294_967_296, "k0", None], [4_294_967_299, "z", "1"]]},
        {"restart": {"checkpoint": "ahead"}},
        {"compact": {"now_ms": 1099}},
        {"survivors_count": 3},
        {"compact": {"now_ms": 1100}},
        {"accept": [[[1, "no", "1"]], {"survivors_count": 2}]},
        {"survivors_count": 7, "accept": [{"survivors_count": 2}], "why": "either will do"},
        {"bounds": {"min": 15, "max": 4_294_967_300}},
        {"replica": {"commitlog_min": 20}},
        {"latest": {"k1": "v15", "z": "1"}},
    ]
    path = write(tmp_path, steps=steps, tombstone={"retain_ms": 100}, map_capacity=1)
    [(_, failure)] = run_file("compaction", path)
    assert failure is None
