"""The long runs: fifty faults of every kind, and the slow proofs; `make soak` runs them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.broker import running_broker
from tests.faults.harness import Feeder, kill_test
from tests.faults.test_kills import KINDS, finish, strike

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

FAULTS = int(os.environ.get("SOAK_FAULTS", "50"))


def test_fifty_faults_leave_every_result_exactly_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(1 << 32)))
    print(f"SOAK_SEED={seed}")
    chance = random.Random(seed)
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        run.start_driver()
        for number in range(FAULTS):
            kind = chance.choice((*KINDS, "sleep"))
            print(f"fault {number}: {kind}, after epoch and batch {run.standing()}", flush=True)
            strike(run, kind, chance)
        run.await_batches(2)
        finish(run, feeder)
