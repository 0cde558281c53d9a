"""Whatever way a driver ends, its Java and its Python workers are gone some seconds later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headrace.client import Admin, Producer
from headrace.protocol.messages import Message
from tests.faults import deaf_program
from tests.faults.broker import running_broker
from tests.faults.deaf_program import COPIES, ERROR, LAST, LINES
from tests.faults.harness import Driver, KillTest, await_true, kill_test
from tests.run.forking import descendants

pytestmark = pytest.mark.spark

PROGRAM = Path(str(deaf_program.__file__))
#: Java starts its Python workers itself: who is whose child is the matter here.
PLAIN = {"PYSPARK_PYTHON": sys.executable}
#: Seconds in which all of a family must have ended.
SOON = 10.0


@contextmanager
def deaf_job(folder: Path) -> Iterator[KillTest]:
    """A job whose tasks hold their batch up for minutes, when they are told to."""
    job = deaf_program.topology
    with (
        running_broker(folder / "broker") as broker,
        kill_test(folder, broker, job=job, program=PROGRAM) as run,
    ):
        for topic in (LINES, COPIES):
            Admin(run.client).create_topic(topic, queues=1)
        yield run


def send(run: KillTest, line: str) -> None:
    Producer(run.client).send(Message(topic=LINES, body=line.encode()))


def family_in_a_batch(pid: int) -> list[psutil.Process]:
    """Wait until a task of a driver is deaf; give all processes below the driver."""

    def is_deaf(process: psutil.Process) -> bool:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return False
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        return bool(ignored >> (signal.SIGTERM - 1) & 1) and process.name() != "java"

    await_true("a deaf task", lambda: any(map(is_deaf, descendants(pid))))
    family = descendants(pid)
    assert any(child.name() == "java" for child in family)
    return family


def assert_all_end(family: list[psutil.Process], since: float) -> None:
    gone, alive = psutil.wait_procs(family, timeout=SOON - (time.monotonic() - since))
    assert not alive, f"{len(gone)} ended, not {[one.cmdline()[:4] for one in alive]}"


def started(run: KillTest, *, supervised: bool = False) -> tuple[Driver, psutil.Process]:
    """Start a driver; give the command's process, and the one that drives."""
    number = len(run.drivers)
    log, folder = run.folder / f"driver-{number}.log", run.folder / "job"
    driver = Driver(
        run.broker.address,
        folder,
        log,
        program=PROGRAM,
        supervised=supervised,
        environment=PLAIN,
    )
    run.drivers.append(driver)
    if not supervised:
        return driver, psutil.Process(driver.pid)

    def drivers() -> list[psutil.Process]:
        children = psutil.Process(driver.pid).children()
        return [child for child in children if "--channel" in child.cmdline()]

    await_true("a driver", lambda: bool(drivers()))
    return driver, drivers()[0]


@pytest.mark.budget(20)  # A Java starts, and may end by itself for some seconds.
def test_nothing_is_left_of_a_driver_that_is_killed_in_a_batch(tmp_path: Path) -> None:
    with deaf_job(tmp_path) as run:
        send(run, LAST)
        driver, _ = started(run)
        family = family_in_a_batch(driver.pid)
        began = time.monotonic()
        driver.signal(signal.SIGKILL)
        assert_all_end(family, began)


@pytest.mark.soak
def test_nothing_is_left_of_three_drivers_that_are_killed_in_a_row(tmp_path: Path) -> None:
    with deaf_job(tmp_path) as run:
        send(run, LAST)
        families = []
        for _ in range(3):
            driver, _ = started(run)
            families += family_in_a_batch(driver.pid)
            driver.signal(signal.SIGKILL)
            driver.wait()
        assert_all_end(families, time.monotonic())


# A supervised driver that is killed alone is a matter of test_supervision.py, too.
@pytest.mark.slow
@pytest.mark.parametrize(
    "who",
    [
        "supervisor",
        pytest.param("driver", marks=pytest.mark.soak),
        pytest.param("both", marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_where_drivers_are_supervised(tmp_path: Path, who: str) -> None:
    with deaf_job(tmp_path) as run:
        send(run, LAST)
        supervisor, driver = started(run, supervised=True)
        family = [driver, *family_in_a_batch(driver.pid)]
        if who in ("supervisor", "both"):
            psutil.Process(supervisor.pid).kill()
        began = time.monotonic()
        if who in ("driver", "both"):
            driver.kill()
        assert_all_end(family, began)
        print(f"{who}: all ended after {time.monotonic() - began:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.soak), "an error"]
)
def test_nothing_is_left_of_a_driver_that_ends_by_itself(tmp_path: Path, how: str) -> None:
    with deaf_job(tmp_path) as run:
        send(run, LAST if how.startswith("SIG") else ERROR)
        driver, process = started(run)
        family = family_in_a_batch(process.pid)
        began = time.monotonic()
        if how.startswith("SIG"):
            driver.signal(signal.Signals[how])
        driver.wait()
        ended = time.monotonic()
        assert_all_end(family, ended)
        print(f"{how}: {ended - began:.1f} s, all after {time.monotonic() - ended:.1f} s")


@pytest.mark.slow
def test_nothing_is_left_of_a_program_of_a_users_own(tmp_path: Path) -> None:
    with deaf_job(tmp_path) as run:
        send(run, LAST)
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), run.broker.address, str(tmp_path / "job")],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **PLAIN},
        ) as program:
            try:
                family = family_in_a_batch(program.pid)
            finally:
                began = time.monotonic()
                program.kill()
        assert_all_end(family, began)
