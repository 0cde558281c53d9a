"""Turns of batches: so many at once, but for those that take long."""

from __future__ import annotations

import threading

from headrace.spark.turns import Turns


def test_a_turn_that_ends_is_anothers() -> None:
    turns = Turns(2)
    first, second = turns.take(0, lasting=60), turns.take(0, lasting=60)
    assert first is not None
    assert second is not None
    with second, first:
        first.look()
        assert turns.take(0, lasting=60) is None
    assert turns.take(0, lasting=60) is not None
    assert turns.take(0, lasting=60) is not None
    assert turns.take(0, lasting=60) is None


def test_a_turn_that_has_lasted_long_is_anothers_once() -> None:
    turns = Turns(1)
    long = turns.take(0, lasting=0)
    assert long is not None
    with long:
        assert turns.take(0, lasting=60) is None
        long.look()
        long.look()
        other = turns.take(0, lasting=60)
        assert other is not None
    # Its end gives nothing back that is not its own.
    assert turns.take(0, lasting=60) is None


def test_whoever_waits_has_the_turn_as_soon_as_it_is_free() -> None:
    turns = Turns(1)
    first = turns.take(0, lasting=60)
    assert first is not None
    with first:
        found = []
        waiting = threading.Thread(target=lambda: found.append(turns.take(30, lasting=60)))
        waiting.start()
    waiting.join(30)
    assert found[0] is not None
