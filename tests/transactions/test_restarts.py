"""What outlives a batch, a roll-back and a driver: on a real broker, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client
from headrace.errors import RollbackError, StateError
from headrace.runtime.jobs.reset import exported, import_state, rescale
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.topology import BatchGroupId, Topology
from headrace.transactions import Spout
from tests.clusters import Cluster
from tests.faults.local_driver import LocalDriver
from tests.transactions.automaton import judge
from tests.transactions.traced import Count, KeyedCount, Sentences, Split, Trace, words_of
from tests.transactions.wiring import Wiring

Start = Callable[..., Any]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path)


class Scene:
    """A job of spouts and bolts on a broker, whose drivers come and go."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self.namesrv, self.name = cluster.namesrv, name
        self._folder = folder
        self.client = Client(cluster.namesrv)

    @contextmanager
    def driver(self, job: Topology, **more: Any) -> Iterator[LocalDriver]:
        with LocalDriver(self.namesrv, self._folder, job=job, **more) as driver:
            yield driver

    @property
    def home(self) -> StateHome:
        return StateHome.of(self.name, self.client)

    def state(self, job: Topology, operator: str) -> Mapping[Any, Any]:
        with CommittedState(self.home, operator, job.operator(operator)) as view:
            return view.all()


@pytest.fixture
def scene(embedded: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    name = request.node.name.split("[")[0].replace("_", "-")[-60:]
    scene = Scene(embedded, tmp_path / "state", name)
    yield scene
    scene.client.close()


def word_count(scene: Scene, trace: Trace, tasks: int = 3) -> Topology:
    wiring = Wiring().spout("spout", Sentences(trace), 3)
    wiring.bolt("split", Split(trace), ("spout", "shuffle"), tasks=2)
    wiring.bolt("count", Count(trace), ("split", "fields", ["word"]), tasks=tasks)
    wiring.bolt("keyed", KeyedCount(trace), ("split", "fields", ["word"]), tasks=tasks)
    return wiring.build(scene.name)


def expected(batches: int) -> Counter[str]:
    """Three spouts give three sentences each in every batch."""
    return Counter({word: 3 * count for word, count in words_of(3 * batches).items()})


def check(scene: Scene, job: Topology, batches: int) -> None:
    tasks = scene.state(job, "count")
    assert sum(map(Counter, tasks.values()), Counter()) == expected(batches)
    assert scene.state(job, "keyed") == expected(batches)
    assert scene.state(job, "spout") == dict.fromkeys(range(3), 3 * batches)


def test_r28_and_r42_the_snapshot_of_any_batch_is_enough_to_go_on(
    scene: Scene, trace: Trace
) -> None:
    job = word_count(scene, trace)
    for batches in (2, 4):
        before = len(trace.calls("spout", 0))
        with scene.driver(job) as driver:
            driver.catch_up(2)
            check(scene, job, batches)
        # R7: the start of a driver is init_state, with the state of the last commit.
        first = trace.calls("spout", 0)[before + 1]
        assert (first.name, first.state) == ("init_state", None if batches == 2 else 6)
        assert not [call for call in trace.calls() if call.name == "roll_back"]
        assert judge(trace.calls(), committed=batches) == []


def test_r15_a_new_epoch_of_a_drivers_life_is_a_roll_back(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as first:
        first.catch_up(2)
        first.process()  # Staged, and never committed.
        with scene.driver(job, life=first.epoch) as second:
            second.catch_up(2)
            check(scene, job, 4)
    rolled = [call for call in trace.calls() if call.name == "roll_back"]
    assert sorted(call.task for call in rolled) == [
        (name, task) for name in ("count", "spout") for task in range(3)
    ]
    assert {call.state for call in rolled if call.task[0] == "spout"} == {6}
    assert judge(trace.calls(), committed=4) == []


def test_r35_a_failed_task_comes_to_the_driver_as_a_roll_back(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(1)
        trace.fail("count", "commit", 2)
        with pytest.raises(RollbackError) as caught:
            driver.process()
    assert (caught.value.component, caught.value.task, caught.value.batch) == ("count", 2, 2)


def test_attempt_that_did_not_count_leaves_no_copy_behind(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(1)
        planned = driver.plan()
        driver.process(planned)
        # Spark runs a batch's tasks again; the second attempts are the ones that are committed.
        driver.commit(driver.process(planned))
        driver.catch_up(1)
        check(scene, job, 3)
    assert judge(trace.calls()) == []


def test_rescale_moves_keys_by_range_and_states_by_task(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(2)
    for batches, partitions in ((3, 3), (4, 1), (5, 2)):
        rescale(scene.home, partitions)
        with scene.driver(job, partitions=partitions) as driver:
            driver.catch_up(1)
            check(scene, job, batches)
            with CommittedState(scene.home, "keyed", job.operator("keyed")) as view:
                assert view.get("be") == expected(batches)["be"]
            with CommittedState(scene.home, "spout", job.operator("spout")) as view:
                assert view.get(1) == 3 * batches
                assert view.get(9) is None
                assert view.get("be") is None


def test_state_goes_through_files(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(1)
    for store in ("count", "keyed", "spout"):
        with CommittedState(scene.home, store) as view:
            kept = list(exported(view))
        import_state(scene.home, store, [])
        assert import_state(scene.home, store, kept) == len(kept)
    with scene.driver(job) as driver:
        driver.catch_up(1)
        check(scene, job, 2)


def test_plain_state_is_shown_without_the_program(scene: Scene, trace: Trace) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(2)
    with CommittedState(scene.home, "keyed") as view:
        assert view.all() == expected(2)
    with CommittedState(scene.home, "spout") as view:
        assert view.get(2) == 6
        assert [(entry.key, entry.value) for entry in view.scan()] == [(0, 6), (2, 6), (1, 6)]


def test_parallelism_of_a_key_value_bolt_may_change_that_of_states_may_not(
    scene: Scene, trace: Trace
) -> None:
    job = word_count(scene, trace)
    with scene.driver(job) as driver:
        driver.catch_up(1)
    with (
        pytest.raises(StateError, match=r"count has changed: parallelism 3 -> 5"),
        scene.driver(word_count(scene, trace, tasks=5)),
    ):
        pass
    wiring = Wiring().spout("spout", Sentences(trace), 3)
    wiring.bolt("split", Split(trace), ("spout", "shuffle"), tasks=2)
    wiring.bolt("count", Count(trace), ("split", "fields", ["word"]), tasks=3)
    wiring.bolt("keyed", KeyedCount(trace), ("split", "fields", ["word"]), tasks=7)
    other = wiring.build(scene.name)
    with scene.driver(other) as driver:
        driver.catch_up(1)
        check(scene, other, 2)


class Heavy(Spout):
    """Keeps a state that no message could hold whole, and one that is small again."""

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("size")

    def init_state(self, state: Any) -> None:
        found: tuple[int, bytes] = state or (0, b"")
        self.batch, data = found
        assert data == bytes([self.batch % 256]) * self.size

    @property
    def size(self) -> int:
        return (0, 5_000_000, 3_000_000, 10)[self.batch % 4]

    def next_tuple(self, collector: Any) -> None:
        collector.emit([self.size])
        collector.emit_barrier()

    def finish_batch(self) -> tuple[int, bytes]:
        self.batch += 1
        return self.batch, bytes([self.batch % 256]) * self.size


def test_r12_a_state_larger_than_a_message_is_kept_in_pieces(scene: Scene) -> None:
    entries = {1: 5, 2: 3, 3: 1, 4: 1}
    wiring = Wiring().spout("spout", Heavy())
    job = wiring.bolt("take", Swallow(), ("spout", "shuffle")).build(scene.name)
    for batch in range(1, 5):
        with scene.driver(job) as driver:
            driver.catch_up(1)
            assert sum(state.count for state in driver.record.states) == entries[batch]
            (state,) = scene.state(job, "spout").values()
            assert state[0] == batch


class Elsewhere(Count):
    """Keeps its counts in files of its own, and gives the name of the newest."""

    def reset(self, state: Any) -> None:
        path = None if state is None else self.trace.folder / state
        self.counts = Counter(json.loads(path.read_text()) if path else {})

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> str:
        self.trace.note(self, "commit", batch_group_id.batch_id, state)
        name = f"state-{self.context.task}-{batch_group_id.batch_id}"
        (self.trace.folder / name).write_text(json.dumps(state))
        return name

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        super().ack_commit(batch_group_id)
        for path in self.trace.folder.glob(f"state-{self.context.task}-*"):
            if int(path.name.rsplit("-", 1)[1]) < batch_group_id.batch_id:
                path.unlink()


def test_r12_and_r17_a_state_kept_elsewhere_is_found_by_its_key_and_cleaned_up(
    scene: Scene, trace: Trace
) -> None:
    wiring = Wiring().spout("spout", Sentences(trace))
    wiring.bolt("split", Split(trace), ("spout", "shuffle"))
    job = wiring.bolt("count", Elsewhere(trace), ("split", "global")).build(scene.name)
    with scene.driver(job) as first:
        first.catch_up(3)
        first.process()
        with scene.driver(job, life=first.epoch) as second:
            second.catch_up(1)
    with scene.driver(job) as driver:
        driver.catch_up(1)
    assert scene.state(job, "count") == {0: "state-0-5"}
    given = [c.state for c in trace.calls("count") if c.name in ("init_state", "roll_back")]
    assert given == [None, "state-0-3", "state-0-4"]
    # What was acknowledged let go of all before it.
    left = sorted(path.name for path in trace.folder.glob("state-0-*"))
    assert left == ["state-0-4", "state-0-5"]
    assert json.loads((trace.folder / "state-0-5").read_text()) == dict(words_of(15))


class Swallow(Split):
    """Takes anything."""

    def __init__(self) -> None:
        """Keep nothing."""

    def prepare(self, *given: Any) -> None:
        """Get ready."""

    def execute(self, tuple: Any) -> None:  # noqa: A002 - the name of the interface
        """Take a tuple."""
