"""Run one seed again, and tell its story."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.simulation.connect import simulate_connect
from tests.simulation.simulation import simulate

parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--rocketmq", action="store_true", help="on a simulated RocketMQ")
parser.add_argument("--connect", action="store_true", help="workers of Connect")
given = parser.parse_args()
with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
    place = Path(folder) / "job"
    if given.connect:
        print(simulate_connect(given.seed, place))
    else:
        print(simulate(given.seed, place, embedded=not given.rocketmq))
