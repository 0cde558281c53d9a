"""Run one seed again, and tell its story."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.proof.simulation.simulation import simulate

parser = argparse.ArgumentParser(prog="python -m tests.proof.simulation", description=__doc__)
parser.add_argument("--seed", type=int, required=True)
seed = parser.parse_args().seed
with tempfile.TemporaryDirectory() as folder:
    print(simulate(seed, Path(folder) / "job"))
