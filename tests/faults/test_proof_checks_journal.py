"""The checkers against the protocol for RocketMQ: silent with its safeguards, loud without."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest

from headrace.client import Client
from headrace.failpoints import arm
from headrace.runtime.commit.drivers import DriverName
from tests.faults.harness import await_true
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers, Front, job_of
from tests.faults.proof_pipeline import Names
from tests.run.servers import LEASE
from tests.without import without

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

_numbers = itertools.count()


def drive(namesrv: str, folder: Path, names: Names, front: Front, size: int, last: int) -> None:
    """Be a driver until so many messages are committed."""
    with LocalDriver(
        namesrv,
        folder,
        size,
        job=job_of(names, front),
        name=str(DriverName.here()),
        journal=True,
        lease_expiry=f"{LEASE} s",
    ) as driver:
        while sum(driver.record.offsets.values()) < last:
            driver.commit(driver.process())


def drive_armed(failpoints: str, names: str, *told: object) -> None:
    """Be such a driver, with failpoints, and without some safeguards."""
    arm(failpoints)
    with without(names):
        drive(*told)  # type: ignore[arg-type]


def _rests(driver: ForkServerProcess) -> bool:
    """Whether a process stands still, or has ended."""
    if not driver.is_alive():
        return True
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED
    return False


class Scene:
    """A job with something to read, drivers in processes of their own, and the checkers."""

    def __init__(self, namesrv: str, folder: Path, front: Front) -> None:
        self._namesrv, self._folder, self._front = namesrv, folder, front
        self._names = Names(f"proof-{os.getpid()}-{next(_numbers)}")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", __name__])
        self._drivers: list[ForkServerProcess] = []
        self._client = Client(namesrv)
        make_topics(self._client, self._names)
        feeder = ProofFeeder(namesrv, self._names)
        feeder.feed(6)
        self.sent = feeder.stop()
        self.checkers = Checkers.of(self._client, self._names, front, journal=True)

    def start(self, size: int, failpoint: str, names: str) -> ForkServerProcess:
        """Start a driver that takes batches of a size; give it when it stands still.

        A driver that a busy machine kept from renewing its lease has to end: another comes.
        """
        ended: list[int | None] = []
        while len(ended) < 3:
            driver = self._start(size, failpoint, names)
            await_true("a driver that stands still or ends", partial(_rests, driver), patience=90)
            if driver.is_alive():
                return driver
            ended.append(driver.exitcode)
        pytest.fail(f"drivers ended with {ended} before they stood still")

    def _start(self, size: int, failpoint: str, names: str) -> ForkServerProcess:
        folder = self._folder / f"machine-{len(self._drivers)}"
        told = (self._namesrv, folder, self._names, self._front, size, self.sent.messages)
        driver = self._context.Process(target=drive_armed, args=(failpoint, names, *told))
        driver.start()
        self._drivers.append(driver)
        return driver

    def wake(self, driver: ForkServerProcess) -> int | None:
        """Let a driver go on, to its end; its exit code."""
        assert driver.pid is not None
        os.kill(driver.pid, signal.SIGCONT)
        driver.join(60)
        return driver.exitcode

    def finish(self, driver: ForkServerProcess, size: int, names: str) -> None:
        """Let a driver go on; where it stood for longer than its lease, another ends the job."""
        code = self.wake(driver)
        for _ in range(5):
            if code == 0:
                return
            another = self._start(size, "", names)
            another.join(60)
            code = another.exitcode
        pytest.fail(f"drivers ended with {code}")

    def found(self) -> dict[str, list[str]]:
        """What each checker has to say at the end, if it has."""
        each = self.checkers.by_name()
        found = {name: checker.finish(self.sent) for name, checker in each.items()}
        return {name: problems for name, problems in found.items() if problems}

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
            driver.join()
        self._client.close()


@pytest.fixture(params=["streams", pytest.param("bolts", marks=pytest.mark.soak)])
def scene(namesrv: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(namesrv, tmp_path, request.param)
    try:
        yield scene
    finally:
        scene.close()


def sleep_before_a_commit(scene: Scene, *, of_both: str = "", of_sleeper: str = "") -> None:
    """A driver sleeps before its second commit; it wakes after a smaller one of its successor."""
    sleeper = scene.start(90, "journal.commit.before=stop:2", f"{of_both},{of_sleeper}")
    successor = scene.start(30, "job.published=stop:1", of_both)
    assert scene.wake(sleeper) == 1
    scene.finish(successor, 30, of_both)


def test_checkers_find_nothing_where_a_sleeper_reads_back(scene: Scene) -> None:
    sleep_before_a_commit(scene)
    assert (scene.found(), scene.checkers.repeats()) == ({}, 0)


def test_every_checker_notices_a_sleeper_that_does_not_read_back(scene: Scene) -> None:
    sleep_before_a_commit(scene, of_both="lease", of_sleeper="read_back")
    found = scene.found()
    assert any("published more than once" in problem for problem in found["set"])
    assert any("in the topic" in problem for problem in found["sequence"])
    assert any("differs from the count and hash" in problem for problem in found["bank"])


def test_repetitions_are_counted_where_a_sleeper_publishes_without_its_lease(
    scene: Scene,
) -> None:
    sleeper = scene.start(60, "journal.publish.begin=stop:2", "lease")
    successor = scene.start(60, "job.published=stop:1", "lease")
    assert scene.wake(sleeper) == 1
    scene.finish(successor, 60, "lease")
    assert (scene.found(), scene.checkers.repeats() > 0) == ({}, True)


def test_a_batch_that_its_successor_has_still_to_publish_is_nothing_wrong(scene: Scene) -> None:
    scene.start(60, "journal.commit.appended=stop:2", "lease")
    scene.start(60, "journal.publish.begin=stop:1", "lease")
    assert scene.checkers.look() == []
