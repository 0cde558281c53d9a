"""Turns of batches: so many at once, in order, but for those that take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headrace.spark.turns import Turns


def at_once(turns: Turns) -> int:
    """Count the turns that are free."""
    with ExitStack() as stack:
        for number in range(10):
            if not stack.enter_context(turns.turn(60, unless=lambda: True)):
                return number
    return 10


@contextmanager
def waiting(turns: Turns, order: list[int], number: int) -> Iterator[None]:
    """Have another thread wait for a turn, and note when it has one."""

    def work() -> None:
        with turns.turn(60) as got:
            assert got
            order.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    while len(turns._waiting) < number:
        time.sleep(0.001)
    yield
    thread.join(30)


def test_so_many_run_at_once() -> None:
    turns = Turns(3)
    assert at_once(turns) == 3
    with turns.turn(60), turns.turn(60):
        assert at_once(turns) == 1
    assert at_once(turns) == 3


def test_turns_go_in_the_order_in_which_they_were_asked_for() -> None:
    turns, order = Turns(1), list[int]()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(turns.turn(60))
        for number in range(1, 6):
            stack.enter_context(waiting(turns, order, number))
        first.close()
    assert order == [1, 2, 3, 4, 5]


def test_a_turn_that_has_lasted_long_is_anothers() -> None:
    turns = Turns(1)
    with turns.turn(0.01) as long:
        assert long
        time.sleep(0.02)
        with turns.turn(60) as other:
            assert other
            assert at_once(turns) == 0
    # The end of either gives back what was its own.
    assert at_once(turns) == 1


def test_a_long_turn_is_kept_while_nobody_waits() -> None:
    turns = Turns(1)
    with turns.turn(0):
        time.sleep(0.01)
        assert len(turns._running) == 1


def test_whoever_need_not_wait_any_more_runs_without_a_turn() -> None:
    turns = Turns(1)
    with turns.turn(60):
        looks = iter([False, False, True])
        with turns.turn(60, unless=lambda: next(looks)) as got:
            assert not got
        assert not turns._waiting
    assert at_once(turns) == 1


def test_a_block_that_raises_gives_its_turn_back() -> None:
    turns = Turns(1)
    try:
        with turns.turn(60):
            raise ValueError
    except ValueError:
        pass
    assert at_once(turns) == 1
