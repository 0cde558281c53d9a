"""Errors on their way from a task to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, JobFailedError, SerializationError

if TYPE_CHECKING:
    from headrace.topology.operators.core import Operator


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


# Errors of serdes, with the operator that met them.


@contextmanager
def writing(operator: Operator, what: str) -> Iterator[None]:
    """Name the operator when a value or key cannot be written.

    Raises
    ------
    SerializationError
        In place of whatever a serde raises inside the context, unless it may pass by itself.
    """
    try:
        yield
    except Exception as error:
        if may_pass(error):
            raise
        reason = error.message if isinstance(error, HeadraceError) else error
        advice = error.hint if isinstance(error, HeadraceError) and error.hint else None
        raise SerializationError(
            f"operator '{operator.name}' cannot write {what}: {type(error).__name__}: {reason}",
            hint=f"the operator was made at {operator.origin}; "
            + (advice or "give it a serde that fits the values that reach it"),
        ) from error
