"""The simulation in a process of its own: other tests leave threads and sockets behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_FILE = Path(__file__).parent / "simulation" / "test_simulation.py"


@pytest.mark.timeout(1500)
def test_every_seed_and_every_broken_build() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-m", "soak", "-k", "not more_seeds"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--timeout", "600", str(_FILE)],
        cwd=_FILE.parents[3],
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
