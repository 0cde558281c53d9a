"""Sticky, balanced, patient; and never a second copy while the first may live."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.connect.assignment import Assignment, UnitName, assign
from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    Applied,
    ClusterView,
    ConnectorDeleted,
    ConnectorPut,
    Outcome,
    Record,
    StatusSet,
    TasksPut,
    fold,
)
from headrace.connect.naming import TaskId, UnitId

DELAY = 30.0


def applied(view: ClusterView, *records: Record) -> ClusterView:
    for record in records:
        view, _ = fold(view, record, view.position + 1)
    return view


def cluster(**tasks: int) -> ClusterView:
    """A view with connectors of so many tasks."""
    view = ClusterView()
    for name, count in tasks.items():
        put = ConnectorPut(request="", name=name, config={})
        made = TasksPut(name=name, config_version=1, configs=[{}] * count)
        view = applied(view, put, made)
    return view


def alive(unit: UnitId, worker: str, *, gone: bool = False) -> StatusSet:
    return StatusSet(
        connector=unit.connector,
        task=unit.task,
        generation=unit.generation,
        phase=Phase.STOPPED if gone else Phase.RUNNING,
        worker=worker,
        gone=gone,
    )


def running(view: ClusterView, plan: Assignment) -> ClusterView:
    """The same, with everything running where it was given to."""
    for unit in list(view.units()):
        owner = plan.owner(UnitName(unit.connector, unit.task))
        if owner is not None:
            view = applied(view, alive(unit, owner))
    return view


def loads(plan: Assignment, workers: set[str]) -> tuple[list[int], list[int]]:
    connectors, tasks = Counter(plan.connectors.values()), Counter(plan.tasks.values())
    return [connectors[one] for one in workers], [tasks[one] for one in workers]


def test_everything_is_given_to_somebody_and_evenly() -> None:
    plan = assign(cluster(a=3, b=4), {"w1", "w2", "w3"}, Assignment(), 0, DELAY)
    assert len(plan.connectors) == 2
    assert sorted(Counter(plan.tasks.values()).values()) == [2, 2, 3]


def test_without_workers_nothing_is_given() -> None:
    plan = assign(cluster(a=1), set(), Assignment(), 0, DELAY)
    assert plan.connectors == {}
    assert plan.waiting == {UnitName("a", None), UnitName("a", 0)}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6)),
    st.sets(st.sampled_from(["w1", "w2", "w3", "w4"]), min_size=1),
)
def test_nothing_moves_when_nothing_changes(tasks: dict[str, int], workers: set[str]) -> None:
    view = cluster(**tasks)
    first = assign(view, workers, Assignment(), 0, DELAY)
    assert assign(view, workers, first, 5, DELAY) == first
    view = applied(running(view, first), first.record(view, "w1"))
    read = Assignment.of(view.assignment)
    assert assign(view, workers, read, 10, DELAY) == read


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6)),
    st.sets(st.sampled_from(["w1", "w2", "w3", "w4"]), min_size=1),
)
def test_each_is_given_once_and_no_worker_has_two_more_than_another(
    tasks: dict[str, int], workers: set[str]
) -> None:
    plan = assign(cluster(**tasks), workers, Assignment(), 0, DELAY)
    assert set(plan.connectors) == set(tasks)
    assert len(plan.tasks) == sum(tasks.values())
    for kind in loads(plan, workers):
        assert max(kind) - min(kind) <= 1


def test_a_new_connector_moves_no_other() -> None:
    view = cluster(a=2, b=2)
    first = assign(view, {"w1", "w2"}, Assignment(), 0, DELAY)
    view = applied(running(view, first), ConnectorPut(request="", name="c", config={}))
    second = assign(view, {"w1", "w2"}, first, 1, DELAY)
    assert {name: second.connectors[name] for name in "ab"} == dict(first.connectors)
    assert second.tasks == first.tasks


def test_a_new_worker_gets_its_share_when_the_old_copies_are_gone() -> None:
    view = cluster(a=4)
    first = assign(view, {"w1"}, Assignment(), 0, DELAY)
    view = running(view, first)
    second = assign(view, {"w1", "w2"}, first, 1, DELAY)
    assert set(second.tasks.values()) == {"w1"}
    assert len(second.tasks) == 2
    assert second.waiting == {UnitName("a", 2), UnitName("a", 3)}
    third = assign(view, {"w1", "w2"}, second, 2, DELAY)
    assert third == second  # the old copies are still there
    moved = [unit for unit in view.units() if unit.task in {2, 3}]
    view = applied(view, *(alive(unit, "w1", gone=True) for unit in moved))
    fourth = assign(view, {"w1", "w2"}, third, 3, DELAY)
    assert {fourth.tasks[TaskId("a", number)] for number in (2, 3)} == {"w2"}


def test_what_a_lost_worker_ran_waits_and_then_moves() -> None:
    view = cluster(a=2, b=0)
    first = assign(view, {"w1", "w2"}, Assignment(), 0, DELAY)
    view = running(view, first)
    mine = {task for task, worker in first.tasks.items() if worker == "w2"}
    second = assign(view, {"w1"}, first, 100, DELAY)
    assert second.tasks == first.tasks
    assert second.lost == {"w2": 130}
    assert second.due == 130
    assert {
        TaskId(one.connector, one.task or 0) for one in second.delayed if one.task is not None
    } == mine
    assert assign(view, {"w1"}, second, 129, DELAY).tasks == first.tasks
    third = assign(view, {"w1"}, second, 130, DELAY)
    assert set(third.tasks.values()) == {"w1"}
    assert third.due is None


def test_a_lost_worker_that_comes_back_goes_on_with_what_it_ran() -> None:
    view = cluster(a=2, b=0)
    first = assign(view, {"w1", "w2"}, Assignment(), 0, DELAY)
    view = running(view, first)
    second = assign(view, {"w1"}, first, 100, DELAY)
    third = assign(view, {"w1", "w2"}, second, 110, DELAY)
    assert (third.tasks, third.connectors, third.lost) == (first.tasks, first.connectors, {})


def test_a_worker_that_died_with_what_was_taken_from_it_is_waited_for_too() -> None:
    view = cluster(a=4)
    first = assign(view, {"w1"}, Assignment(), 0, DELAY)
    view = running(view, first)
    second = assign(view, {"w1", "w2"}, first, 1, DELAY)
    third = assign(view, {"w2"}, second, 2, DELAY)
    assert third.waiting == {UnitName("a", 2), UnitName("a", 3)}
    assert third.lost == {"w1": 32}
    fourth = assign(view, {"w2"}, third, 32, DELAY)
    assert set(fourth.tasks.values()) == {"w2"}
    assert fourth.waiting == frozenset()


def test_a_deleted_connector_leaves_the_assignment() -> None:
    view = cluster(a=1, b=1)
    first = assign(view, {"w1"}, Assignment(), 0, DELAY)
    view = applied(view, ConnectorDeleted(request="", name="a"))
    second = assign(view, {"w1"}, first, 1, DELAY)
    assert set(second.connectors) == {"b"}
    assert set(second.tasks) == {TaskId("b", 0)}


def test_an_assignment_reads_back_as_it_was_written() -> None:
    view = cluster(a=3, b=1)
    plan = Assignment(
        generation=1,
        connectors={"a": "w1"},
        tasks={TaskId("a", 2): "w2", TaskId("b", 0): "w1"},
        lost={"w9": 12.5},
    )
    view, outcome = fold(view, plan.record(view, "w1"), view.position + 1)
    assert isinstance(outcome, Applied)
    read = Assignment.of(view.assignment)
    assert (read.connectors, read.tasks, read.lost) == (plan.connectors, plan.tasks, plan.lost)
    assert view.worker_of("a", 2) == "w2"
    assert view.worker_of("a", 1) is None


WORKERS = st.sampled_from(["w1", "w2", "w3"])
NAMES = st.sampled_from(["a", "b", "c"])


class Cluster(RuleBasedStateMachine):
    """Workers that join, die and are slow, and a coordinator that assigns at any time.

    A worker obeys the newest assignment; it ends a copy before the log says that it is gone.  A
    worker that is cut off ends its copies within half the delay, as self-fencing makes it.
    """

    @initialize()
    def begin(self) -> None:
        self.view = ClusterView()
        self.live: set[str] = set()
        #: Copies that really run.
        self.copies: set[tuple[UnitId, str]] = set()
        self.cut_off: dict[str, float] = {}
        self.now = 0.0

    def append(self, record: Record) -> Outcome:
        self.view, outcome = fold(self.view, record, self.view.position + 1)
        return outcome

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        self.append(ConnectorPut(request="", name=name, config={}))

    @rule(name=NAMES, count=st.integers(0, 4))
    def tasks(self, name: str, count: int) -> None:
        entry = self.view.connector(name)
        if entry is not None:
            configs = [{"of": str(count)}] * count
            self.append(TasksPut(name=name, config_version=entry.version, configs=configs))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.append(ConnectorDeleted(request="", name=name))

    @rule(worker=WORKERS)
    def join(self, worker: str) -> None:
        # A worker that comes back has ended what it ran before, and says so.
        self.cut_off.pop(worker, None)
        for unit, owner in list(self.copies):
            if owner == worker and worker not in self.live:
                self.copies.discard((unit, owner))
        if worker not in self.live:
            for status in list(self.view.alive(worker)):
                self.append(alive(status.unit, worker, gone=True))
        self.live.add(worker)

    @rule(worker=WORKERS)
    def lose(self, worker: str) -> None:
        if worker in self.live:
            self.live.discard(worker)
            self.cut_off[worker] = self.now

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for worker, since in self.cut_off.items():
            if self.now - since >= DELAY / 2:
                self.copies = {one for one in self.copies if one[1] != worker}

    @rule()
    def coordinate(self) -> None:
        previous = Assignment.of(self.view.assignment)
        plan = assign(self.view, self.live, previous, self.now, DELAY)
        if plan.generation != previous.generation:
            assert isinstance(self.append(plan.record(self.view, "w1")), Applied)

    @rule(worker=WORKERS)
    def work(self, worker: str) -> None:
        """Start what is given and end what is not, old copies first."""
        if worker not in self.live:
            return
        wanted = {
            unit
            for unit in self.view.units()
            if self.view.worker_of(unit.connector, unit.task) == worker
        }
        for unit, owner in list(self.copies):
            if owner == worker and unit not in wanted:
                self.copies.discard((unit, owner))
                self.append(alive(unit, worker, gone=True))
        for unit in wanted:
            self.append(alive(unit, worker))
            self.copies.add((unit, worker))

    @invariant()
    def no_two_copies_live(self) -> None:
        places = Counter((unit.connector, unit.task) for unit, _ in self.copies)
        assert all(count == 1 for count in places.values())

    def teardown(self) -> None:
        """Left alone with one worker at least, the cluster comes to rest, balanced and complete."""
        self.live.add("w1")
        self.cut_off.pop("w1", None)
        self.wait(100)
        for _ in range(6):
            self.coordinate()
            for worker in sorted(self.live):
                self.work(worker)
            self.wait(40)
        plan = Assignment.of(self.view.assignment)
        again = assign(self.view, self.live, plan, self.now, DELAY)
        assert again.generation == plan.generation
        for unit in self.view.units():
            assert plan.owner(UnitName(unit.connector, unit.task)) in self.live
        for kind in loads(plan, self.live):
            assert max(kind) - min(kind) <= 1


TestCluster = pytest.mark.requirement(53)(Cluster.TestCase)
TestCluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
