"""The rig of the kill test: driver processes, their Java and Python children, and a feeder."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import psutil

from headrace.client import Client, ClientSettings, PullConsumer
from headrace.errors import TopicNotFoundError
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.runtime.state.home import StateHome
from headrace.topology import Topology
from tests.faults import word_pipeline
from tests.faults.word_pipeline import topology
from tests.run.forking import descendants

PATIENCE = 240.0
"""Seconds for anything on a busy machine; nothing takes nearly as long on an idle one."""

#: The load of two cores that one test keeps busy, and what chance adds, s.
_ALONE, _CHANCE = 2.5, 5.0

_SETTINGS = {
    "--partitions": "2",
    "--master": "local[2,4]",
    "--max-records-per-batch": "40",
}

#: Modules that Spark's workers run: tasks, and the planning of batches.
_WORKERS = {"pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner"}
_FENCED = ("was taken over", "Another driver runs this job now")


def seeded(test: str = "") -> random.Random:
    """Chance that can be had again: its seed is printed, and how to run a long test with it."""
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    again = f"; again: make soak FAULTS_SEED={seed} ARGS=\"'{test}'\"" if test else ""
    print(f"FAULTS_SEED={seed}{again}", flush=True)
    return random.Random(seed)


def await_true(what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience:.0f} s"
        time.sleep(0.1)


def at_most(seconds: float) -> float:
    """Return how long something may take here that may take so long on two quiet cores.

    What was slow may have been so for minutes, and the last minute busier or quieter.
    """
    last_minute, last_five, _ = os.getloadavg()
    return seconds * max(1.0, last_minute / _ALONE, last_five / _ALONE) + _CHANCE


#: For those who wait until a broker is back.
PATIENT = ClientSettings(
    connect_timeout=timedelta(seconds=PATIENCE), retry_timeout=timedelta(seconds=PATIENCE)
)


class Brokers(Protocol):
    """What a job runs on: one broker, or several that are taken in turn."""

    address: str

    def runs(self) -> bool:
        """Whether no process is missing."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a process."""

    def kill(self) -> None:
        """End a process as a crash would."""

    def restart(self) -> None:
        """Start the one that was killed again."""


