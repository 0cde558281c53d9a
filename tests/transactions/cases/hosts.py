"""Processes that hold a Spark session for drivers of cases, and lend it to one after the other."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from tests.run.forking import descendants
from tests.transactions.cases import spark
from tests.transactions.cases.spark import Order

__all__ = ["HOSTS", "Host", "HostedDriver", "Hosts"]

_ROOT = Path(__file__).parents[3]
_LOOK = 0.02
#: More than one waits for work only where a case kills one driver after the other.
_MOST_IDLE = 2


class Host:
    """A process with a Spark session.

    Parameters
    ----------
    on
        Which of the masters it has.
    environment
        What its processes find in theirs, beside what each driver needs.
    """

    def __init__(self, on: str, environment: Mapping[str, str]) -> None:
        self.kind = on, environment
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-host-")
        self.folder = Path(self._scratch.name)
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", spark.__name__, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    **environment,
                    **spark.environment_of(self.folder, on),
                },
            )
        self._family: list[psutil.Process] = []

    @property
    def is_alive(self) -> bool:
        """Whether it can take another driver."""
        return self.process.poll() is None

    def run(self, order: Order) -> HostedDriver:
        """Start a driver; there must be no other that runs here."""
        assert self.process.stdin is not None
        self._note_family()
        # One that has just died is noticed by whoever waits for the driver.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(order) + b"\n")
            self.process.stdin.flush()
        return HostedDriver(self, Path(order.answer))

    def kill(self) -> None:
        """End the process alone, as a crash would."""
        self._note_family()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it with everything that it has started."""
        self.kill()
        for process in self._family:
            with contextlib.suppress(psutil.Error):
                for each in (*descendants(process.pid), process):
                    each.kill()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    def _note_family(self) -> None:
        # Once it is dead, nobody knows any more whose children they were.
        with contextlib.suppress(psutil.Error):
            self._family += descendants(self.process.pid)


class HostedDriver:
    """A driver in a host: to others, a process of its own."""

    def __init__(self, host: Host, answer: Path) -> None:
        self._host = host
        self._answer = answer
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Number of the process that it runs in."""
        return self._host.process.pid

    def poll(self) -> int | None:
        """Give its exit status; None while it runs."""
        if self._code is None:
            died = self._host.process.poll()
            self._code = int(self._answer.read_text()) if self._answer.exists() else died
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; give its exit status.

        Raises
        ------
        subprocess.TimeoutExpired
            It did not end.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a driver on Spark", timeout or 0)
            time.sleep(_LOOK)
        return code

    def kill(self) -> None:
        """Crash, with the process that it runs in; nothing where it has ended."""
        if self.poll() is None:
            self._host.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process that it runs in."""
        self._host.process.send_signal(number)

    def release(self) -> None:
        """Give the host back, or end it where the driver has not ended."""
        if self.poll() is None or not self._host.is_alive:
            self._host.close()
        else:
            HOSTS.give_back(self._host)


class Hosts:
    """The hosts that wait for work."""

    def __init__(self) -> None:
        self._idle: list[Host] = []
        self._lock = threading.Lock()

    def take(self, on: str, environment: Mapping[str, str]) -> Host:
        """Give a host with a master and an environment, a new one where none waits."""
        with self._lock:
            for host in list(self._idle):
                if not host.is_alive:
                    self._idle.remove(host)
                    host.close()
                elif host.kind == (on, environment):
                    self._idle.remove(host)
                    return host
        return Host(on, environment)

    def make_ready(self, on: str, environment: Mapping[str, str]) -> None:
        """Let Spark start for a driver that will come soon, while another one runs."""
        if not any(host.kind == (on, environment) for host in self._idle):
            self.give_back(Host(on, environment))

    def give_back(self, host: Host) -> None:
        """Let a host wait for work."""
        with self._lock:
            self._idle.append(host)
            while len(self._idle) > _MOST_IDLE:
                self._idle.pop(0).close()

    def close(self) -> None:
        """End all that wait."""
        while self._idle:
            self._idle.pop().close()


HOSTS = Hosts()
"""The hosts of this process; they end with it."""

atexit.register(HOSTS.close)
