"""Each safeguard of the commit protocol: with it results are exact, without it a check fails.

Drivers are put where a pause, a lost answer or a crash would put them; the checks are those of
the kill test.  A kill test that passed without a safeguard would prove nothing about it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace import StreamBuilder, Topology, serdes
from headrace.client import Client
from headrace.errors import BrokerError, FencedError, PredecessorMismatchError, RollbackError
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.runtime.commit.transactions import BatchEnd
from tests.faults.broker import (
    Broker,
    commit_under_a_dying_broker,
    make_lines,
    running_broker,
    send,
)
from tests.faults.local_driver import LocalDriver
from tests.faults.verification import messages_of, problems, read_results
from tests.faults.word_pipeline import EACH, LINES, topology
from tests.without import going_without

ALL_ON = ""


class Scene:
    """A broker with some safeguards off, and drivers that all use one state folder."""

    def __init__(self, folder: Path, without: str, failpoints: str = "") -> None:
        self._folder = folder
        self._opened = ExitStack()
        environment = going_without(without) | {ENVIRONMENT_VARIABLE: failpoints}
        self.broker: Broker = self._opened.enter_context(
            running_broker(folder / "broker", environment=environment)
        )

    def driver(self, name: str = "local", job: Topology = topology) -> LocalDriver:
        driver = LocalDriver(self.broker.address, self._folder / "job", job=job, name=name)
        return self._opened.enter_context(driver)

    def send(self, lines: list[str]) -> None:
        send(self.broker.address, lines)

    def problems(self) -> list[str]:
        return problems(read_results(self.broker.address))

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(tmp_path, *request.param)
    try:
        yield scene
    finally:
        scene.close()


def without(*names: str) -> pytest.MarkDecorator:
    """Give a test a broker without these safeguards."""
    return pytest.mark.parametrize("scene", [(",".join(names),)], indirect=True)


safe = pytest.mark.parametrize("scene", [(ALL_ON,)], indirect=True)


@safe
def test_without_faults_all_checks_pass(scene: Scene) -> None:
    scene.send(make_lines(100))
    assert scene.driver().catch_up() == 5
    assert scene.problems() == []


def wake_before_the_successor_commits(scene: Scene) -> tuple[LocalDriver, LocalDriver]:
    """A driver sleeps with a batch planned and wakes while its successor works on the same one."""
    scene.send(make_lines(60))
    sleeper = scene.driver()
    sleeper.commit(sleeper.process())
    planned = sleeper.plan()
    successor = scene.driver()
    pending = successor.process()
    sleeper.commit(sleeper.process(planned))
    successor.commit(pending)
    return sleeper, successor


@safe
def test_driver_that_wakes_beside_its_successor_is_fenced(scene: Scene) -> None:
    with pytest.raises(FencedError, match="epoch 2 is open"):
        wake_before_the_successor_commits(scene)
    scene.driver().catch_up()
    assert scene.problems() == []


@without("epoch")
def test_without_the_epoch_check_the_sleeper_pushes_its_successor_out(scene: Scene) -> None:
    with pytest.raises(PredecessorMismatchError):
        wake_before_the_successor_commits(scene)
    scene.driver().catch_up()
    found = scene.problems()
    assert any("does not follow epoch 2" in problem for problem in found), found


def roll_back_beside_the_successor(scene: Scene) -> None:
    """A driver sleeps for longer than a batch may take, so that it goes back when it wakes."""
    scene.send(make_lines(60))
    sleeper = scene.driver("sleeper")
    sleeper.commit(sleeper.process())
    successor = scene.driver("successor")
    pending = successor.process()
    sleeper.roll_back()
    successor.commit(pending)


@safe
def test_driver_that_wakes_and_goes_back_leaves_the_job_to_its_successor(scene: Scene) -> None:
    with pytest.raises(FencedError, match="by successor, this one had epoch 1"):
        roll_back_beside_the_successor(scene)
    scene.driver().catch_up()
    assert scene.problems() == []


@without("epoch", "predecessor")
def test_without_the_epoch_check_a_sleeper_takes_the_job_back(scene: Scene) -> None:
    roll_back_beside_the_successor(scene)
    found = scene.problems()
    assert any("follow epoch" in problem for problem in found), found


def wake_after_the_successor_is_done(scene: Scene) -> None:
    """A driver sleeps with a batch planned while its successor does all the work."""
    scene.send(make_lines(60))
    sleeper = scene.driver()
    sleeper.commit(sleeper.process())
    planned = sleeper.plan()
    scene.driver().catch_up()
    sleeper.commit(sleeper.process(planned))


@safe
def test_driver_that_wakes_after_its_successor_is_fenced(scene: Scene) -> None:
    with pytest.raises(FencedError, match="epoch 2 is open"):
        wake_after_the_successor_is_done(scene)
    assert scene.problems() == []


@without("epoch", "predecessor")
def test_without_both_checks_a_sleeper_publishes_its_batch_again(scene: Scene) -> None:
    wake_after_the_successor_is_done(scene)
    found = scene.problems()
    assert any("published more than once" in problem for problem in found), found
    assert any("do not rise" in problem for problem in found), found


def repeat_a_commit_that_is_history(scene: Scene) -> None:
    """A commit that published nothing reaches the broker again, after later ones."""
    driver = scene.driver()
    scene.send(make_lines(20))
    driver.catch_up()
    scene.send([" "] * 20)
    silent: BatchEnd = driver.process()
    driver.commit(silent)
    scene.send(make_lines(20, first=20))
    driver.catch_up()
    assert silent.parts == []
    driver.commit(silent)


@safe
def test_delayed_repeat_of_an_old_commit_is_refused(scene: Scene) -> None:
    with pytest.raises(PredecessorMismatchError, match="the last committed one is 3"):
        repeat_a_commit_that_is_history(scene)
    scene.driver().catch_up()
    assert scene.problems() == []


@without("predecessor")
def test_without_the_predecessor_check_an_old_commit_turns_the_job_back(scene: Scene) -> None:
    repeat_a_commit_that_is_history(scene)
    scene.driver().catch_up()
    found = scene.problems()
    assert any("published more than once" in problem for problem in found), found
    assert any("does not follow epoch 1, batch 3" in problem for problem in found), found


def die_in_the_middle_of_a_commit(scene: Scene) -> None:
    """The broker dies when half of a batch is in its log; the driver never hears of it."""
    scene.send(make_lines(60))
    driver = scene.driver()
    driver.commit(driver.process())
    # Its opens and its first commit are units, too: the failpoint counts them.
    commit_under_a_dying_broker(driver, scene.broker)
    driver.catch_up()


MIDDLE_OF_SECOND_COMMIT = "store.unit.middle=kill:3"


@pytest.mark.parametrize("scene", [(ALL_ON, MIDDLE_OF_SECOND_COMMIT)], indirect=True)
def test_half_a_commit_is_cut_off_when_the_broker_starts_again(scene: Scene) -> None:
    die_in_the_middle_of_a_commit(scene)
    assert scene.problems() == []


@pytest.mark.parametrize("scene", [("marks", MIDDLE_OF_SECOND_COMMIT)], indirect=True)
def test_without_the_marks_half_a_commit_becomes_visible(scene: Scene) -> None:
    die_in_the_middle_of_a_commit(scene)
    found = scene.problems()
    assert any("published more than once" in problem for problem in found), found


@safe
def test_broker_that_dies_between_staging_and_commit_keeps_what_was_staged(scene: Scene) -> None:
    scene.send(make_lines(60))
    driver = scene.driver()
    end = driver.process()
    scene.broker.kill()
    scene.broker.restart()
    driver.commit(end)
    driver.catch_up()
    assert scene.problems() == []


@safe
def test_commit_whose_answer_was_lost_counts_once(scene: Scene) -> None:
    scene.send(make_lines(60))
    driver = scene.driver()
    end = driver.process()
    driver.commit(end)
    scene.broker.kill()
    scene.broker.restart()
    assert driver.commit(end).already
    driver.catch_up()
    assert scene.problems() == []


@safe
def test_offsets_of_the_group_survive_a_broker_that_dies_after_a_commit(scene: Scene) -> None:
    scene.send(make_lines(60))
    scene.driver().catch_up()
    # Sooner than it saves them by itself.
    scene.broker.kill()
    scene.broker.restart()
    assert scene.problems() == []


@safe
def test_state_results_and_offsets_are_committed_together_or_not_at_all(scene: Scene) -> None:
    """Defect 19: a timer wrote changed keys, then offsets, while records were being processed."""
    scene.send(make_lines(60))
    first = scene.driver()
    first.commit(first.process())
    first.process()
    results = read_results(scene.broker.address)
    assert results.history[-1].batch == 1
    second = scene.driver()
    assert (second.record.batch, second.catch_up()) == (1, 2)
    assert scene.problems() == []


@safe
def test_batch_that_was_staged_twice_counts_once(scene: Scene) -> None:
    scene.send(make_lines(60))
    driver = scene.driver()
    planned = driver.plan()
    driver.process(planned)
    driver.commit(driver.process(planned))
    driver.catch_up()
    assert scene.problems() == []


def drawn_lots() -> Topology:
    """Each line goes where chance has it, in every attempt anew."""
    builder = StreamBuilder("lots")
    lots = builder.source(LINES, serdes.string).key_by(lambda _: random.randrange(100))
    lots.count(name="count", emit="each").to_stream().sink(EACH, serdes.json)
    return builder.build()


@safe
def test_batch_of_which_spark_has_lost_blocks_is_rolled_back_and_loses_no_record(
    scene: Scene,
) -> None:
    scene.send(make_lines(60))
    first = scene.driver(job=drawn_lots())
    with pytest.raises(RollbackError, match=r"batch 1 mixes attempts: partition \d of stage 1"):
        first.commit(first.process(loses_blocks=True))
    scene.driver(job=drawn_lots()).catch_up()
    with Client(scene.broker.address) as client:
        assert len(list(messages_of(client, EACH))) == 60


@safe
def test_two_drivers_that_race_leave_an_exact_result(scene: Scene) -> None:
    scene.send(make_lines(200))
    outcomes: list[BrokerError] = []

    def drive() -> None:
        try:
            scene.driver().catch_up()
        except BrokerError as error:
            outcomes.append(error)

    drivers = [threading.Thread(target=drive) for _ in range(3)]
    for thread in drivers:
        thread.start()
    for thread in drivers:
        thread.join(100)
    assert all(isinstance(error, FencedError) for error in outcomes), outcomes
    scene.driver().catch_up()
    assert scene.problems() == []
