"""Spark's Java process dies under a driver that lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.broker import running_broker
from tests.faults.feeder import Feeder
from tests.faults.harness import Driver, KillTest, await_true, kill_test
from tests.faults.verification import problems, read_results

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: TX04 asks for a new epoch within so many seconds.
LIMIT = 60.0


#: After how long each Java that starts is killed again, s: as it begins, loads, and answers.
_STAGES = (0.05, 0.3, 0.8, 1.6, 3.0)

#: More roll-backs in a row than there are deaths: whether a commit comes in between is chance.
_PATIENT = {"--rollback-retries": str(3 * len(_STAGES))}


@contextmanager
def one_driver_counts_all(folder: Path) -> Iterator[tuple[KillTest, Driver]]:
    """Run a job; at the end all is counted once, by the driver that began."""
    with running_broker(folder / "broker") as broker, kill_test(folder, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        driver = run.start_driver(options=_PATIENT)
        run.await_batches(2)
        yield run, driver
        run.await_batches(2)
        feeder.stop()
        run.await_caught_up()
        assert run.driver is driver
        assert driver.stop() == 0, driver.said
        assert problems(read_results(broker.address), feeder.confirmed) == []


def test_java_may_be_killed_at_every_stage_of_its_start(tmp_path: Path) -> None:
    with one_driver_counts_all(tmp_path) as (_, driver):
        killed: set[int] = set()

        def new_java() -> list[psutil.Process]:
            return [java for java in driver.java() if java.pid not in killed]

        for stage in (0.0, *_STAGES):
            await_true("another Java", lambda: bool(new_java()))
            time.sleep(stage)
            for java in new_java():
                killed.add(java.pid)
                # A first, short Java only works out the command of the one that stays.
                with suppress(psutil.NoSuchProcess):
                    java.kill()


def test_killed_java_process_is_replaced_by_the_same_driver(tmp_path: Path) -> None:
    with one_driver_counts_all(tmp_path) as (run, driver):
        began = time.monotonic()
        run.kill_java()
        assert time.monotonic() - began < LIMIT
    assert "starts Spark again" in driver.said
