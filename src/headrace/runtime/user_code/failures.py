"""Errors on their way from a task to the driver."""

from __future__ import annotations

import pickle

from headrace.errors import HeadraceError, JobFailedError

__all__ = ["describe_failure", "may_pass", "raise_failure"]


def describe_failure(error: HeadraceError) -> bytes:
    """Encode an error; only our own processes of one job exchange these."""
    return pickle.dumps(error.with_traceback(None))


def may_pass(error: Exception) -> bool:
    """Tell whether another try may succeed: then no record is to blame, whatever its policy.

    >>> may_pass(MemoryError()), may_pass(ValueError())
    (True, False)
    """
    if isinstance(error, HeadraceError):
        return error.retriable
    return isinstance(error, MemoryError)


def raise_failure(payload: bytes) -> None:
    """Raise the error that a task met.

    Raises
    ------
    HeadraceError
        The task's error, with its own type and fields.
    """
    error = pickle.loads(payload)  # noqa: S301 - made by describe_failure
    raise error if isinstance(error, HeadraceError) else JobFailedError(str(error))
