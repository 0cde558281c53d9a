"""What the engine runs, by the order of what it is asked; no Spark, no broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.channel import (
    EngineMessage,
    Hold,
    Level,
    QueryEvent,
    Reply,
    StartQuery,
    StopQuery,
    TaskCopy,
)
from headrace.connect.data import engine as module
from headrace.connect.data.engine import Engine
from headrace.connect.data.positions import EngineSettings
from headrace.connect.data.process import EngineProcess

UNIT = TaskCopy("orders", 0, 7)


class Job:
    """Stands in for a task's job: it can be made when the test lets it."""

    made: list[Job]
    may_be_made: threading.Event

    def __init__(self, order: StartQuery, *more: Any) -> None:
        del order, more
        self.name = "orders-0"
        self.began = self.stops = 0
        self.held: list[bool] = []
        self._ended = threading.Event()
        assert self.may_be_made.wait(30)
        self.made.append(self)

    def start(self) -> None:
        self.began += 1

    def await_end(self) -> None:
        self._ended.wait(30)

    def hold(self, *, held: bool) -> None:
        self.held.append(held)

    def stop(self) -> None:
        self.stops += 1
        self._ended.set()


class Bench:
    """An engine, and what it has told."""

    def __init__(self, folder: Path) -> None:
        self.told: list[EngineMessage] = []
        settings = EngineSettings(namesrv="127.0.0.1:1", folder=folder)
        self.engine = Engine(settings, self.told.append)
        self._numbers = iter(range(1, 100))

    def start(self) -> int:
        number = next(self._numbers)
        self.engine.take(StartQuery(number, UNIT, "source", "nowhere"))
        return number

    def stop(self) -> int:
        number = next(self._numbers)
        self.engine.take(StopQuery(number, UNIT))
        return number

    def hold(self, *, held: bool) -> int:
        number = next(self._numbers)
        self.engine.take(Hold(number, UNIT, held))
        return number

    def answer(self, number: int) -> Reply:
        reply: Reply = self.until(lambda: next(iter(self._answers(number)), None))
        return reply

    def _answers(self, number: int) -> list[Reply]:
        return [one for one in self.told if isinstance(one, Reply) and one.request == number]

    def until(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 30
        while (found := look()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    Job.made, Job.may_be_made = [], threading.Event()
    monkeypatch.setattr(module, "TaskJob", Job)
    return Bench(tmp_path)


def test_a_second_start_begins_nothing(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    assert bench.answer(second).failure is None
    Job.may_be_made.set()
    assert bench.answer(first).failure is None
    assert [job.began for job in Job.made] == [1]
    assert bench.answer(bench.stop()).failure is None
    assert [job.stops for job in Job.made] == [1]
    assert not bench.engine._runs


def test_a_stop_finds_a_start_that_has_only_been_asked_for(bench: Bench) -> None:
    start, stop = bench.start(), bench.stop()
    assert bench.answer(stop).failure is None
    Job.may_be_made.set()
    assert "stopped while it started" in str(bench.answer(start).failure)
    assert [job.began for job in Job.made] == [0]


def test_a_start_behind_a_stop_is_another_run(bench: Bench) -> None:
    first, _, second = bench.start(), bench.stop(), bench.start()
    Job.may_be_made.set()
    assert "stopped while it started" in str(bench.answer(first).failure)
    assert bench.answer(second).failure is None
    assert sorted(job.began for job in Job.made) == [0, 1]
    assert bench.answer(bench.stop()).failure is None
    assert sum(job.stops for job in Job.made if job.began) == 1


def test_a_job_that_ends_by_itself_is_told_once(bench: Bench) -> None:
    Job.may_be_made.set()
    assert bench.answer(bench.start()).failure is None
    Job.made[0]._ended.set()
    ended = bench.until(
        lambda: next((one for one in bench.told if isinstance(one, QueryEvent)), None)
    )
    assert ended.unit == UNIT
    assert Job.made[0].stops == 1
    assert not bench.engine._runs


def test_that_a_job_has_begun_is_told_before_that_it_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears of an end while a start is under way takes it for that of an earlier run."""
    monkeypatch.setattr(Job, "await_end", lambda _job: None)
    Job.may_be_made.set()
    tell = bench.engine._tell

    def late(event: EngineMessage) -> None:
        if isinstance(event, Reply):
            time.sleep(0.3)
        tell(event)

    monkeypatch.setattr(bench.engine, "_tell", late)
    bench.start()
    bench.until(lambda: True if len(bench.told) == 2 else None)
    assert [type(one) for one in bench.told] == [Reply, QueryEvent]


def test_a_pause_that_comes_while_a_task_opens_its_queues_reaches_its_query(bench: Bench) -> None:
    start = bench.start()
    for held in (True, False, True):
        assert bench.answer(bench.hold(held=held)).failure is None
    Job.may_be_made.set()
    assert bench.answer(start).failure is None
    assert Job.made[0].held == [True]
    bench.hold(held=False)
    assert Job.made[0].held == [True, False]


def test_a_pause_of_what_does_not_run_is_no_error(bench: Bench) -> None:
    assert bench.answer(bench.hold(held=True)).failure is None


def test_level_is_set_in_the_engine(bench: Bench) -> None:
    logger = logging.getLogger("tests.of.engine.levels")
    bench.engine.take(Level("tests.of.engine", logging.DEBUG))
    assert logger.level == logging.DEBUG


def test_a_start_that_fails_behind_a_death_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once left the next one waiting for what had never begun."""
    process = EngineProcess(
        EngineSettings(namesrv="127.0.0.1:1", folder=tmp_path / "engine"), print, lambda: None
    )
    tries: list[object] = []

    async def fail(*_: object, **__: object) -> None:
        tries.append(process._printed)
        raise OSError(24, "too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    # One that has died.
    process._process = asyncio.subprocess.Process.__new__(asyncio.subprocess.Process)

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="too many"):
                await asyncio.wait_for(process.open(), 5)

    asyncio.run(ask())
    assert len(tries) == 2
    assert process._printed is None
