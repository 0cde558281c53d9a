"""Levels of loggers: of one worker, and of all by the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.connect.levels import Loggers
from headrace.connect.log import LevelSet, MemoryLog
from headrace.connect.worker import Connect, Worker
from headrace.errors import ConnectNotFoundError
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.loggers import NotedLevels
from tests.connect.running import make_worker, quick_settings
from tests.connect.waiting import eventually


def test_a_level_for_all_is_set_on_every_worker_that_runs_and_on_none_that_comes_later() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        workers: list[Worker] = []
        noted: list[NotedLevels] = []
        for name in ("w1", "w2", "w3"):
            if name == "w3":
                await Connect(workers[0]).set_level("some.logger", "debug")
            worker = make_worker(log, FakeLauncher(), quick_settings(worker_id=name))
            noted.append(NotedLevels())
            worker.loggers = noted[-1]
            await worker.start()
            workers.append(worker)
        first, second, third = (levels.noted for levels in noted)
        assert first == [("some.logger", "debug")]
        await eventually(lambda: second == first)
        assert third == []
        for worker in workers:
            await worker.stop(force=True)

    asyncio.run(scenario())


def test_a_level_that_only_another_release_knows_is_passed_over() -> None:
    async def scenario() -> None:
        worker = make_worker(MemoryLog(), FakeLauncher())
        await worker.start()
        await worker.append(LevelSet(request="r", logger="some.logger", level="BANANA"))
        assert worker.trouble() is None
        await worker.stop(force=True)

    asyncio.run(scenario())


def test_a_level_that_there_is_not_comes_into_no_log() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        worker = make_worker(log, FakeLauncher())
        await worker.start()
        with pytest.raises(ConnectNotFoundError, match="invalid log level 'banana'"):
            await Connect(worker).set_level("some.logger", "banana")
        assert await log.end() == 0
        await worker.stop(force=True)

    asyncio.run(scenario())


def test_a_level_goes_to_the_processes_of_plugins_too() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        worker = make_worker(MemoryLog(), launcher)
        assert worker.loggers.set("tests.of.plugins", "DEBUG") == ["tests.of.plugins"]
        assert launcher.levels == [("tests.of.plugins", 10)]

    asyncio.run(scenario())


def test_loggers_are_listed_with_the_levels_that_hold_for_them() -> None:
    below = logging.getLogger("tests.of.listing.below")
    logging.getLogger("tests.of.listing").setLevel(logging.ERROR)
    loggers = Loggers()
    listed = loggers.levels()
    assert listed[below.name] == {"level": "ERROR", "last_modified": None}
    assert "root" in listed
    loggers.set("headrace.connect.plugin.tests-of-listing", "warn")
    assert loggers.levels()["headrace.connect.plugin.tests-of-listing"]["level"] == "WARN"
