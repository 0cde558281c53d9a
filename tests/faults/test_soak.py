"""The long run: fifty kills and ten sleeping drivers; `make soak` runs it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.broker import running_broker
from tests.faults.harness import Feeder, kill_test, seeded
from tests.faults.test_kills import KINDS, finish, strike

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("FAULTS_KILLS", "50"))


def faults(chance: random.Random) -> list[str]:
    """As many kills as asked for, of random kinds, and a fifth as many sleeping drivers."""
    found = [chance.choice(KINDS) for _ in range(KILLS)] + ["sleep"] * (KILLS // 5)
    chance.shuffle(found)
    return found


def test_fifty_kills_leave_every_result_exactly_once(tmp_path: Path) -> None:
    chance = seeded()
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        run.start_driver("task.staged=kill:20")
        for number, kind in enumerate(faults(chance)):
            print(f"fault {number}: {kind}, after epoch and batch {run.standing()}", flush=True)
            strike(run, kind, chance)
        run.await_batches(2)
        finish(run, feeder)
