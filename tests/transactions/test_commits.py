"""What makes a batch succeed, in which order, and what is left when it does not: R14, R24 to R32, R37
and R40, on the engine's own source, stages, coordinator and commits, with a real broker.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.client import Client
from headrace.errors import (
    HeadraceError,
    PredecessorMismatchError,
    RollbackError,
    StagedPartMissingError,
)
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.runtime.commit.transactions import BatchEnd
from headrace.runtime.jobs.journal import standing_of_job
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.faults.broker import running_broker
from tests.faults.local_driver import LocalDriver
from tests.transactions.automaton import judge
from tests.transactions.traced import Count, Sentences, Split, Trace, words_of
from tests.transactions.wiring import Wiring

TASKS = [("spout", 0), ("spout", 1), ("count", 0), ("count", 1)]


def word_count(trace: Trace, name: str) -> Topology:
    """Two spouts of three sentences a batch, and two tasks that count."""
    wiring = Wiring().spout("spout", Sentences(trace), 2, delay_ms=3_600_000)
    wiring.bolt("split", Split(trace), ("spout", "shuffle"), tasks=2)
    wiring.bolt("count", Count(trace), ("split", "fields", ["word"]), tasks=2)
    return wiring.build(name)


class Scene:
    """One job, whose drivers come and go."""

    def __init__(self, namesrv: str, folder: Path, name: str) -> None:
        self.namesrv = namesrv
        self.trace = Trace(folder)
        self.job = word_count(self.trace, name)
        self._folder = folder / "state"

    def driver(self, **more: Any) -> LocalDriver:
        return LocalDriver(self.namesrv, self._folder, job=self.job, **more)

    @property
    def batch(self) -> int:
        """The last batch that the broker has a commit of."""
        with Client(self.namesrv) as client:
            return standing_of_job(client, self.job.name).record.batch

    def commits(self, task: tuple[str, int]) -> list[int | str]:
        """The batches that a task committed, and its roll-backs between them."""
        calls = self.trace.calls(*task)
        named = (call.batch or call.name for call in calls if call.name in ("commit", "roll_back"))
        return list(named)

    def acknowledged(self) -> set[int]:
        return {call.batch or 0 for call in self.trace.calls() if call.name == "ack_commit"}


@pytest.fixture
def scene(embedded: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    name = request.node.name.split("[")[0].replace("_", "-")[-60:]
    return Scene(embedded.namesrv, tmp_path, name)


def test_r14_commits_of_a_task_come_in_the_order_of_batches(scene: Scene) -> None:
    with scene.driver() as first:
        first.catch_up(2)
        scene.trace.fail("count", "commit", 1)
        with pytest.raises(RollbackError):
            first.process()
        with scene.driver(life=first.epoch) as second:
            second.catch_up(3)
    for task in TASKS:
        failed = [3] if 3 in scene.commits(task)[:3] else []
        assert scene.commits(task) == [1, 2, *failed, "roll_back", 3, 4, 5], task
    assert scene.commits(("count", 1))[2] == 3, "its commit of batch 3 is the one that failed"
    assert judge(scene.trace.calls(), committed=5) == []


def test_r24_a_task_commits_without_a_look_at_others_and_the_next_batch_is_due_at_once(
    scene: Scene,
) -> None:
    with scene.driver() as driver:
        for batch in (1, 2, 3):
            # Tuples came, so nobody waits for the pause between batches, an hour here.
            assert driver.plan() is not None
            driver.catch_up(1)
            calls = [call for call in scene.trace.calls() if call.name in ("execute", "commit")]
            scene.trace.forget()
            own = [call for call in calls if call.task[0] in ("spout", "count")]
            names = [(call.task[0], call.name) for call in own]
            first = names.index(("count", "execute"))
            assert names[:first] == [("spout", "commit")] * 2, "sources wait for no bolt"
            ends = {call.task: number for number, call in enumerate(own) if call.name == "commit"}
            works = {task: [n for n, c in enumerate(own) if c.task == task] for task in TASKS[2:]}
            early, late = sorted(TASKS[2:], key=ends.__getitem__)
            assert ends[early] < works[late][0], "nor a bolt for another task's commit"
            assert {call.batch for call in own if call.name == "commit"} == {batch}


def test_r25_a_batch_of_which_a_part_is_missing_is_refused(scene: Scene) -> None:
    with scene.driver() as driver:
        driver.catch_up(1)
        end = driver.process()
        lost = msgspec.structs.replace(end.parts[0], partition=7)
        with pytest.raises(StagedPartMissingError):
            driver.commit(BatchEnd(previous=1, parts=[*end.parts, lost], record=end.record))
        assert scene.batch == 1
        driver.commit(end)
        assert scene.batch == 2


def test_r26_a_batch_does_not_succeed_before_the_one_before_it(scene: Scene) -> None:
    with scene.driver() as driver:
        driver.catch_up(1)
        end = driver.process()
        later = msgspec.structs.replace(end.record, batch=3)
        with pytest.raises(PredecessorMismatchError):
            driver.commit(BatchEnd(previous=2, parts=end.parts, record=later))
        assert scene.batch == 1
        driver.commit(end)
        assert scene.batch == 2


def test_r27_nobody_hears_of_a_success_before_the_snapshot_is_kept(scene: Scene) -> None:
    with scene.driver() as first:
        first.process()
        assert {call.batch for call in scene.trace.calls() if call.name == "commit"} == {1}
        assert (scene.batch, scene.acknowledged()) == (0, set())
    with scene.driver() as second:
        end = second.process()
        assert scene.acknowledged() == set(), "every task has committed batch 1, nobody kept it"
        second.commit(end)
        assert scene.batch == 1
        second.process()
        assert scene.acknowledged() == {1}


@pytest.mark.parametrize("point", ["store.unit.middle=kill:3", "broker.jobs.committed=kill:2"])
def test_r29_and_r30_a_snapshot_that_is_not_kept_whole_is_none_and_the_one_before_is_there(
    tmp_path: Path, point: str
) -> None:
    # It dies while it writes the commit of batch 2, its third unit; or when that is on disk.
    points = {ENVIRONMENT_VARIABLE: point}
    with running_broker(tmp_path / "broker", environment=points) as broker:
        scene = Scene(broker.address, tmp_path, "torn")
        with ExitStack() as opened:
            driver = scene.driver(retry_timeout=timedelta(seconds=1))
            opened.callback(driver.abandon)
            driver.catch_up(1)
            end = driver.process()
            with pytest.raises(HeadraceError) as caught:
                driver.commit(end)
            assert caught.value.retriable, "the batch is rolled back"
        broker.wait()
        broker.restart()
        whole = point.startswith("broker")
        assert scene.batch == (2 if whole else 1), "all of it or nothing"
        assert scene.acknowledged() == {1}
        with scene.driver(life=driver.epoch) as second:
            second.catch_up(2)
        rolled = {call.state for call in scene.trace.calls("spout") if call.name == "roll_back"}
        assert rolled == {6 if whole else 3}


def test_r32_and_r37_sources_and_states_go_back_together_and_the_job_goes_on_by_itself(
    scene: Scene,
) -> None:
    with scene.driver() as first:
        first.catch_up(2)
        first.process()
        with scene.driver(life=first.epoch) as second:
            second.catch_up(2)
    spouts = {c.state for c in scene.trace.calls("spout") if c.name == "roll_back"}
    assert spouts == {6}, "sources emit again from the last success"
    counts = [c.state for c in scene.trace.calls("count") if c.name == "roll_back"]
    assert sum(map(Counter, counts), Counter()) == twice(words_of(6))
    last = [c.state for c in scene.trace.calls("count") if c.name == "commit" and c.batch == 4]
    assert sum(map(Counter, last), Counter()) == twice(words_of(12))


def test_r40_nothing_waits_between_batches_but_for_the_commit_and_no_group_for_another(
    scene: Scene, tmp_path: Path
) -> None:
    other = Scene(scene.namesrv, tmp_path / "other", f"{scene.job.name}-b")
    other.trace.folder.mkdir()
    with scene.driver() as driver, other.driver() as slow:
        staged = slow.process()
        driver.catch_up(3)
        assert (scene.batch, other.batch) == (3, 0), "a group whose batch hangs holds nobody up"
        slow.commit(staged)
        assert other.batch == 1
    # No round of its own tells tasks of a success: the next batch brings the word.
    for task in TASKS:
        names = [
            c.name for c in scene.trace.calls(*task) if c.name not in ("execute", "next_tuple")
        ]
        again = ["ack_commit", "finish_batch", "commit"]
        assert names == ["prepare", "init_state", "finish_batch", "commit", *again, *again], task


def twice(counts: Counter[str]) -> Counter[str]:
    return counts + counts
