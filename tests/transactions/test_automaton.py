"""The judge of callback orders: it takes what R18 allows and names what R18 forbids."""

from __future__ import annotations

import pytest

from tests.transactions.automaton import Call, TaskAutomaton, judge

BEGUN = [Call("prepare"), Call("init_state")]


def batch(number: int, state: object = None) -> list[Call]:
    return [Call("execute"), Call("finish_batch", state=state), Call("commit", number, state)]


LEGAL = {
    "batches in order": [*BEGUN, *batch(1), Call("ack_commit", 1), *batch(2)],
    "an acknowledgement is lost": [*BEGUN, *batch(1), *batch(2), Call("ack_commit", 2), *batch(3)],
    "no tuple in a batch": [*BEGUN, Call("finish_batch"), Call("commit", 1)],
    "a rebuilt one is told of the commit before": [*BEGUN, Call("ack_commit", 6), *batch(7)],
    "a roll-back repeats the batch": [*BEGUN, *batch(1), Call("roll_back"), *batch(1)],
    "a roll-back in mid-batch": [*BEGUN, *batch(1), Call("execute"), Call("roll_back"), *batch(2)],
    "a rebuilt one is rolled back": [*BEGUN, Call("roll_back"), Call("ack_commit", 4), *batch(5)],
    "cleanup ends it": [*BEGUN, *batch(1), Call("cleanup")],
}

ILLEGAL = {
    "init_state twice": ([*BEGUN, Call("init_state")], "a second time"),
    "prepare twice": ([Call("prepare"), Call("prepare")], "a second time"),
    "work before init_state": ([Call("prepare"), Call("next_tuple")], "before init_state"),
    "init_state before prepare": ([Call("init_state")], "before prepare"),
    "commit without finish_batch": ([*BEGUN, Call("commit", 1)], "before finish_batch"),
    "commit out of order": ([*BEGUN, *batch(1), *batch(3)], "behind commit(1)"),
    "commit of the same batch twice": ([*BEGUN, *batch(1), *batch(1)], "behind commit(1)"),
    "work between finish and commit": (
        [*BEGUN, Call("finish_batch"), Call("execute")],
        "between finish_batch and commit",
    ),
    "finish_batch twice": ([*BEGUN, Call("finish_batch"), Call("finish_batch")], "a second time"),
    "acknowledged before its commit": (
        [*BEGUN, *batch(1), Call("ack_commit", 2)],
        "the last commit was 1",
    ),
    "acknowledged between finish and commit": (
        [*BEGUN, Call("finish_batch"), Call("ack_commit", 1)],
        "between finish_batch and commit",
    ),
    "acknowledged twice": (
        [*BEGUN, *batch(1), Call("ack_commit", 1), Call("ack_commit", 1)],
        "behind ack_commit(1)",
    ),
    "rolled back behind an acknowledgement": (
        [*BEGUN, *batch(1), Call("ack_commit", 1), Call("roll_back"), *batch(1)],
        "batch 1 was acknowledged",
    ),
    "another state than finish_batch gave": (
        [*BEGUN, Call("finish_batch", state=1), Call("commit", 1, 2)],
        "it got 2, finish_batch gave 1",
    ),
    "work after cleanup": ([*BEGUN, Call("cleanup"), Call("execute")], "after cleanup"),
}


@pytest.mark.parametrize("calls", LEGAL.values(), ids=LEGAL)
def test_r18_legal_orders_are_taken(calls: list[Call]) -> None:
    assert TaskAutomaton().read(calls) is None


@pytest.mark.parametrize(("calls", "problem"), ILLEGAL.values(), ids=ILLEGAL)
def test_r18_illegal_orders_are_named(calls: list[Call], problem: str) -> None:
    found = TaskAutomaton().read(calls)
    assert found is not None
    assert found.endswith(problem)


def run_of(component: str, batches: int) -> list[tuple[str, str, int | None]]:
    begun: list[tuple[str, str, int | None]]
    begun = [(component, "prepare", None), (component, "init_state", None)]
    for number in range(1, batches + 1):
        begun += [(component, "finish_batch", None), (component, "commit", number)]
    return begun


def told(calls: list[tuple[str, str, int | None]], instance: str = "first") -> list[Call]:
    start = 0 if instance == "first" else 100
    return [
        Call(name, number, task=(component, 0), instance=instance, time=start + at)
        for at, (component, name, number) in enumerate(calls)
    ]


def test_r16_nobody_hears_of_a_batch_before_every_task_has_committed_it() -> None:
    early = told([*run_of("a", 1), ("a", "ack_commit", 1), *run_of("b", 1)])
    assert judge(early)[0] == "('a', 0): ack_commit(1) before commits of [('b', 0)]"
    late = told([*run_of("a", 1), *run_of("b", 1), ("a", "ack_commit", 1)])
    assert judge(late, committed=1) == []


def test_r16_a_batch_that_the_job_never_committed_is_not_acknowledged() -> None:
    calls = told([*run_of("a", 2), ("a", "ack_commit", 2)])
    assert judge(calls, committed=2) == []
    assert judge(calls, committed=1) == ["('a', 0): ack_commit(2), the job committed 1"]


def test_r36_nothing_of_a_batch_is_committed_anew_once_it_is_acknowledged() -> None:
    calls = told([*run_of("a", 1), ("a", "ack_commit", 1)])
    again = told(run_of("a", 1), "second")
    assert judge([*calls, *again]) == ["('a', 0): commit(1) after the batch was acknowledged"]
