"""The three checkers: silent about a job without faults, loud about a broker without a safeguard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest

from headrace.client import Client
from headrace.errors import FencedError
from headrace.failpoints import ENVIRONMENT_VARIABLE
from tests.faults.broker import Broker, commit_under_a_dying_broker, running_broker
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers, Front, job_of
from tests.faults.proof_pipeline import Names
from tests.without import going_without


class Scene:
    """A broker, the proof job with something to read, and the checkers."""

    names = Names("proof")
    batch_size = 60

    def __init__(self, folder: Path, without: str, failpoints: str, front: Front) -> None:
        self._folder, self.front = folder, front
        self._opened = ExitStack()
        environment = going_without(without) | {ENVIRONMENT_VARIABLE: failpoints}
        self.broker: Broker = self._opened.enter_context(
            running_broker(folder / "broker", environment=environment)
        )
        client = self._opened.enter_context(Client(self.broker.address))
        make_topics(client, self.names)
        feeder = ProofFeeder(self.broker.address, self.names)
        feeder.feed(6)
        self.sent = feeder.stop()
        self.checkers = Checkers.of(client, self.names, front)

    def driver(self) -> LocalDriver:
        return self._opened.enter_context(
            LocalDriver(
                self.broker.address,
                self._folder / "job",
                self.batch_size,
                job=job_of(self.names, self.front),
            )
        )

    def catch_up(self, driver: LocalDriver) -> int:
        """Run batches until everything that was sent is committed; how many there were."""
        batches = 0
        while not self.is_done(driver):
            driver.commit(driver.process())
            batches += 1
        return batches

    def is_done(self, driver: LocalDriver) -> bool:
        """Whether everything that was sent is committed: spouts of their own never end."""
        return sum(driver.record.offsets.values()) >= self.sent.messages

    def found(self) -> dict[str, list[str]]:
        """What each checker has to say when the job has caught up."""
        each = self.checkers.by_name()
        found = {name: checker.finish(self.sent) for name, checker in each.items()}
        return {name: problems for name, problems in found.items() if problems}

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(tmp_path, *request.param)
    try:
        yield scene
    finally:
        scene.close()


def broker(without: str = "", failpoints: str = "") -> pytest.MarkDecorator:
    """Give a test a broker without some safeguards, that dies at a failpoint; for each front."""
    fronts = get_args(Front)
    given = [(without, failpoints, front) for front in fronts]
    return pytest.mark.parametrize("scene", given, indirect=True, ids=fronts)


@broker()
def test_checkers_that_look_after_every_commit_find_nothing(scene: Scene) -> None:
    driver = scene.driver()
    batches = 0
    while not scene.is_done(driver):
        driver.commit(driver.process())
        batches += 1
        assert scene.checkers.look() == []
    assert batches >= 4
    assert scene.found() == {}
    commits = [record.batch for record in scene.checkers.bank.history if record.kind == "commit"]
    assert commits == list(range(1, batches + 1))


@broker()
def test_checkers_miss_what_the_job_has_not_done_yet(scene: Scene) -> None:
    driver = scene.driver()
    driver.commit(driver.process())
    assert scene.checkers.look() == []
    found = scene.found()
    assert any("is missing" in problem for problem in found["set"])
    assert any("instead of 6" in problem for problem in found["sequence"])
    assert any("not those of the transfers" in problem for problem in found["bank"])


def sleep_through_everything(scene: Scene) -> None:
    """A driver sleeps with a batch planned while its successor does all the work."""
    sleeper = scene.driver()
    sleeper.commit(sleeper.process())
    planned = sleeper.plan()
    scene.catch_up(scene.driver())
    assert scene.checkers.look() == []
    sleeper.commit(sleeper.process(planned))


@broker()
def test_checkers_find_nothing_when_a_sleeper_is_fenced(scene: Scene) -> None:
    with pytest.raises(FencedError, match="epoch 2 is open"):
        sleep_through_everything(scene)
    assert scene.found() == {}


@broker(without="epoch,predecessor")
def test_every_checker_notices_a_sleeper_that_nobody_fenced(scene: Scene) -> None:
    sleep_through_everything(scene)
    found = scene.found()
    assert any("published more than once" in problem for problem in found["set"])
    assert any("in the topic" in problem for problem in found["sequence"])
    assert any("differs from the count and hash" in problem for problem in found["bank"])
    assert any("does not follow epoch 2" in problem for problem in found["bank"])
    if scene.front == "bolts":
        assert any("the tally is" in problem for problem in found["tally"])


def die_in_the_middle_of_a_commit(scene: Scene) -> None:
    """The broker dies when half of a batch is in its log."""
    driver = scene.driver()
    driver.commit(driver.process())
    commit_under_a_dying_broker(driver, scene.broker)
    scene.catch_up(driver)


# The opening of the job and its first commit are units, too.
HALF_OF_SECOND_COMMIT = "store.unit.middle=kill:3"


@broker(failpoints=HALF_OF_SECOND_COMMIT)
def test_checkers_find_nothing_where_half_a_commit_was_cut_off(scene: Scene) -> None:
    die_in_the_middle_of_a_commit(scene)
    assert scene.found() == {}


@broker(without="marks", failpoints=HALF_OF_SECOND_COMMIT)
def test_the_bank_notices_half_a_commit(scene: Scene) -> None:
    die_in_the_middle_of_a_commit(scene)
    found = scene.found()["bank"]
    assert any("are not what the transfers below its offsets give" in each for each in found)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda checkers: checkers.bank._expected["debits"].update({"1": 1}), "bank"),
        (lambda checkers: checkers.sequence._last.update({"key1": 1}), "sequence"),
        (lambda checkers: checkers.set._seen.add("id3"), "set"),
    ],
    ids=["bank", "sequence", "set"],
)
@broker()
def test_a_checker_notices_one_result_too_many_or_too_few(
    scene: Scene, spoil: Callable[[Checkers], None], what: str
) -> None:
    scene.catch_up(scene.driver())
    spoil(scene.checkers)
    assert list(scene.found()) == [what]
