"""The broker of the commit topic, a real RocketMQ, stands still between staging and commit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.failpoints import ENVIRONMENT_VARIABLE
from tests.clusters import running_rocketmq
from tests.faults.broker import make_lines
from tests.faults.test_journal_kills import Scene

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(240)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "rocketmq"
    found.mkdir()
    return found


@pytest.fixture
def scene(folder: Path, tmp_path: Path) -> Iterator[Scene]:
    with running_rocketmq(folder) as cluster:
        scene = Scene(cluster.namesrv, tmp_path)
        yield scene
        scene.client.close()


def await_stopped(driver: subprocess.Popen[str]) -> None:
    process = psutil.Process(driver.pid)
    deadline = time.monotonic() + 60
    while process.status() != psutil.STATUS_STOPPED:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline, "the driver did not come to the commit"
        time.sleep(0.02)


# Longer than a request may take, so that every answer is in doubt; and as long as TX15 has it.
@pytest.mark.parametrize("seconds", [12.0, pytest.param(30.0, marks=pytest.mark.soak)])
def test_commit_topic_that_is_away_is_waited_for_and_no_batch_is_missing(
    scene: Scene, folder: Path, seconds: float
) -> None:
    scene.send(make_lines(100))
    broker = int((folder / "broker.pid").read_text())
    with subprocess.Popen(
        scene.command(),
        env=os.environ | {ENVIRONMENT_VARIABLE: "journal.commit.before=stop:3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        try:
            await_stopped(driver)
            os.kill(broker, signal.SIGSTOP)
            driver.send_signal(signal.SIGCONT)
            time.sleep(seconds)
            assert driver.poll() is None, driver.communicate()
        finally:
            os.kill(broker, signal.SIGCONT)
        said, errors = driver.communicate(timeout=120)
    # The same driver, in the same epoch, has done all of it.
    assert said.split() == ["open", "1", "batches", "5"], errors
    assert (scene.problems(), scene.repeated()) == ([], 0)
