"""Exactly once on a real RocketMQ: drivers are killed at every step, and the next goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Admin, Client, PullConsumer
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.protocol.journal_tags import TAG
from tests.clusters import Cluster
from tests.faults.broker import QUEUES, make_lines, send
from tests.faults.verification import problems, read_results
from tests.faults.word_pipeline import EACH, LATEST, LINES

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(180)]

_numbers = itertools.count()
_KILLED = -signal.SIGKILL


class Scene:
    """A job on a real RocketMQ, and drivers of it in processes of their own."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self.namesrv = namesrv
        self.mark = f"-{os.getpid()}-{next(_numbers)}"
        self.client = Client(namesrv)
        self._folder = folder
        for topic in (LINES, LATEST, EACH):
            Admin(self.client).create_topic(topic + self.mark, queues=QUEUES)

    def send(self, lines: list[str]) -> None:
        send(self.namesrv, lines, self.mark)

    def run(self, failpoint: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end, or to a failpoint."""
        return subprocess.run(
            self.command(),
            env=os.environ | {ENVIRONMENT_VARIABLE: failpoint} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def command(self, *options: str) -> list[str]:
        program = [sys.executable, "-m", "tests.faults.journal_program", self.namesrv]
        return [*program, str(self._folder / "job"), self.mark, *options]

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


@pytest.fixture
def scene(rocketmq: Cluster, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(rocketmq.namesrv, tmp_path)
    yield scene
    scene.client.close()


def test_without_faults_all_checks_pass(scene: Scene) -> None:
    scene.send(make_lines(100))
    done = scene.run()
    assert done.stdout.split() == ["open", "1", "batches", "5"], done.stderr
    assert (scene.problems(), scene.repeated()) == ([], 0)
    scene.send(make_lines(40, first=100))
    # The first driver ended in order: the second does not wait.
    assert scene.run().stdout.split() == ["open", "2", "batches", "2"]
    assert (scene.problems(), scene.repeated()) == ([], 0)


@pytest.mark.parametrize(
    "failpoint",
    [
        "task.processed=kill:5",
        "journal.staged=kill:7",
        "journal.commit.before=kill:3",
        "journal.commit.appended=kill:3",
        "journal.publish.begin=kill:3",
        "journal.publish.sent=kill:1",
        "journal.publish.sent=kill:9",
        "journal.publish.sent=kill:26",
        "journal.publish.done=kill:3",
    ],
)
def test_killed_driver_leaves_each_result_once(scene: Scene, failpoint: str) -> None:
    scene.send(make_lines(100))
    killed = scene.run(failpoint)
    assert killed.returncode == _KILLED, killed.stdout + killed.stderr
    done = scene.run()
    assert done.returncode == 0, done.stderr
    assert (scene.problems(), scene.repeated()) == ([], 0)
