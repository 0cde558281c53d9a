"""A job of drivers without Spark, in processes that are killed and put to sleep: many a minute."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headrace.client import PullConsumer
from headrace.errors import FencedError, HeadraceError
from headrace.runtime.commit.drivers import DriverName
from tests.faults.harness import Brokers, await_true
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import Sent
from tests.faults.proof_fronts import Checkers, Front, job_of
from tests.faults.proof_pipeline import Names

_BATCH_SIZE = 120
_IDLE = 0.02
_REQUEST = "1 s"
#: A broker that stands still does so for twice as long as its clients wait for an answer.
_STILL = 2.0
_FENCED, _TRY_AGAIN = 3, 4


def drive_on(
    namesrv: str, folder: Path, names: Names, front: Front, more: Mapping[str, Any]
) -> None:
    """Be a driver until another one takes over, or a failure that a new driver may mend."""
    name, job = str(DriverName.here()), job_of(names, front)
    try:
        with LocalDriver(
            namesrv, folder, _BATCH_SIZE, job=job, name=name, request_timeout=_REQUEST, **more
        ) as driver:
            while True:
                if not driver.catch_up():
                    time.sleep(_IDLE)
    except FencedError:
        sys.exit(_FENCED)
    except HeadraceError as error:
        if not error.retriable:
            raise
        sys.exit(_TRY_AGAIN)


@dataclass
class LocalRun:
    """A broker, the driver of the moment, and what a person does about a failure."""

    broker: Brokers
    folder: Path
    names: Names
    checkers: Checkers
    front: Front = "streams"
    #: More settings of every driver.
    more: Mapping[str, Any] = field(default_factory=dict)
    drivers: list[BaseProcess] = field(default_factory=list)
    #: Drivers that gave up after a failure that may pass, and were started again.
    again: int = 0
    looks: int = 0
    machines: int = 1

    def start(self) -> None:
        """Start a driver on the machine of the moment."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])
        place = self.folder / f"machine-{self.machines}"
        arguments = (self.broker.address, place, self.names, self.front, self.more)
        driver = context.Process(target=drive_on, args=arguments, daemon=True)
        driver.start()
        self.drivers.append(driver)

    @property
    def driver(self) -> BaseProcess:
        """The driver that was started last."""
        return self.drivers[-1]

    def await_commits(self, count: int = 1) -> None:
        """Wait until the job has committed so many times more."""
        self._look()
        wanted = self._commits() + count
        await_true(f"commit {wanted}", lambda: self._goes_on() and self._commits() >= wanted)

    def await_caught_up(self, sent: Sent) -> None:
        """Wait until everything that was sent is committed and published."""
        client = self.checkers.client
        consumer = PullConsumer(client, self.names.job)
        queues = [queue for topic in self.names.sources for queue in client.queues(topic)]

        def done() -> bool:
            self._goes_on()
            return sum(consumer.committed(queue) or 0 for queue in queues) == sent.messages

        await_true("caught up", done)

    def _goes_on(self) -> bool:
        """Start a driver that gave up again, and let the checkers look."""
        if self.driver.exitcode is not None:
            assert self.driver.exitcode == _TRY_AGAIN, self.driver.exitcode
            self.again += 1
            self.start()
        self._look()
        return True

    def _look(self) -> None:
        self.looks += 1
        assert self.checkers.look() == []

    def _commits(self) -> int:
        return sum(record.kind == "commit" for record in self.checkers.bank.history)

    def kill_driver(self, _: random.Random) -> None:
        """The driver dies: another one goes on."""
        self.driver.kill()
        self.driver.join()
        self.start()

    def stop_driver(self, chance: random.Random) -> None:
        """The driver stands still, another one goes on, the first one wakes and is refused.

        The other one is on a machine of its own: this one still holds the locks of its state.
        """
        sleeper = self.driver
        assert sleeper.pid is not None
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            self.machines += 1
            self.start()
            self.await_commits(chance.randint(0, 3))
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.join(60)
        # A sleeper that had nothing planned may have given up before it heard of its successor.
        assert sleeper.exitcode in (_FENCED, _TRY_AGAIN), sleeper.exitcode

    def kill_broker(self, _: random.Random) -> None:
        """The broker dies and comes back."""
        self.broker.kill()
        self.broker.restart()

    def stop_broker(self, _: random.Random) -> None:
        """The broker stands still, wakes, and finds what was sent to it meanwhile, more than once."""
        self.broker.signal(signal.SIGSTOP)
        try:
            time.sleep(_STILL)
        finally:
            self.broker.signal(signal.SIGCONT)

    def strikes(self) -> Mapping[str, Callable[[random.Random], None]]:
        """What may happen."""
        return {
            "SIGKILL driver": self.kill_driver,
            "SIGSTOP driver": self.stop_driver,
            "SIGKILL broker": self.kill_broker,
            "SIGSTOP broker": self.stop_broker,
        }

    def clean_up(self) -> None:
        """Leave no process behind."""
        for driver in self.drivers:
            driver.kill()
            driver.join()
