"""What follows a failure, as a table: the batch committed last, the failure, and the decision."""

from __future__ import annotations

import pytest

from headrace.errors import (
    BatchTimeoutError,
    ConnectionFailedError,
    FencedError,
    HeadraceError,
    JavaEndedError,
    JobFailedError,
    OffsetExpiredError,
    RollbackError,
    StagedPartMissingError,
    TaskFailedError,
    UserCodeError,
)
from headrace.runtime.time_limit import (
    FailureRecord,
    TryAgain,
    after_failure,
    given_up,
)

RETRIES = 3
AGAIN = RollbackError("again")

# (last commit, failure) of each step, and the pause that follows; None: the job stops.
Step = tuple[int, HeadraceError, float | None]
STORIES: dict[str, list[Step]] = {
    "pauses grow while nothing is committed, then it stops": [
        (3, AGAIN, 0.5),
        (3, AGAIN, 1.0),
        (3, AGAIN, 2.0),
        (3, AGAIN, None),
    ],
    "a commit begins the count anew": [
        (3, AGAIN, 0.5),
        (3, AGAIN, 1.0),
        (4, AGAIN, 0.5),
        (4, AGAIN, 1.0),
        (4, AGAIN, 2.0),
        (4, AGAIN, None),
    ],
    "failures of different kinds are counted together": [
        (0, TaskFailedError("task"), 0.5),
        (0, BatchTimeoutError("hangs"), 1.0),
        (0, JavaEndedError("java"), 2.0),
        (0, StagedPartMissingError("gone"), None),
    ],
    "a job that has committed nothing tries as often": [
        (0, ConnectionFailedError("away"), 0.5),
        (0, ConnectionFailedError("away"), 1.0),
        (0, ConnectionFailedError("away"), 2.0),
        (0, ConnectionFailedError("away"), None),
    ],
    "what no try can mend stops it at once": [(3, UserCodeError("wrong"), None)],
    "a driver that was fenced off never comes back": [(3, FencedError("newer"), None)],
    "an offset that has expired does not come back": [(3, OffsetExpiredError("gone"), None)],
    "an unknown failure stops it": [(3, JobFailedError("odd"), None)],
    "what no try can mend stops it after a roll-back too": [
        (3, AGAIN, 0.5),
        (3, UserCodeError("wrong"), None),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_decisions_after_failures(story: list[Step]) -> None:
    standing = FailureRecord()
    for batch, error, pause in story:
        decision = after_failure(RETRIES, standing, batch, error)
        assert (None if decision is None else decision.pause) == pause
        if decision is not None:
            standing = decision.standing


def test_no_retries_means_that_the_first_failure_stops() -> None:
    assert after_failure(0, FailureRecord(), 3, AGAIN) is None


def test_pauses_never_grow_beyond_the_longest() -> None:
    decision = after_failure(100, FailureRecord(batch=3, failures=98), 3, AGAIN)
    assert decision == TryAgain(FailureRecord(batch=3, failures=99), 30.0)


def test_error_says_that_the_tries_are_used_up() -> None:
    error = given_up(RETRIES, 7, RollbackError("bolt failed", hint="look"))
    assert isinstance(error, RollbackError)
    assert "3 roll-backs to batch 7 did not help (setting rollback_retries)" in str(error)


def test_error_that_was_never_tried_again_stays_as_it_was() -> None:
    assert str(given_up(RETRIES, 7, UserCodeError("wrong"))) == "wrong"
