"""Turns of batches: so many at once, whoever used least first, but for those that take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from headrace.spark.ticks import BatchPace, JobBatches, Turns, TurnTaker

SOON = 30


class Clock:
    """A clock that is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(1, clock=clock)


def at_once(turns: Turns) -> int:
    """Count the turns that are free for jobs that are slow."""
    with ExitStack() as stack:
        for number in range(10):
            taker = turns.taker(60)
            taker.usual = 1.0
            if not stack.enter_context(taker.turn(unless=lambda: True)):
                return number
    return 10


def used(turns: Turns, clock: Clock, *batches: float, lasting: float = 2) -> TurnTaker:
    """A job whose batches have taken so long, one after the other."""
    taker = turns.taker(lasting)
    for seconds in batches:
        with taker.turn() as got:
            assert got
            clock.now += seconds
    return taker


@contextmanager
def waiting(turns: Turns, takers: Sequence[TurnTaker], order: list[TurnTaker]) -> Iterator[None]:
    """Have jobs wait for a turn, each behind the one before, and note when each has one."""

    def work(taker: TurnTaker) -> None:
        with taker.turn() as got:
            assert got
            order.append(taker)

    threads = [threading.Thread(target=work, args=(taker,)) for taker in takers]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        while len(turns._waiting) < number:
            time.sleep(0.001)
    yield
    for thread in threads:
        thread.join(SOON)


def order_behind(turns: Turns, first: TurnTaker, *others: TurnTaker) -> list[int]:
    """Have jobs wait for the turn of the first; tell in which order they had it, by number."""
    order: list[TurnTaker] = []
    with ExitStack() as stack, ExitStack() as its:
        its.enter_context(first.turn())
        stack.enter_context(waiting(turns, others, order))
    return [others.index(taker) + 1 for taker in order]


def test_so_many_run_at_once(clock: Clock) -> None:
    turns = Turns(4, clock=clock)
    assert at_once(turns) == 4
    with used(turns, clock, 1.5).turn(), used(turns, clock, 1.5).turn():
        assert at_once(turns) == 2
    assert at_once(turns) == 4


@pytest.mark.parametrize(
    ("batches", "kind", "kept"),
    [
        ((), JobBatches.ON_TRIAL, 1),
        ((0.01,), JobBatches.QUICK, 0.1),
        ((0.05,), JobBatches.QUICK, 0.2),
        ((0.2, 0.2), JobBatches.QUICK, 0.8),
        ((0.01, 0.5), JobBatches.QUICK, 0.53),
        ((0.4,), JobBatches.SLOW, 2),
        ((0.3, 0.01, 0.01), JobBatches.QUICK, 0.69),
        ((0.01, 3), JobBatches.SLOW, 2),
        ((3, 0.01), JobBatches.SLOW, 2),
    ],
)
def test_kind_is_known_by_what_batches_took(
    turns: Turns, clock: Clock, batches: tuple[float, ...], kind: JobBatches, kept: float
) -> None:
    taker = used(turns, clock, *batches)
    assert taker.kind is kind
    assert taker.kept_seconds == pytest.approx(kept, abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "records", "kind"),
    [
        (0.2, 10_000, JobBatches.QUICK),
        (0.3, 10_000, JobBatches.SLOW),
        (0.9, 9_999, JobBatches.QUICK),
        (1.1, 9_999, JobBatches.SLOW),
        (0.9, 0, JobBatches.QUICK),
    ],
)
def test_who_keeps_up_may_take_longer(
    turns: Turns, clock: Clock, seconds: float, records: int, kind: JobBatches
) -> None:
    taker = used(turns, clock, seconds)
    taker.committed(records)
    assert taker.kind is kind


def test_who_has_used_as_much_goes_in_the_order_in_which_it_asked(turns: Turns) -> None:
    first, *others = (turns.taker(60) for _ in range(6))
    assert order_behind(turns, first, *others) == [1, 2, 3, 4, 5]


