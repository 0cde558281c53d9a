"""The session's surroundings."""

from __future__ import annotations

import os
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
