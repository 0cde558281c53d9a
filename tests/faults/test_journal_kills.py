"""Exactly once as on RocketMQ: drivers are killed at every step, and the next one goes on.

The embedded broker takes this protocol too, as all it needs is ordinary messages and a lock.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene

pytestmark = pytest.mark.timeout(180)

_KILLED = -signal.SIGKILL


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(cluster.namesrv, tmp_path)
    yield scene
    scene.close()


def test_without_faults_all_checks_pass(scene: Scene) -> None:
    scene.send(make_lines(100))
    done = scene.run()
    assert done.stdout.split() == ["open", "1", "batches", "5"], done.stderr
    assert (scene.problems(), scene.repeated()) == ([], 0)
    scene.send(make_lines(40, first=100))
    # The first driver ended in order: the second does not wait.
    assert scene.run().stdout.split() == ["open", "2", "batches", "2"]
    assert (scene.problems(), scene.repeated()) == ([], 0)


# The enumeration kills at each of them, too.
@pytest.mark.parametrize(
    "failpoint",
    [
        "journal.commit.appended=kill:3",
        "journal.publish.sent=kill:9",
        *(
            pytest.param(failpoint, marks=pytest.mark.soak)
            for failpoint in (
                "task.processed=kill:5",
                "journal.staged=kill:7",
                "journal.commit.before=kill:3",
                "journal.publish.begin=kill:3",
                "journal.publish.sent=kill:1",
                "journal.publish.sent=kill:26",
                "journal.publish.done=kill:3",
            )
        ),
    ],
)
def test_killed_driver_leaves_each_result_once(scene: Scene, failpoint: str) -> None:
    scene.send(make_lines(100))
    killed = scene.run(failpoint)
    assert killed.returncode == _KILLED, killed.stdout + killed.stderr
    done = scene.run()
    assert done.returncode == 0, done.stderr
    assert (scene.problems(), scene.repeated()) == ([], 0)


def test_killed_on_top_of_an_orderly_end_it_leaves_each_result_once(scene: Scene) -> None:
    scene.send(make_lines(40))
    assert scene.run().returncode == 0
    for failpoint in ("job.before_open=kill", "job.opened=kill", "job.opened=kill"):
        assert scene.run(failpoint).returncode == _KILLED
    scene.send(make_lines(40, first=40))
    done = scene.run()
    assert done.returncode == 0, done.stderr
    assert (scene.problems(), scene.repeated()) == ([], 0)
