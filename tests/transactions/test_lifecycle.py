"""Which copies of a user's object go on with a batch, and what they are told before its tuples."""

from __future__ import annotations

import pytest

from headrace.runtime.bolts.instances import BatchNumbers, InstanceState, opening
from headrace.runtime.control import Control

WROTE = (1, 4, 0)


def standing(**given: object) -> InstanceState:
    fields: dict[str, object] = {"life": 1, "epoch": 1, "finished": 4, "acked": 3, "wrote": WROTE}
    return InstanceState(**(fields | given))  # type: ignore[arg-type]


FIVE = BatchNumbers(life=1, epoch=1, batch=5)
ROLLED = BatchNumbers(life=1, epoch=2, batch=5, begins_epoch=True)


@pytest.mark.parametrize(
    ("own", "numbers", "saved", "expected"),
    [
        # It finished the batch before, and its attempt is the one that was committed.
        (standing(), FIVE, WROTE, True),
        # Another attempt of the batch before was committed: its state may differ.
        (standing(), FIVE, (1, 4, 9), False),
        # The task was elsewhere for a batch.
        (standing(finished=3), FIVE, WROTE, False),
        # It finished this batch in an attempt that did not count.
        (standing(finished=5), FIVE, WROTE, False),
        # It was in the middle of a batch when something failed.
        (standing(running=True), FIVE, WROTE, False),
        (standing(running=True), ROLLED, WROTE, False),
        # A roll-back: wherever it is, it is told to go back.
        (standing(finished=5), ROLLED, WROTE, True),
        (standing(finished=2), ROLLED, WROTE, True),
        # It went back in an attempt that failed elsewhere.
        (standing(epoch=2, finished=5), ROLLED, WROTE, False),
        # It missed the roll-back.
        (standing(), BatchNumbers(life=1, epoch=2, batch=6), WROTE, False),
        # Another driver began.
        (standing(), BatchNumbers(life=2, epoch=2, batch=5, begins_epoch=True), WROTE, False),
    ],
)
def test_r36_a_copy_goes_on_only_where_the_last_commit_left_it(
    own: InstanceState, numbers: BatchNumbers, saved: tuple[int, int, int], expected: bool
) -> None:
    assert own.serves(numbers, saved) is expected


def test_a_copy_without_state_serves_any_batch_of_the_drivers_life() -> None:
    assert standing(finished=2).serves(ROLLED, None, keeps=False)
    assert not standing(running=True).serves(FIVE, None, keeps=False)
    assert not standing(life=0).serves(FIVE, None, keeps=False)


@pytest.mark.parametrize(
    ("own", "numbers", "expected"),
    [
        (None, BatchNumbers(1, 1, 1, begins_epoch=True), ["prepare", "init_state"]),
        (standing(), FIVE, ["ack_commit"]),
        # R17: acknowledgements were lost; one stands for all.
        (standing(acked=1), FIVE, ["ack_commit"]),
        (standing(acked=4), FIVE, []),
        # A copy that was rebuilt on its own.
        (None, FIVE, ["prepare", "init_state", "ack_commit"]),
        # R15: a roll-back reaches every copy, rebuilt or not.
        (standing(), ROLLED, ["roll_back", "ack_commit"]),
        (standing(acked=4), ROLLED, ["roll_back"]),
        (None, ROLLED, ["prepare", "init_state", "roll_back", "ack_commit"]),
        # R43: one before the first commit.
        (
            None,
            BatchNumbers(1, 2, 1, begins_epoch=True),
            ["prepare", "init_state", "roll_back"],
        ),
        # R7: the start of a driver is no roll-back.
        (
            None,
            BatchNumbers(3, 3, 5, begins_epoch=True),
            ["prepare", "init_state", "ack_commit"],
        ),
    ],
)
def test_r18_what_comes_before_the_tuples_of_a_batch(
    own: InstanceState | None, numbers: BatchNumbers, expected: list[str]
) -> None:
    assert opening(own, numbers) == expected


@pytest.mark.parametrize(
    ("life", "epoch", "lineage", "rolls_back"),
    [
        (0, 3, [], False),
        (3, 3, [[2, 1]], False),
        (3, 4, [[2, 1]], True),
        (3, 4, [], True),
        (3, 4, [[2, 1], [4, 7]], False),
    ],
)
def test_r15_a_roll_back_is_the_first_batch_of_a_later_epoch_of_a_drivers_life(
    life: int, epoch: int, lineage: list[list[int]], rolls_back: bool
) -> None:
    control = Control(
        job="j", life=life, epoch=epoch, batch=8, partitions=1, clock=0, topics={}, lineage=lineage
    )
    assert BatchNumbers.of(control).rolls_back is rolls_back


def test_copies_of_tasks_that_have_moved_away_are_let_go() -> None:
    assert standing(finished=3).is_stale(FIVE)
    assert not standing(finished=3).is_stale(FIVE, keeps=False)
    assert not standing().is_stale(FIVE)
    assert not standing(finished=3).is_stale(ROLLED)
    assert standing(life=0).is_stale(FIVE, keeps=False)
