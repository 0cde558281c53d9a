"""The kill test: processes of a running job die at random moments, and no result is lost or doubled."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.faults.broker import running_broker
from tests.faults.feeder import Feeder
from tests.faults.harness import KillTest, kill_test, seeded
from tests.faults.verification import problems, read_results

pytestmark = pytest.mark.spark

KINDS = ("worker", "broker", "java", "driver")


def strike(run: KillTest, kind: str, chance: random.Random) -> None:
    """Let one process fail at a random moment of a running job, and do what a person would do."""
    run.await_batches(2)
    time.sleep(chance.uniform(0.0, 1.0))
    if kind == "worker":
        run.kill_worker(chance.choice)
    elif kind == "broker":
        run.kill_broker()
    elif kind == "java":
        run.kill_java()
    else:
        run.kill_driver()


def finish(run: KillTest, feeder: Feeder) -> None:
    """Let the job catch up, end it, and hold what it did against what it read."""
    feeder.stop()
    run.await_caught_up()
    assert run.driver.stop() == 0, run.driver.said
    assert problems(read_results(run.broker.address), feeder.confirmed) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "executor", ["micro-batch", pytest.param("resident", marks=pytest.mark.slow)]
)
def test_one_kill_of_each_kind_leaves_every_result_exactly_once(
    executor: str, tmp_path: Path
) -> None:
    chance, environment = seeded(), {"HEADRACE_EXECUTOR": executor}
    with (
        running_broker(tmp_path / "broker") as broker,
        kill_test(tmp_path, broker, environment=environment) as run,
    ):
        feeder = Feeder(broker.address)
        feeder.start()
        # Besides, each of its workers dies at such a task: staged, but never reported.
        first = run.start_driver(f"task.staged=kill:{8 if executor == 'micro-batch' else 80}")
        for kind in KINDS:
            strike(run, kind, chance)
            if kind != "driver":
                run.await_batches(2)
                assert run.driver is first, "the job goes on by itself"
        run.await_batches(2)
        finish(run, feeder)
        assert len(run.drivers) == 2
