"""A job on a real RocketMQ whose drivers are killed, stopped and woken up."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from headrace.client import Admin, Client, PullConsumer
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.protocol.journal_tags import TAG
from tests.faults.broker import QUEUES, send
from tests.faults.verification import problems, read_results
from tests.faults.word_pipeline import EACH, LATEST, LINES

_numbers = itertools.count()


class Scene:
    """A job on a real RocketMQ, and drivers of it in processes of their own."""

    def __init__(self, namesrv: str, folder: Path, lease: str = "60 s") -> None:
        self.namesrv = namesrv
        #: Where drivers keep their local copies of the state.
        self.folder = folder / "job"
        self._lease = lease
        self._started: list[subprocess.Popen[str]] = []
        self.mark = f"-{os.getpid()}-{next(_numbers)}"
        self.client = Client(namesrv)
        for topic in (LINES, LATEST, EACH):
            Admin(self.client).create_topic(topic + self.mark, queues=QUEUES)

    def send(self, lines: list[str]) -> None:
        send(self.namesrv, lines, self.mark)

    def run(self, failpoint: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end, or to a failpoint."""
        return subprocess.run(
            self._command(),
            env=os.environ | {ENVIRONMENT_VARIABLE: failpoint} | environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def start(self, failpoint: str = "", **environment: str) -> subprocess.Popen[str]:
        """Start a driver that a failpoint will stop; give it when it stands still."""
        driver = subprocess.Popen(
            self._command(),
            env=os.environ | {ENVIRONMENT_VARIABLE: failpoint} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(driver)
        deadline = time.monotonic() + 60
        stat = Path(f"/proc/{driver.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < deadline, "the driver did not reach the failpoint"
            time.sleep(0.05)
        return driver

    def wake(self, driver: subprocess.Popen[str]) -> str:
        """Let a driver go on that stands still; give what it prints until its end."""
        driver.send_signal(signal.SIGCONT)
        return driver.communicate(timeout=60)[0]

    def close(self) -> None:
        """End all drivers."""
        for driver in self._started:
            driver.kill()
            driver.communicate()
        self.client.close()

    def _command(self) -> list[str]:
        program = [sys.executable, "-m", "tests.faults.journal_program", self.namesrv]
        return [*program, str(self.folder), self.mark, self._lease]

    def problems(self) -> list[str]:
        return problems(read_results(self.namesrv, self.mark))

    def repeated(self) -> int:
        """Count the messages of output topics that are there twice, by their tags."""
        found: Counter[tuple[str, int, str]] = Counter()
        consumer = PullConsumer(self.client)
        for topic in (LATEST + self.mark, EACH + self.mark):
            for queue in self.client.queues(topic):
                for result in consumer.blocks(queue, 0, consumer.end_offset(queue)):
                    for message in result.messages():
                        found[topic, queue.queue_id, message.properties[TAG]] += 1
        return found.total() - len(found)
