"""The session's surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.session import sweep_scratch


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look processes up in")
def test_scratch_of_dead_drivers_is_swept_and_that_of_living_ones_stays(tmp_path: Path) -> None:
    living = tmp_path / f"headrace-{os.getpid()}-abc"
    dead = tmp_path / f"headrace-{sys.maxsize}-abc"
    foreign = tmp_path / "headrace-notes"
    for folder in (living, dead, foreign):
        folder.mkdir()
    sweep_scratch(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, foreign])


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("nonsense[2]", "master is 'nonsense[2]', which Spark does not know"),
        ("local[x]", "Spark did not start on local[x]: org.apache.spark.SparkException"),
    ],
)
def test_a_master_that_spark_refuses_is_named(tmp_path: Path, master: str, said: str) -> None:
    program = f"""
from pathlib import Path
from headrace.settings import JobSettings
from headrace.spark.session import get_session
get_session(JobSettings(master={master!r}, data_dir=Path({str(tmp_path)!r})))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert said in done.stderr
