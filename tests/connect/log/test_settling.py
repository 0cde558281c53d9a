"""Workers that were lost for good: when nothing of theirs lives any more."""

from __future__ import annotations

from headrace.connect.lifecycle import Phase
from headrace.connect.log import Applied, AssignmentMade, ClusterView, Rejected
from tests.connect.log.samples import folded, put, status


def made(
    generation: int, *, worker: str = "w1", lost: bool = False, over: bool = False
) -> AssignmentMade:
    return AssignmentMade(
        generation=generation,
        log_position=0,
        connectors={"a": worker},
        lost={"w1": 1} if lost else {},
        settled=["w1"] if over else [],
    )


def running_on_w1() -> ClusterView:
    view, _ = folded(put("a"), made(1))
    view, _ = folded(status("a", None, view.entries["a"].generation, Phase.RUNNING), view=view)
    return view


def test_a_worker_that_stays_lost_is_settled_with_the_assignment_that_moves_its_work() -> None:
    view, outcomes = folded(made(2, lost=True), view=running_on_w1())
    assert [one.worker for one in view.alive()] == ["w1"]
    view, outcomes = folded(made(3, worker="w2", lost=True, over=True), view=view)
    assert isinstance(outcomes[0], Applied)
    assert list(view.alive()) == []
    assert view.worker_of("a") == "w2"


def test_a_worker_that_came_back_cannot_be_settled_by_who_has_not_read_of_it() -> None:
    view, _ = folded(made(2, lost=True), made(3), view=running_on_w1())
    # It was made from assignment 2, and stands behind assignment 3.
    view, outcomes = folded(made(3, worker="w2", lost=True, over=True), view=view)
    assert isinstance(outcomes[0], Rejected)
    assert [one.worker for one in view.alive()] == ["w1"]


def test_a_worker_that_is_not_counted_as_lost_cannot_be_settled() -> None:
    view, _ = folded(made(2, over=True), view=running_on_w1())
    assert [one.worker for one in view.alive()] == ["w1"]


def test_what_had_failed_on_a_lost_worker_stays_failed() -> None:
    view, _ = folded(put("a"), made(1))
    failed = status("a", None, view.entries["a"].generation, Phase.ERROR, cause="no such table")
    view, _ = folded(failed, made(2, lost=True), made(3, over=True), view=view)
    assert list(view.alive()) == []
    assert view.entries["a"].failed()
