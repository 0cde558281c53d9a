"""Failures of tasks: which of them another attempt may mend, and which go to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import pytest

from headrace.errors import HeadraceError, RequestTimeoutError, RollbackError, UserCodeError
from headrace.runtime.control import Block, BlockKind
from headrace.runtime.task import guarded
from headrace.runtime.user_code import raise_failure


def failing(error: HeadraceError) -> Iterable[Block]:
    raise error


def test_failure_that_another_attempt_may_mend_is_left_to_spark() -> None:
    with pytest.raises(RequestTimeoutError):
        list(guarded(0, lambda: failing(RequestTimeoutError("slow"))))


@pytest.mark.parametrize(
    "error",
    [UserCodeError("wrong"), RollbackError("again", component="count", task=1, batch=4, line="x")],
)
def test_failure_of_the_whole_batch_reaches_the_driver_as_it_was(error: HeadraceError) -> None:
    (block,) = guarded(3, lambda: failing(error))
    assert (block.partition, block.kind) == (3, BlockKind.FAILURE)
    with pytest.raises(type(error)) as caught:
        raise_failure(block.payload)
    assert vars(caught.value) == vars(error)


def test_roll_back_keeps_its_fields_over_processes() -> None:
    error = RollbackError("again", hint="wait", component="count", task=1, batch=4, line="a.py:3")
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert str(copy) == "again\n  → wait"
