from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.connect.handling import (
    Again,
    Counters,
    Patience,
    Retrying,
    Tries,
    after_failure,
)
from headrace.errors import RetriableError
from tests.connect.handling.parts import Pauses

TABLE = [
    # (failed before, at, budget, longest, retriable) → pause, or None for giving up
    (0, 0.0, 0.0, 60.0, True, None),
    (0, 0.0, 10.0, 60.0, True, 0.3),
    (1, 0.3, 10.0, 60.0, True, 0.6),
    (4, 5.0, 10.0, 60.0, True, 4.8),
    (5, 9.0, 10.0, 60.0, True, 1.0),
    (6, 10.0, 10.0, 60.0, True, None),
    (6, 11.0, 10.0, 60.0, True, None),
    (0, 0.0, 10.0, 60.0, False, None),
    (9, 100.0, None, 60.0, True, 60.0),
    (9, 100.0, None, 2.0, True, 2.0),
    (10_000, 1e9, None, 60.0, True, 60.0),
    (3, 1.0, None, 60.0, False, None),
    (0, 0.0, 10.0, 0.0, True, 0.0),
]


@pytest.mark.parametrize(("failed", "at", "budget", "longest", "retriable", "pause"), TABLE)
def test_decision_follows_the_table(
    failed: int,
    at: float,
    budget: float | None,
    longest: float,
    retriable: bool,
    pause: float | None,
) -> None:
    tries = Tries(0.0, failed)
    decision = after_failure(tries, at, Patience(budget, longest), retriable=retriable, chance=1.0)
    assert decision.tries == Tries(0.0, failed + 1)
    given_pause = decision.pause if isinstance(decision, Again) else None
    assert given_pause == (None if pause is None else pytest.approx(pause))


@given(
    failed=st.integers(0, 100),
    at=st.floats(0, 1e6),
    budget=st.none() | st.floats(0, 1e6),
    longest=st.floats(0, 1000),
    chance=st.floats(0, 1),
)
def test_pauses_stay_within_the_longest_and_the_budget(
    failed: int, at: float, budget: float | None, longest: float, chance: float
) -> None:
    decision = after_failure(
        Tries(0.0, failed), at, Patience(budget, longest), retriable=True, chance=chance
    )
    if isinstance(decision, Again):
        assert 0 <= decision.pause <= longest
        assert budget is None or at + decision.pause <= budget * (1 + 1e-9)
    else:
        assert budget is not None
        assert at >= budget


@pytest.mark.defect(8)
def test_patience_without_budget_never_gives_up() -> None:
    tries = Tries(0.0)
    for hour in range(1000):
        decision = after_failure(tries, hour * 3600.0, Patience(None), retriable=True, chance=0.5)
        assert isinstance(decision, Again)
        tries = decision.tries
    assert tries.failed == 1000


class Clock:
    """Moves by the pauses that are taken."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.now = 0.0
        self.pauses = Pauses(most)

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.pauses(seconds)


def retrying(clock: Clock, patience: Patience) -> Retrying:
    return Retrying(
        patience, Counters(), wait=clock.wait, clock=lambda: clock.now, chance=lambda: 1.0
    )


def test_call_that_succeeds_in_the_end_is_counted() -> None:
    clock, left = Clock(), [3]

    def call() -> str:
        if left[0]:
            left[0] -= 1
            raise RetriableError("not yet")
        return "done"

    runner = retrying(clock, Patience(60.0))
    assert runner.call(call) == "done"
    assert clock.pauses.taken == pytest.approx([0.3, 0.6, 1.2])
    assert (runner.counters.failures, runner.counters.retries) == (3, 3)


def test_call_ends_with_the_budget() -> None:
    clock = Clock()

    def call() -> None:
        raise RetriableError(f"away at {clock.now:.1f}")

    with pytest.raises(RetriableError, match=r"away at 2\.0"):
        retrying(clock, Patience(2.0)).call(call)
    assert sum(clock.pauses.taken) == pytest.approx(2.0)


def test_error_that_does_not_pass_by_itself_is_raised_at_once() -> None:
    clock = Clock()

    def call() -> None:
        raise ValueError("wrong for ever")

    with pytest.raises(ValueError, match="wrong for ever"):
        retrying(clock, Patience(None)).call(call)
    assert clock.pauses.taken == []


def test_task_that_is_told_to_stop_does_not_try_again() -> None:
    clock, calls = Clock(most=2), []

    def call() -> None:
        calls.append(clock.now)
        raise RetriableError("away")

    with pytest.raises(RetriableError):
        retrying(clock, Patience(None)).call(call)
    assert len(calls) == 2
