"""Run one seed again and tell its story, or tell by which seeds broken builds are found."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

from headrace.settings import Executor
from tests.simulation.connect import simulate_connect
from tests.simulation.connect_mutants import CONNECT_MUTANTS
from tests.simulation.mutants import (
    JOURNAL_MUTANTS,
    MUTANTS,
    REPLICA_MUTANTS,
    RESIDENT_MUTANTS,
    find,
)
from tests.simulation.simulation import simulate

parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
what = parser.add_mutually_exclusive_group(required=True)
what.add_argument("--seed", type=int)
what.add_argument("--mutants", action="store_true", help="the seed that finds each broken build")
parser.add_argument("--rocketmq", action="store_true", help="on a simulated RocketMQ")
parser.add_argument("--resident", action="store_true", help="by resident tasks")
parser.add_argument("--connect", action="store_true", help="workers of Connect")
given = parser.parse_args()
with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
    place = Path(folder) / "job"
    if given.mutants:
        stock = partial(simulate, embedded=False)
        for mutants, run in (
            ((*MUTANTS, *REPLICA_MUTANTS), simulate),
            (RESIDENT_MUTANTS, partial(simulate, executor="resident")),
            (JOURNAL_MUTANTS, stock),
            (CONNECT_MUTANTS, simulate_connect),
        ):
            for mutant in mutants:
                with redirect_stdout(StringIO()):
                    found = find(mutant, partial(run, folder=place, mutant=mutant))
                moved = "" if found.seed == mutant.since else f" (since={mutant.since})"
                print(f"{found.seed:>6}{moved}  {mutant.name}", flush=True)
    elif given.connect:
        print(simulate_connect(given.seed, place))
    else:
        executor: Executor = "resident" if given.resident else "micro-batch"
        print(simulate(given.seed, place, embedded=not given.rocketmq, executor=executor))