def test_who_has_used_least_goes_first(turns: Turns, clock: Clock) -> None:
    # All are slow; the last asked last.
    first, *others = (used(turns, clock, 0.5, 0.5) for _ in range(4))
    for taker, seconds in zip(others, (0.9, 0.6, 0.3), strict=True):
        taker.note(seconds)
    assert order_behind(turns, first, *others) == [3, 2, 1]


def test_who_comes_late_has_saved_up_nothing(turns: Turns, clock: Clock) -> None:
    busy = [used(turns, clock, 0.5) for _ in range(2)]
    late = used(turns, clock, 0.3)
    for _ in range(20):
        for taker in busy:
            with taker.turn():
                clock.now += 0.5
    for _ in range(2):
        with late.turn():
            clock.now += 0.5
    # It began where the others were, and is behind them now.
    first = used(turns, clock, 0.5)
    assert order_behind(turns, first, late, *busy)[-1] == 1


@pytest.mark.parametrize("others", [JobBatches.SLOW, JobBatches.ON_TRIAL])
def test_who_is_quick_waits_for_no_other_kind(
    turns: Turns, clock: Clock, others: JobBatches
) -> None:
    quick = used(turns, clock, 0.05)
    other = used(turns, clock, *([0.5] if others is JobBatches.SLOW else []))
    with other.turn(), quick.turn(unless=lambda: True) as got:
        assert other.kind is others
        assert got


def test_who_was_slow_is_not_last_for_ever_among_the_quick(turns: Turns, clock: Clock) -> None:
    first, other = (used(turns, clock, 0.05) for _ in range(2))
    better = used(turns, clock, *[1.0] * 5, *[0.0] * 10)
    assert better.kind is JobBatches.QUICK
    with other.turn():
        clock.now += 0.05
    assert order_behind(turns, first, other, better) == [2, 1]


def test_a_turn_that_has_lasted_long_is_anothers(turns: Turns, clock: Clock) -> None:
    with turns.taker(2).turn() as long:
        assert long
        clock.now += 2.1
        with turns.taker(2).turn() as other:
            assert other
            with turns.taker(2).turn(unless=lambda: True) as third:
                assert not third
    # The end of either gives back what was its own.
    assert not turns._running


def test_forty_that_were_quick_and_hang_hold_up_a_quick_one_for_seconds(
    turns: Turns, clock: Clock
) -> None:
    hung, healthy = [used(turns, clock, 0.02) for _ in range(40)], used(turns, clock, 0.02)
    began = clock.now
    with ExitStack() as stack:
        for taker in hung:
            assert stack.enter_context(taker.turn(unless=lambda: True))
            clock.now += 0.101
        with healthy.turn(unless=lambda: True) as got:
            assert got
        assert clock.now - began < 5


def test_a_long_turn_is_kept_while_nobody_waits(turns: Turns, clock: Clock) -> None:
    with turns.taker(0).turn():
        clock.now += 1
        assert len(turns._running) == 1


def test_whoever_need_not_wait_any_more_runs_without_a_turn(turns: Turns) -> None:
    with turns.taker(60).turn():
        looks = iter([False, False, True])
        with turns.taker(60).turn(unless=lambda: next(looks)) as got:
            assert not got
        assert not turns._waiting
    assert not turns._running


def test_a_block_that_raises_gives_its_turn_back(turns: Turns) -> None:
    with suppress(ValueError), turns.taker(60).turn():
        raise ValueError
    assert not turns._running


@pytest.mark.parametrize(
    ("batches", "most"),
    [
        ([(10_000, 0.1), (40_000, 0.1), (160_000, 0.1)], 640_000),
        ([(10_000, 0.4), (20_000, 0.4)], 40_000),
        ([(10_000, 0.6)] * 2, 10_000),
        ([(9_999, 0.1)], 10_000),
        ([(10_000, 2.0)], 5_000),
        ([(10, 5.0)], 1_000),
        ([(10_000, 0.1), (40_000, 2.0), (20_000, 0.2)], 80_000),
    ],
)
def test_batches_become_as_large_as_others_can_wait_for(
    batches: list[tuple[int, float]], most: int
) -> None:
    pace = BatchPace()
    for records, seconds in batches:
        pace.note(records, seconds)
    assert pace.most == most
