"""Each safeguard for RocketMQ: with it results are there once, without it a check fails."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene
from tests.run.servers import LEASE
from tests.without import going_without

pytestmark = pytest.mark.timeout(180)

_KILLED = -signal.SIGKILL


@pytest.fixture
def scene(namesrv: str, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(namesrv, tmp_path, f"{LEASE} s")
    scene.send(make_lines(100))
    yield scene
    scene.close()


@pytest.mark.slow
def test_driver_that_sleeps_while_it_publishes_sends_nothing_more(scene: Scene) -> None:
    sleeper = scene.start("journal.publish.begin=stop:2")
    successor = scene.run()
    assert successor.returncode == 0, successor.stderr
    assert "waiting for its lease" in successor.stderr
    assert "LeaseLostError" in scene.wake(sleeper)
    assert (scene.problems(), scene.repeated()) == ([], 0)


def test_without_the_lease_it_publishes_beside_its_successor(scene: Scene) -> None:
    sleeper = scene.start("journal.publish.begin=stop:2", **going_without("lease"))
    assert scene.run(**going_without("lease")).returncode == 0
    assert "FencedError" in scene.wake(sleeper)
    assert scene.repeated() > 0
    # Readers that go by the tags still see each result once; the offsets of the group, which
    # nobody reads back, are the sleeper's.
    assert not [found for found in scene.problems() if "offsets of the group" not in found]


def late_repetitions_in_the_state_topics(scene: Scene) -> None:
    """A driver wakes that sends its batch a second time, after later ones."""
    guards = going_without("lease", "mend")
    sleeper = scene.start("journal.publish.begin=stop:2", **guards)
    assert scene.run(**guards).returncode == 0
    scene.wake(sleeper)
    assert scene.repeated() > 0
    # The next driver has no copies of the state, and restores it from the topics.
    shutil.rmtree(scene.folder)
    scene.send(make_lines(40, seed=1, first=100))


def test_state_is_restored_without_late_repetitions(scene: Scene) -> None:
    late_repetitions_in_the_state_topics(scene)
    done = scene.run(**going_without("mend"))
    assert done.returncode == 0, done.stderr
    assert scene.problems() == []


@pytest.mark.slow
def test_without_their_filter_the_restore_fails(scene: Scene) -> None:
    late_repetitions_in_the_state_topics(scene)
    done = scene.run(**going_without("first_copies", "mend"))
    assert "StateMismatchError" in done.stdout + done.stderr


def test_next_driver_sends_only_what_is_missing(scene: Scene) -> None:
    assert scene.run("journal.publish.sent=kill:9").returncode == _KILLED
    assert scene.run().returncode == 0
    assert (scene.problems(), scene.repeated()) == ([], 0)


def test_without_a_look_at_the_tails_it_sends_all_again(scene: Scene) -> None:
    assert scene.run("journal.publish.sent=kill:9").returncode == _KILLED
    assert scene.run(**going_without("publish_tail")).returncode == 0
    assert scene.repeated() > 0


def test_commit_that_does_not_count_is_not_published(scene: Scene) -> None:
    sleeper = scene.start("journal.commit.before=stop:2", **going_without("lease"))
    assert scene.run(**going_without("lease")).returncode == 0
    assert "FencedError" in scene.wake(sleeper)
    assert (scene.problems(), scene.repeated()) == ([], 0)


def test_without_reading_back_it_is_published(scene: Scene) -> None:
    sleeper = scene.start("journal.commit.before=stop:2", **going_without("lease", "read_back"))
    assert scene.run(**going_without("lease")).returncode == 0
    scene.wake(sleeper)
    assert scene.repeated() > 0
