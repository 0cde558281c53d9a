"""Drivers that run one job after the other in one Spark session, and are followed when they die.

A session takes seconds to start.  So a driver keeps it from job to job, and once a driver has
died, the next but one starts while the next one is at work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from headrace import JobSettings, StreamJob
from headrace.failpoints import ENVIRONMENT_VARIABLE, arm
from headrace.spark.session import get_session
from tests.faults.enumerated_job import Place
from tests.faults.harness import PATIENCE
from tests.run.forking import descendants
from tests.without import without

_CAUGHT_UP = timedelta(seconds=PATIENCE)


@dataclass(frozen=True, slots=True)
class Order:
    """Run a job in a folder until it has caught up; without a job, stop."""

    place: Place | None = None
    folder: Path = Path()
    #: Safeguards that the driver goes without.
    without: str = ""


@dataclass(frozen=True, slots=True)
class Hosting:
    """What all drivers are told: settings of their jobs, and folders for hits and for logs."""

    settings: Mapping[str, Any]
    points: Path
    logs: Path


def serve(orders: Connection, hosting: Hosting, number: int) -> None:
    """Be a driver: obey orders until there are no more; empty answers mean well done."""
    # Its Java process belongs to the group, so that nobody is left when the group is ended.
    os.setpgid(0, 0)
    # For its workers; this process has looked at its environment already.
    os.environ[ENVIRONMENT_VARIABLE] = f"folder:{hosting.points}"
    arm(os.environ[ENVIRONMENT_VARIABLE])
    folder = hosting.logs / f"host-{number}"
    get_session(JobSettings(**hosting.settings, data_dir=folder))
    orders.send("")
    host = _Host(hosting)
    with contextlib.suppress(EOFError):
        while True:
            orders.send(host.obey(orders.recv()))


class _Host:
    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._at = Order()
        self._job: StreamJob | None = None
        #: Safeguards that it goes without.
        self._taken = ExitStack()

    def obey(self, order: Order) -> str:
        try:
            if order != self._at:
                self._change_to(order)
            if self._job is not None:
                self._job.await_caught_up(_CAUGHT_UP)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _change_to(self, order: Order) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None
        self._at = order
        self._taken.close()
        self._taken.enter_context(without(order.without))
        if order.place is not None:
            settings = JobSettings(**self._hosting.settings, data_dir=order.folder)
            self._job = StreamJob(order.place.topology(), settings).start()


class _Process:
    """A driver, seen from outside."""

    _numbers = 0

    def __init__(self, hosting: Hosting) -> None:
        _Process._numbers += 1
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._orders, theirs = context.Pipe()
        arguments = (theirs, hosting, _Process._numbers)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, order: Order) -> str | None:
        """Give an order; the answer, or None when the driver died over it."""
        if not self._ready:
            assert self._answer() == "", "Spark did not start"
            self._ready = True
        # It may have died after its last answer: its job goes on until the next order.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._orders.send(order)
        return self._answer()

    def _answer(self) -> str | None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not wait([self._orders, self._process.sentinel], timeout=1):
            assert time.monotonic() < deadline, "a driver hangs"
        # Whoever dies may have sent nothing; whoever lives has said something.
        if self._orders.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                answer = self._orders.recv()
                assert isinstance(answer, str)
                return answer
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL, f"ended with {self._process.exitcode}"
        return None

    def end(self) -> None:
        """End the driver with everything that it has started."""
        assert self._process.pid is not None
        with contextlib.suppress(psutil.Error):
            for child in descendants(self._process.pid):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._orders.close()


class SparkHosts:
    """The driver of the moment, and the one that waits for its death.

    Parameters
    ----------
    hosting
        What they are told.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._current = _Process(hosting)
        self._spare: _Process | None = None
        self._dead: list[_Process] = []

    def obey(self, order: Order) -> int:
        """Have an order obeyed, by one driver after the other; how many died over it."""
        deaths = 0
        while (answer := self._current.ask(order)) is None:
            deaths += 1
            # What it leaves behind ends by itself, or is a zombie that may do no harm.
            self._dead.append(self._current)
            self._current = self._spare or _Process(self._hosting)
            self._spare = _Process(self._hosting)
        assert answer == "", answer
        return deaths

    def close(self) -> None:
        """End all drivers."""
        for process in (self._current, self._spare, *self._dead):
            if process is not None:
                process.end()
