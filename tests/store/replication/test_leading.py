"""What a primary lets a follower have, and whom it waits for."""

from __future__ import annotations

import pytest

from headrace.store.replication.copyist import PositionVerdict, ReplicaBook, Settled, judge
from headrace.store.replication.following import Epoch, EpochTable, LogHead, common_point

FIRST = EpochTable()
SECOND = FIRST.opened(Epoch(1, 500, 7))
THIRD = SECOND.opened(Epoch(2, 800, 9))
OTHER = SECOND.opened(Epoch(2, 700, 4))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "common"),
    [
        (FIRST, 300, FIRST, 400, 300),
        (FIRST, 400, FIRST, 300, 300),
        (FIRST, 600, SECOND, 900, 500),
        (FIRST, 400, SECOND, 900, 400),
        (SECOND, 900, THIRD, 1000, 800),
        (THIRD, 900, OTHER, 1000, 700),
        (THIRD, 900, THIRD, 850, 850),
        (OTHER, 900, SECOND, 1000, 700),
    ],
)
def test_logs_part_at_the_end_of_the_last_epoch_that_they_share(
    mine: EpochTable, my_end: int, theirs: EpochTable, their_end: int, common: int
) -> None:
    assert common_point(mine, my_end, theirs, their_end) == common
    assert common_point(theirs, their_end, mine, my_end) == common


@pytest.mark.parametrize(
    ("log", "newest", "position", "verdict"),
    [
        ("l1", Epoch(0, 0, 0), 500, PositionVerdict.FITS),
        ("l1", Epoch(0, 0, 0), 501, PositionVerdict.DIVERGED),
        ("l1", Epoch(1, 500, 7), 900, PositionVerdict.FITS),
        ("l1", Epoch(1, 500, 7), 901, PositionVerdict.DIVERGED),
        ("l1", Epoch(1, 500, 8), 600, PositionVerdict.DIVERGED),
        ("l1", Epoch(2, 800, 9), 850, PositionVerdict.STALE),
        ("l2", Epoch(0, 0, 0), 300, PositionVerdict.DIVERGED),
        ("l1", Epoch(0, 0, 0), 99, PositionVerdict.GONE),
    ],
)
def test_primary_judges_a_follower_by_epoch_and_position(
    log: str, newest: Epoch, position: int, verdict: PositionVerdict
) -> None:
    assert judge(LogHead("l1", SECOND, 100, 900), log, newest, position) is verdict


def test_table_of_epochs_that_was_damaged_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of epochs"):
        EpochTable.unpack(SECOND.pack()[:-1])


class Waiting:
    """A book, and what those who waited were told."""

    def __init__(self, needed: int) -> None:
        self.book = ReplicaBook(needed, patience=3, expiry=10)
        self.told: list[tuple[int, Settled]] = []

    def heard(self, follower: str, durable: int, now: float = 0) -> None:
        self.book.heard(follower, f"host:{follower}", durable, durable, now=now)

    def wait(self, position: int, now: float = 0) -> None:
        self.book.wait(position, lambda how: self.told.append((position, how)), now=now)


def test_nobody_waits_when_no_follower_is_needed() -> None:
    waiting = Waiting(0)
    waiting.wait(100)
    assert waiting.told == [(100, Settled.ENOUGH)]


def test_two_of_three_followers_are_enough_when_two_are_needed() -> None:
    waiting = Waiting(2)
    for follower in "abc":
        waiting.heard(follower, 0)
    waiting.wait(100)
    waiting.wait(200)
    waiting.heard("a", 250)
    assert waiting.told == []
    waiting.heard("b", 150)
    assert waiting.told == [(100, Settled.ENOUGH)]
    waiting.heard("c", 200)
    assert waiting.told[1:] == [(200, Settled.ENOUGH)]
    assert len(waiting.book) == 0


def test_too_few_followers_are_told_at_once() -> None:
    waiting = Waiting(2)
    waiting.heard("a", 0)
    waiting.heard("b", 0)
    waiting.book.lost("b")
    waiting.wait(100)
    assert waiting.told == [(100, Settled.TOO_FEW)]
    # What they have on disk counts also when they are gone.
    waiting.heard("a", 100)
    waiting.heard("b", 100)
    waiting.book.lost("b")
    waiting.wait(90)
    assert waiting.told[1:] == [(90, Settled.ENOUGH)]


def test_slow_follower_is_waited_for_no_longer_than_agreed() -> None:
    waiting = Waiting(1)
    waiting.heard("a", 0)
    waiting.wait(100, now=0)
    waiting.wait(200, now=1)
    assert waiting.book.next_deadline() == 3
    waiting.book.expire(now=3)
    assert waiting.told == [(100, Settled.TOO_LATE)]
    waiting.heard("a", 200, now=3.5)
    assert waiting.told[1:] == [(200, Settled.ENOUGH)]
    assert waiting.book.next_deadline() is None


def test_follower_that_says_nothing_is_gone_after_a_while() -> None:
    waiting = Waiting(1)
    waiting.heard("a", 10, now=0)
    waiting.heard("b", 20, now=5)
    assert [each.follower for each in waiting.book.present(now=10)] == ["a", "b"]
    assert waiting.book.lowest(now=10) == 10
    assert [each.follower for each in waiting.book.present(now=11)] == ["b"]
    assert waiting.book.lowest(now=11) == 20
    assert waiting.book.lowest(now=16) is None


def test_followers_keep_their_numbers() -> None:
    waiting = Waiting(1)
    for follower in "abc":
        waiting.heard(follower, 0)
    waiting.book.forget("b")
    waiting.heard("a", 10)
    waiting.heard("d", 10)
    numbers = {each.follower: each.number for each in waiting.book.replicas()}
    assert numbers == {"a": 1, "d": 2, "c": 3}
