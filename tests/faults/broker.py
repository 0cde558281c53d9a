"""The broker of a fault test: a process that dies and comes back at its old place."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from headrace.broker import spawn_broker
from headrace.client import Admin, Client, Producer
from headrace.failpoints import ENVIRONMENT_VARIABLE
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import EACH, LATEST, LINES

QUEUES = 4
_VOCABULARY = [f"word{number}" for number in range(40)]
_PATIENCE = timedelta(seconds=120)


def make_lines(count: int, seed: int = 0, first: int = 0) -> list[str]:
    """Lines of a few common words, and one that no other line has: it shows loss and doubling."""
    chance = random.Random(seed)
    return [
        " ".join([f"line{number}", *chance.choices(_VOCABULARY, k=3)])
        for number in range(first, first + count)
    ]


class Broker:
    """An embedded broker in a process of its own, with some topics.

    Parameters
    ----------
    data
        Its folder.
    options, environment
        As of ``spawn_broker``; failpoints hold for the first process only, unless they are
        those of a folder.
    topics
        What it has from the beginning: those of the job by default.
    """

    def __init__(
        self,
        data: Path,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        topics: Sequence[str] = (LINES, LATEST, EACH),
    ) -> None:
        self._data = data
        self._options = options
        self._environment = dict(environment or {})
        self._process = spawn_broker(
            data,
            options=options,
            environment=self._environment,
            patience=_PATIENCE,
        )
        if not self._environment.get(ENVIRONMENT_VARIABLE, "").startswith("folder:"):
            self._environment.pop(ENVIRONMENT_VARIABLE, None)
        self.address = self._process.address
        with Client(self.address) as client:
            for topic in topics:
                Admin(client).create_topic(topic, queues=QUEUES)

    def kill(self) -> None:
        """End the process as a crash would, if it still runs."""
        self._process.kill()

    def runs(self) -> bool:
        """Whether the process is still there."""
        return self._process.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process has ended by itself; its exit code."""
        code = self._process.process.wait(60)
        self._process.kill()
        return code

    def restart(
        self, environment: dict[str, str] | None = None, options: Sequence[str] | None = None
    ) -> None:
        """Start again on the same folder and port, from now on with these, too."""
        self._environment |= environment or {}
        self._options = self._options if options is None else options
        self._process = spawn_broker(
            self._data,
            int(self.address.rpartition(":")[2]),
            options=self._options,
            environment=self._environment,
            patience=_PATIENCE,
        )


@contextmanager
def running_broker(
    data: Path,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    topics: Sequence[str] = (LINES, LATEST, EACH),
) -> Iterator[Broker]:
    """A broker for the time of a test."""
    broker = Broker(data, options, environment, topics)
    try:
        yield broker
    finally:
        broker.kill()


@contextmanager
def kept_running(broker: Broker | None) -> Iterator[list[int]]:
    """Start a broker, if there is one, again whenever it dies; gives the exit codes."""
    kills: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if broker is not None and not broker.runs():
                kills.append(broker.wait())
                broker.restart()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def commit_under_a_dying_broker(driver: LocalDriver, broker: Broker) -> None:
    """Commit a batch while a failpoint kills the broker, and start that again."""
    end = driver.process()
    committing = threading.Thread(target=driver.commit, args=(end,))
    committing.start()
    try:
        assert broker.wait() == -9
        broker.restart()
    finally:
        committing.join(60)


def send(address: str, lines: Sequence[str], mark: str = "") -> None:
    """Send lines to the queues of the source topic in turn."""
    with Client(address) as client:
        send_lines(client, lines, mark)


def send_lines(client: Client, lines: Sequence[str], mark: str = "") -> None:
    """As :func:`send`, over a connection that is there."""
    producer = Producer(client)
    for number, queue in enumerate(client.queues(LINES + mark, for_="write")):
        part = [line.encode() for line in lines[number::QUEUES]]
        if part:
            producer.send_columns(queue, pa.array(part, pa.binary()))