class Driver:
    """A driver as a person starts it: ``headrace run``, in a process of its own.

    Parameters
    ----------
    namesrv, folder
        Its broker, and the folder of its local state.
    log
        File for what it says.
    failpoints
        Failpoints of the driver and of its workers.
    program
        The file that makes its topology.
    environment
        More variables of its environment.
    options
        Options of its command, in place of the usual ones.
    supervised
        Whether the process only supervises the driver, as it does by default for people.
    switches
        Options without a value.
    """

    def __init__(
        self,
        namesrv: str,
        folder: Path,
        log: Path,
        failpoints: str = "",
        *,
        program: Path = Path(str(word_pipeline.__file__)),
        environment: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        supervised: bool = False,
        switches: Sequence[str] = (),
    ) -> None:
        given = _SETTINGS | dict(options or {})
        given |= {"--namesrv": namesrv, "--data-dir": str(folder)}
        command = [sys.executable, "-m", "headrace", "run", str(program)]
        command += [*switches, *([] if supervised else ["--no-supervise"])]
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *(word for pair in given.items() for word in pair)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {}), ENVIRONMENT_VARIABLE: failpoints},
            )
        self._family: set[psutil.Process] = {psutil.Process(self._process.pid)}

    @property
    def pid(self) -> int:
        """Id of the driver's own process."""
        return self._process.pid

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def runs(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def java(self) -> list[psutil.Process]:
        """The Java process of its Spark."""
        executors = self.executors()
        return [
            child for child in self._children() if _name(child) == "java" and child not in executors
        ]

    def executors(self) -> list[psutil.Process]:
        """Java processes that run tasks, where the master is a cluster on this machine."""
        return [
            child
            for child in self._children()
            if any("CoarseGrainedExecutorBackend" in word for word in _command(child))
        ]

    def workers(self) -> list[psutil.Process]:
        """The Python processes that run its tasks, start others for them, or plan its batches."""
        return [child for child in self._children() if _WORKERS & set(_command(child))]

    def family(self) -> list[psutil.Process]:
        """All processes that descend from it."""
        return self._children()

    def is_stopped(self) -> bool:
        """Whether the process stands still (SIGSTOP)."""
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver's own process."""
        self._children()
        self._process.send_signal(number)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait for the end of the process; its exit code."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end:\n{self.said[-4000:]}") from None

    def stop(self) -> int:
        """Ask for an orderly end; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def clean_up(self) -> None:
        """Kill whatever is left of the driver and of all children that it ever had."""
        with contextlib.suppress(psutil.Error):
            self._children()
        for process in self._family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def _children(self) -> list[psutil.Process]:
        if not self.runs():
            return []
        children = descendants(self.pid)
        self._family |= set(children)
        return children


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@dataclass
class KillTest:
    """One run: a broker, the driver of the moment, and what a person does about a failure."""

    folder: Path
    broker: Brokers
    client: Client
    drivers: list[Driver] = field(default_factory=list)
    #: The job, the file that makes it, and what every driver is told.
    job: Topology = topology
    program: Path = Path(str(word_pipeline.__file__))
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def driver(self) -> Driver:
        """The driver that was started last."""
        return self.drivers[-1]

    def start_driver(
        self, failpoints: str = "", options: Mapping[str, str] | None = None
    ) -> Driver:
        """Start a driver, beside those that may still run."""
        log = self.folder / f"driver-{len(self.drivers) + 1}.log"
        folder = self.folder / "job"
        driver = Driver(
            self.broker.address,
            folder,
            log,
            failpoints,
            program=self.program,
            environment=self.environment,
            options={**self.options, **(options or {})},
        )
        self.drivers.append(driver)
        return driver

    def standing(self) -> tuple[int, int]:
        """Epoch and batch of the newest commit record; zeros before the first."""
        try:
            record = self._home.transactions.plan([], {}, 0, 0).record
        except TopicNotFoundError:
            return 0, 0
        return (0, 0) if record is None else (record.epoch, record.batch)

    @cached_property
    def _home(self) -> StateHome:
        return StateHome.of(self.job.name, self.client)

    def await_batches(self, count: int) -> None:
        """Wait until so many more batches are committed by a driver that lives."""
        wanted = self.standing()[1] + count

        def reached() -> bool:
            assert self.driver.runs(), f"the driver ended:\n{self.driver.said[-4000:]}"
            return self.standing()[1] >= wanted

        await_true(f"batch {wanted}", reached)

    def await_epoch(self, epoch: int) -> None:
        """Wait until a driver has opened an epoch."""

        def reached() -> bool:
            assert self.driver.runs(), f"the driver ended:\n{self.driver.said[-4000:]}"
            return self.standing()[0] >= epoch

        await_true(f"epoch {epoch}", reached)

    def await_caught_up(self) -> None:
        """Wait until the job has committed all that is in its source topic."""
        consumer = PullConsumer(self.client, self.job.name)
        topics = {topic for source in self.job.sources for topic in source.topics}
        queues = [queue for topic in topics for queue in self.client.queues(topic)]

        def done() -> bool:
            assert self.driver.runs(), f"the driver ended:\n{self.driver.said[-4000:]}"
            return all(consumer.committed(q) == consumer.end_offset(q) for q in queues)

        await_true("caught up", done)

    # What is killed, and what a person does then.

    def kill_driver(self) -> None:
        """The driver dies: start it again."""
        driver = self.driver
        driver.signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
        self.start_driver()

    def kill_executor(self, pick: Callable[[list[psutil.Process]], psutil.Process]) -> None:
        """An executor dies: nothing is to be done."""
        driver = self.driver
        await_true("an executor", lambda: bool(driver.executors()))
        pick(sorted(driver.executors(), key=lambda process: process.pid)).kill()

    def kill_java(self) -> None:
        """Java dies: the driver goes on by itself, in a new one and a new epoch."""
        epoch = self.standing()[0]
        (java,) = self.driver.java()
        java.kill()
        self.await_epoch(epoch + 1)
        assert self.driver.runs(), self.driver.said

    def put_to_sleep(self) -> None:
        """The driver stands still for longer than it takes another one to take over."""
        sleeper = self.driver
        self._take_over_from(sleeper, psutil.Process(sleeper.pid))

    def put_java_to_sleep(self) -> None:
        """Java stands still, so that its driver waits for it, while another one takes over."""
        sleeper = self.driver
        (java,) = sleeper.java()
        self._take_over_from(sleeper, java)

    def _take_over_from(self, sleeper: Driver, process: psutil.Process) -> None:
        process.suspend()
        try:
            self.take_over()
            self.await_batches(2)
        finally:
            process.resume()
        assert self.is_fenced(sleeper), sleeper.said

    def take_over(self, failpoints: str = "") -> Driver:
        """Start a driver beside the one that runs, and wait until it has opened its epoch."""
        epoch = self.standing()[0]
        driver = self.start_driver(failpoints)
        self.await_epoch(epoch + 1)
        return driver

    def is_fenced(self, driver: Driver) -> bool:
        """Wait for the end of a driver, and tell whether it ended because another took over."""
        return driver.wait() == 3 and any(text in driver.said for text in _FENCED)

    def kill_worker(self, pick: Callable[[list[psutil.Process]], psutil.Process]) -> None:
        """A Python worker dies: nothing is to be done."""
        driver = self.driver
        await_true("a Python worker", lambda: bool(driver.workers()))
        pick(sorted(driver.workers(), key=lambda worker: worker.pid)).kill()

    def kill_broker(self) -> None:
        """The broker dies: start it again, the job goes on by itself."""
        self.broker.kill()
        self.broker.restart()

    def clean_up(self) -> None:
        """Leave no process behind."""
        for driver in self.drivers:
            driver.clean_up()


@contextlib.contextmanager
def kill_test(folder: Path, broker: Brokers, **more: Any) -> Iterator[KillTest]:
    """A kill test for the time of a test."""
    with Client(broker.address, PATIENT) as client:
        run = KillTest(folder, broker, client, **more)
        try:
            yield run
        finally:
            run.clean_up()
