"""A worker of Connect in processes of its own, as people run it, and what is asked of it by REST."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from headrace.client import Client, PullConsumer
from headrace.errors import TopicNotFoundError

__all__ = ["ConnectRest", "ConnectWorker", "await_true", "rate_of", "running_connect", "stored"]

_READY = re.compile(r"listening on (http://\S+?),")
#: Seconds between two looks at what a connector has done.
_LOOK = 0.02


@dataclass(frozen=True, slots=True)
class ConnectRest:
    """What Kafka Connect's REST API offers; it is the same for every worker.

    Parameters
    ----------
    http
        Knows where the worker is.
    patience
        How long any step may take.
    """

    http: httpx.Client
    patience: timedelta

    @contextmanager
    def connector(self, name: str, config: Mapping[str, str]) -> Iterator[None]:
        """Have a connector until the block is left."""
        self.put(name, config)
        try:
            yield
        finally:
            self.http.delete(f"/connectors/{name}").raise_for_status()

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector."""
        answer = self.http.put(f"/connectors/{name}/config", json=dict(config))
        assert answer.is_success, answer.text

    def await_running(self, count: int) -> None:
        """Wait until so many connectors and a task of each run."""

        def run() -> bool:
            found = self.statuses()
            return len(found) == count and all(map(_runs, found))

        # Each look costs the worker something.
        await_true(f"{count} connectors that run", run, self.patience, pause=0.2)

    def fail_if_failed(self) -> None:
        """Raise what a connector or a task failed with, where one has."""
        for status in self.statuses():
            for unit in (status["connector"], *status["tasks"]):
                assert unit["state"] != "FAILED", f"{status['name']}: {unit['trace']}"

    def statuses(self) -> list[Any]:
        """Give the status of every connector."""
        found = self.http.get("/connectors", params={"expand": "status"}).raise_for_status().json()
        return [one["status"] for one in found.values()]


@dataclass(frozen=True, slots=True)
class ConnectWorker(ConnectRest):
    """A worker of ours."""

    #: Id of its first process.
    pid: int


@contextmanager
def running_connect(
    address: str, folder: Path, patience: timedelta, *options: str
) -> Iterator[ConnectWorker]:
    """Run ``headrace connect worker`` on a cluster until the block is left.

    Parameters
    ----------
    address
        Of the name server.
    folder
        For the worker's data and its log.
    patience
        How long its start, and any later step, may take.
    options
        More options of the command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "worker.out"
    command = [sys.executable, "-m", "headrace", "connect", "worker", "--port", "0"]
    command += ["--namesrv", address, "--data", str(folder / "data"), "--worker-id", "bench"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        with httpx.Client(base_url=_url(process, log, patience), timeout=60) as http:
            yield ConnectWorker(http, patience, process.pid)
    finally:
        process.terminate()
        process.wait(120)


def _url(process: subprocess.Popen[bytes], log: Path, patience: timedelta) -> str:
    found: list[str] = []

    def ready() -> bool:
        assert process.poll() is None, f"the worker has ended: {log.read_text()}"
        found.extend(_READY.findall(log.read_text()))
        return bool(found)

    await_true("a worker that is ready", ready, patience)
    return found[0]


def _runs(status: Mapping[str, Any]) -> bool:
    units = [status["connector"], *status["tasks"]]
    return len(units) > 1 and all(unit["state"] == "RUNNING" for unit in units)


def await_true(
    what: str, condition: Callable[[], bool], patience: timedelta, *, pause: float = _LOOK
) -> None:
    """Wait until something holds, with so many seconds between two looks."""
    deadline = time.monotonic() + patience.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {patience}")
        time.sleep(pause)


def rate_of(
    count: Callable[[], int], total: int, worker: ConnectRest, *, look: float = _LOOK
) -> float:
    """Watch a count grow; give what is added in a second.

    The rate runs from the look that first shows a tenth of the total to the one that shows all of
    it; what starts a connector is not in it.

    Parameters
    ----------
    count
        What is there by now.
    total
        What will be there in the end.
    worker
        Tells when there is nothing more to wait for.
    look
        Seconds between two looks: many where a look costs little.
    """
    begin = looked = time.monotonic()
    before = 0
    while (shown := count()) < total:
        now = time.monotonic()
        if not before and shown >= total / 10:
            begin, before = now, shown
        if now > looked + 1:
            looked = now
            worker.fail_if_failed()
        if now > begin + worker.patience.total_seconds():
            raise TimeoutError(f"{shown} of {total} came within {worker.patience}")
        time.sleep(look)
    return (total - before) / (time.monotonic() - begin)


def stored(client: Client, topic: str) -> int:
    """Count the messages of a topic; one that is not there has none."""
    with suppress(TopicNotFoundError):
        return sum(PullConsumer(client).end_offsets(client.queues(topic)).values())
    return 0
