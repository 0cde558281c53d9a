"""Spark's Java process dies under a driver that lives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.broker import running_broker
from tests.faults.feeder import Feeder
from tests.faults.harness import kill_test
from tests.faults.verification import problems, read_results

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: TX04 asks for a new epoch within so many seconds.
LIMIT = 60.0


def test_killed_java_process_is_replaced_by_the_same_driver(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        driver = run.start_driver()
        run.await_batches(2)
        began = time.monotonic()
        run.kill_java()
        assert time.monotonic() - began < LIMIT
        run.await_batches(2)
        feeder.stop()
        run.await_caught_up()
        assert run.driver is driver
        assert "starts Spark again" in driver.said
        assert driver.stop() == 0, driver.said
        assert problems(read_results(broker.address), feeder.confirmed) == []
