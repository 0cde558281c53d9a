"""A function that runs every so often, or at once when it is woken."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from headrace.connect.worker import Periodic
from headrace.watched import end_process
from tests.connect.waiting import eventually


class Runs:
    """Counts runs, and holds one back when asked to."""

    def __init__(self) -> None:
        self.count = 0
        self.free = asyncio.Event()
        self.free.set()
        self.trouble: Exception | None = None

    async def run(self) -> None:
        self.count += 1
        if self.trouble is not None:
            raise self.trouble
        await self.free.wait()


@pytest.mark.requirement(17)
def test_it_runs_every_interval_and_at_once_when_woken() -> None:
    async def scenario() -> None:
        runs = Runs()
        often = Periodic(runs.run, 0.01, name="often", on_failure=end_process)
        often.start()
        await eventually(lambda: runs.count >= 3)
        await often.stop()
        rarely = Periodic(runs.run, 60, name="rarely", on_failure=end_process)
        rarely.start()
        await eventually(lambda: rarely.runs == 1)
        rarely.wakeup()
        await eventually(lambda: rarely.runs == 2)
        await rarely.stop()

    asyncio.run(scenario())


@pytest.mark.requirement(17)
def test_wakeups_during_a_run_make_exactly_one_more() -> None:
    async def scenario() -> None:
        runs = Runs()
        runs.free.clear()
        periodic = Periodic(runs.run, 60, name="test", on_failure=end_process)
        periodic.start()
        await eventually(lambda: runs.count == 1)
        threads = [threading.Thread(target=periodic.wakeup) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await asyncio.sleep(0)
        runs.free.set()
        await eventually(lambda: periodic.runs == 2)
        await asyncio.sleep(0.05)
        assert runs.count == 2
        await periodic.stop()

    asyncio.run(scenario())


@pytest.mark.requirement(17)
def test_no_wakeup_is_lost_between_two_runs() -> None:
    async def scenario() -> None:
        runs = Runs()
        periodic = Periodic(runs.run, 60, name="test", on_failure=end_process)

        def ran(times: int) -> bool:
            return periodic.runs == times

        periodic.start()
        for times in range(1, 100):
            await eventually(partial(ran, times))
            periodic.wakeup()
        await eventually(partial(ran, 100))
        await periodic.stop()

    asyncio.run(scenario())


def test_a_run_that_raises_is_logged_and_the_next_one_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        runs = Runs()
        runs.trouble = ValueError("no")
        periodic = Periodic(runs.run, 60, name="the test's own", on_failure=end_process)
        periodic.start()
        await eventually(lambda: periodic.runs == 1)
        runs.trouble = None
        periodic.wakeup()
        await eventually(lambda: periodic.runs == 2)
        await periodic.stop()

    asyncio.run(scenario())
    assert "the test's own failed; it runs again" in caplog.text
