"""What a job does after a failure: go back to its last commit and try again, or stop.

Pure: the decision follows from the failure and from what was decided since the last commit, so
that all of it is one table of tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and with what pauses, a job tries again without a commit in between."""

    retries: int = 5
    #: Seconds before the first try; each further one waits twice as long.
    first_pause: float = 0.5
    longest_pause: float = 30.0

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after so many failures.

        >>> policy = RetryPolicy(longest_pause=3.0)
        >>> [policy.pause(failures) for failures in (1, 2, 3, 4, 5000)]
        [0.5, 1.0, 2.0, 3.0, 3.0]
        """
        doublings = min(failures - 1, 64)
        return min(self.first_pause * 2.0**doublings, self.longest_pause)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """What a supervisor remembers of failures."""

    #: Last committed batch when the job failed last.
    batch: int = -1
    #: Failures since that batch was committed.
    failures: int = 0


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Roll back, wait, and try again."""

    standing: FailureRecord
    #: Seconds to wait.
    pause: float


def after_failure(
    policy: RetryPolicy, standing: FailureRecord, batch: int, error: HeadraceError
) -> TryAgain | None:
    """Decide what follows a failure; None to stop.

    Parameters
    ----------
    policy
        How often to try.
    standing
        What is remembered of earlier failures.
    batch
        The last committed batch: a commit since the last failure means progress.
    error
        What happened.

    Examples
    --------
    >>> from headrace.errors import RequestTimeoutError, UserCodeError
    >>> policy = RetryPolicy(retries=1)
    >>> first = after_failure(policy, FailureRecord(), 3, RequestTimeoutError("slow"))
    >>> first
    TryAgain(standing=FailureRecord(batch=3, failures=1), pause=0.5)
    >>> after_failure(policy, first.standing, 3, RequestTimeoutError("slow")) is None
    True
    >>> after_failure(policy, first.standing, 4, RequestTimeoutError("slow")).pause
    0.5
    >>> after_failure(policy, FailureRecord(), 3, UserCodeError("wrong")) is None
    True
    """
    progress = batch > standing.batch
    now = FailureRecord(batch=batch, failures=1 if progress else standing.failures + 1)
    if not error.retriable or now.failures > policy.retries:
        return None
    return TryAgain(now, policy.pause(now.failures))


def given_up(policy: RetryPolicy, batch: int, error: HeadraceError) -> HeadraceError:
    """Say in an error's message that all tries are used up."""
    if error.retriable:
        error.message += (
            f"\n  the job stops: {policy.retries} roll-backs to batch {batch} did not help"
            " (setting rollback_retries)"
        )
    return error
